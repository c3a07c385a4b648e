package core

import "runtime"

// Removals in no order, as of an engine that evicts whatever was used least, each make one more
// hole in another run. What such a removal needs lies in lines of memory that lead to one another,
// so those of a batch are read one kind after the other, and what is one more hole and nothing
// else is done at once: nothing that anybody keeps but a bit of the exception, and perhaps a held
// length, changes with it.

// scattered removes a batch of the hashes and what follows the last of it in chain order, and returns of how
// many it took care. The last stretch may still be to be dropped.
func (m *removal) scattered(hashes []uint64) int {
	m.flush()
	p := m.spare[0]
	m.dir.locate(p, hashes)
	var blocks [probeHashes]uint32
	runtime.KeepAlive(m.dir.findAll(p, hashes, &blocks))
	i, n, changed := 0, p.n, false
	for i < n {
		if m.lo < m.hi {
			if k := m.extend(hashes[i:]); k > 0 {
				i += k
				continue
			}
			m.flush()
		}
		e, b := hashes[i], blocks[i]
		i++
		if b == 0 || changed {
			var known bool
			if b, known = m.dir.find(e); !known {
				m.out.Unknown++
				continue
			}
		}
		if i < len(hashes) && m.arena.beside(b, hashes[i]) || !m.makeHole(b) {
			m.beginAt(e, b)
			changed = true
		}
	}
	return i
}

// makeHole removes the block where the holder has it by the shared hash, once, has other holes in
// the run or behind the block, and nothing there but on the device. Else it changes nothing and
// reports false.
func (m *removal) makeHole(b uint32) bool {
	hd := m.arena.head(b >> segBits)
	if m.tier != 0 || hd.owner != 0 || len(m.hs.inferred.m) > 0 {
		return false
	}
	r, pos := m.runs.at(hd.run), hd.base+b&(segBlocks-1)
	ex := m.exceptionOf(r, m.h)
	if ex == nil || !ex.simple() || !ex.layers[0].held[0].has(pos) || ex.layers[0].held[0].end() == pos+1 {
		return false
	}
	m.preserve(r)
	body := r.body.Load()
	l := &ex.layers[0]
	l.held[0][pos>>6] &^= 1 << (pos & 63)
	l.nHeld[0]--
	if pos < body.heldLen(0, m.h) {
		m.setHeldLens(body, m.h, pos)
	}
	m.hs.last, m.hs.lastPos = r.id, pos
	m.out.Removed++
	m.hs.held[0]--
	m.total--
	m.earn(1)
	return true
}

// beside reports whether the block next to b, of those in its segment, has that hash.
func (a *arena) beside(b uint32, hash uint64) bool {
	seg, o := a.hashes(b>>segBits), b&(segBlocks-1)
	return o > 0 && seg[o-1] == hash || o < segBlocks-1 && seg[o+1] == hash
}
