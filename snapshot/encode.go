package snapshot

import (
	"encoding/binary"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// How a run's engine hashes are stored.
const (
	namesRaw   = 0
	namesChain = 1 // the first; each other is the sequence hash that follows
)

// Flags of a stretch of an exception's hashes; the tiers' bits are above.
const (
	nameShared = 1 << iota
	nameCopies // more than one copy on some tier
	nameMany   // a length follows
	nameTier   // on tier 0, and so on
)

// appendRun appends a piece to the chunk. last is the number of the piece
// before in it, 0 for the first.
func (c *chunk) appendRun(p *core.Piece, last uint32) {
	m := c.meta
	m = binary.AppendUvarint(m, uint64(p.Number-last))
	up := uint32(0)
	if p.Parent != 0 {
		up = p.Number - p.Parent
	}
	m = binary.AppendUvarint(m, uint64(up))
	if up != 0 {
		m = binary.AppendUvarint(m, uint64(p.Offset))
	}
	n := uint32(len(p.Local))
	m = binary.AppendUvarint(m, uint64(n))
	mode := byte(namesRaw)
	if chained(p.Engine, p.Local) {
		mode = namesChain
	}
	m = append(m, mode)
	c.words = appendWords(c.words, p.Local)
	if mode == namesChain {
		c.words = appendWords(c.words, p.Engine[:1])
	} else {
		c.words = appendWords(c.words, p.Engine)
	}

	m = binary.AppendUvarint(m, uint64(len(p.Held)))
	before := uint32(0)
	for _, h := range p.Held {
		m = binary.AppendUvarint(m, uint64(h.Holder-before))
		before = h.Holder
	}
	for _, h := range p.Held {
		m = binary.AppendUvarint(m, uint64(n-h.Blocks))
	}
	m = binary.AppendUvarint(m, uint64(len(p.Exceptions)))
	for i := range p.Exceptions {
		m = c.appendException(m, &p.Exceptions[i])
	}
	m = binary.AppendUvarint(m, uint64(len(p.Children)))
	for _, off := range p.Children {
		m = binary.AppendUvarint(m, uint64(off))
	}
	c.meta = m
}

// chained reports whether every hash but the first follows from the one before
// and its block, as sequence hashes do.
func chained(hashes, local []uint64) bool {
	for i := 1; i < len(hashes); i++ {
		if blockhash.NextSequenceHash(hashes[i-1], local[i]) != hashes[i] {
			return false
		}
	}
	return len(hashes) > 1
}

func appendWords(dst []byte, words []uint64) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, 8*len(words))...)
	for i, w := range words {
		binary.LittleEndian.PutUint64(dst[at+8*i:], w)
	}
	return dst
}

// appendException appends a holder's hashes as stretches of neighbours that are
// alike.
func (c *chunk) appendException(m []byte, s *core.PieceException) []byte {
	m = binary.AppendUvarint(m, uint64(s.Holder))
	hashes := len(s.Hashes)
	for i := range s.Hashes {
		hashes += int(s.Hashes[i].More)
	}
	m = binary.AppendUvarint(m, uint64(hashes))
	pos := uint32(0)
	for i := 0; i < len(s.Hashes); {
		e := &s.Hashes[i]
		flags := flagsOf(e)
		n, next := 1+int(e.More), i+1
		for flags&nameCopies == 0 && next < len(s.Hashes) && s.Hashes[next].Pos == e.Pos+uint32(n) && flagsOf(&s.Hashes[next]) == flags {
			n += 1 + int(s.Hashes[next].More)
			next++
		}
		if n > 1 {
			flags |= nameMany
		}
		m = append(m, flags)
		m = binary.AppendUvarint(m, uint64(e.Pos-pos))
		if n > 1 {
			m = binary.AppendUvarint(m, uint64(n))
		}
		if flags&nameCopies != 0 {
			for _, k := range e.Copies {
				if k > 0 {
					m = binary.AppendUvarint(m, uint64(k-1))
				}
			}
		}
		if flags&nameShared == 0 {
			for j := range n {
				c.words = binary.LittleEndian.AppendUint64(c.words, s.Hashes[i+j].Engine)
			}
		}
		i = next
		pos = e.Pos + uint32(n) - 1
	}
	return m
}

func flagsOf(e *core.PieceHash) byte {
	f := byte(0)
	if e.Shared {
		f |= nameShared
	}
	for t, k := range e.Copies {
		if k > 0 {
			f |= nameTier << t
		}
		if k > 1 {
			f |= nameCopies
		}
	}
	return f
}

// appendGroups appends blocks of one cache group that a holder has, or that it has no more.
func (c *chunk) appendGroups(h core.Holder, ev *event.Event, copies []uint32) {
	c.meta = binary.AppendUvarint(c.meta, uint64(h))
	c.meta = append(c.meta, ev.Group<<4|byte(ev.Tier))
	c.meta = binary.AppendUvarint(c.meta, uint64(len(ev.Engine)))
	for _, n := range copies {
		c.meta = binary.AppendUvarint(c.meta, uint64(n))
	}
	c.words = appendWords(c.words, ev.Engine)
}

// appendInferred appends the inferred hashes of one holder.
func (c *chunk) appendInferred(h core.Holder, hashes []uint64) {
	c.meta = binary.AppendUvarint(c.meta, uint64(h))
	c.meta = binary.AppendUvarint(c.meta, uint64(len(hashes)))
	c.words = appendWords(c.words, hashes)
}
