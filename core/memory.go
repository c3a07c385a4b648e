package core

import "math"

// Memory is what an index holds, in bytes by kind. It follows every
// allocation, rounded to the allocator's size classes where that matters.
// Pointers count 8 bytes each: where they have 4 it is more than the index holds.
type Memory struct {
	Content      int64 // local hashes
	EngineHashes int64 // engine hashes
	Directory    int64 // engine hash → block
	Runs         int64 // runs, bodies, segment lists
	Children     int64
	Coverage     int64 // held lengths
	Exceptions   int64 // what is not ordinary: holes, lower tiers, copies, own hashes
	Descendants  int64
	Holders      int64
	Tables       int64 // run table, hashes entered more than once, huge pages ahead
}

// Kinds returns the names of the kinds, in the order of Bytes.
func (Memory) Kinds() []string {
	return []string{"content", "names", "directory", "runs", "children", "coverage", "records", "links", "holders", "tables"}
}

// Bytes returns the bytes of each kind.
func (m Memory) Bytes() [10]int64 {
	return [...]int64{m.Content, m.EngineHashes, m.Directory, m.Runs, m.Children, m.Coverage, m.Exceptions, m.Descendants, m.Holders, m.Tables}
}

// Total returns the sum.
func (m Memory) Total() int64 {
	return m.Content + m.EngineHashes + m.Directory + m.Runs + m.Children + m.Coverage + m.Exceptions + m.Descendants + m.Holders + m.Tables
}

const (
	holderBytes = 208

	// leastReserve is what a budget leaves for those below their share:
	// memory comes in huge pages.
	leastReserve = 4 << 20

	// stepBlocks are the most new hashes that a step enters where there is a budget, so
	// that what it takes is bounded; stepSlack is for tables that grow by the way.
	stepBlocks = 1024
	stepSlack  = 64 << 10
)

// Memory returns the bytes in use. It belongs to the writer.
func (x *Radix) Memory() Memory {
	m := x.mem
	m.EngineHashes = x.arena.bytes()
	m.Directory = x.dir.bytes()
	m.Holders += int64(cap(x.holders)) * 8
	m.Exceptions += x.exceptions.bytes()
	m.Descendants += x.descendants.bytes()
	m.Tables = x.runs.bytes(8) + x.freeIDs.bytes(4) + x.dups.bytes() + x.dupRoom + x.loose.bytes(8) + int64(cap(x.looseIDs))*4 + int64(cap(x.entries))*8 + x.arena.stock.Ahead()
	return m
}

// MappedBytes returns how many of the bytes in use are not on the Go heap. It
// may be called beside the writer.
func (x *Radix) MappedBytes() int64 { return x.arena.stock.Bytes() }

// NearLimit reports whether the index has almost as many hashes as it can
// number, or that many: 2^28 blocks. It belongs to the writer.
func (x *Radix) NearLimit() bool { return x.arena.inUse >= maxSegs-maxSegs/16 }

// need returns what n hashes may take that are new, with their content: the huge pages
// that they may be the first in, and what may be moved to larger memory for them.
func (x *Radix) need(n int) int64 {
	if n == 0 {
		return 0
	}
	pages := x.arena.need(n) + x.dir.need(n)
	return pages + x.arena.stock.More(pages) + int64(n)*16 + stepSlack
}

// needKnown returns what it may take that the holder comes to know n hashes: a larger filter, or that it becomes dense; and what
// those take who are on their way to that.
func (s *store) needKnown(n int) (need int64) {
	if s.toEnter > 0 {
		need = s.dir.need(s.toEnter)
	}
	if s.hs == nil {
		return need + filterBytes + filterRoom(s.filterSize(n))
	}
	f := s.hs.filter
	if f == nil || !s.hs.unfiltered && f.room() >= n {
		return need
	}
	known := f.n
	for _, held := range s.hs.held {
		known = max(known, held)
	}
	if known += n; known > s.maxSparse {
		need += s.dir.need(known)
	}
	return need + filterRoom(s.filterSize(known))
}

// mostBytes returns what new blocks of nobody may exceed.
func (s *store) mostBytes() int64 {
	b := s.opts.Budget
	return b + min(max(b/16, leastReserve), math.MaxInt64-b)
}

// stepOf returns how many of the hashes one step may enter.
func (s *store) stepOf(hashes []uint64) int {
	if s.opts.Budget == 0 {
		return len(hashes)
	}
	return min(len(hashes), stepBlocks)
}

// overBudget reports whether n new blocks of the holder are to be refused, and such as others have: it comes to know so
// many in all.
func (s *store) overBudget(n, known int) bool {
	if s.full || s.arena.inUse >= maxSegs {
		return true
	}
	if s.opts.Budget == 0 {
		return false
	}
	have, need, most := s.Memory().Total(), s.need(n)+s.needKnown(known), s.mostBytes()
	used, granted := have, have+need <= most
	if s.opts.Share != nil {
		used, granted = s.opts.Share(have, need, most)
	}
	if !granted {
		return true
	}
	if used <= s.opts.Budget {
		return false
	}
	held := 0
	if s.hs != nil {
		for _, n := range s.hs.held {
			held += n
		}
	}
	return held*s.active > s.total
}

// storeExistingFull is join beyond the budget: it takes only blocks that the holder has
// there already, to which nothing changes.
func (s *store) storeExistingFull(r *run, o uint32, hashes []uint64) int {
	k := 0
	for !s.copies && k < len(hashes) {
		p, ok := s.lookup(s.h, hashes[k])
		if !ok || p.run != r || p.pos != o+uint32(k) || !s.holdsAt(p) {
			break
		}
		k++
	}
	s.out.Duplicate += k
	return k
}

// holdsAt reports whether the holder has copies on the tier at a position that it
// knows.
func (s *store) holdsAt(p position) bool {
	if ex := s.exceptionOf(p.run, s.h); ex != nil {
		return ex.copiesOf(p.spot, s.tier, p.pos) > 0
	}
	return s.tier == 0 && p.pos < p.run.body.Load().heldLen(0, s.h)
}

// refuse counts blocks that are not stored; they would stand in r from o on,
// in no run yet if r is nil. What their hashes meant to the holder elsewhere is
// over all the same: it is noted, and ended when the walk is.
func (s *store) refuse(hashes []uint64, r *run, o uint32) {
	s.full = true
	s.out.Refused += len(hashes)
	for i, e := range hashes {
		if p, ok := s.lookup(s.h, e); ok && (p.run != r || p.pos != o+uint32(i)) {
			s.moved = append(s.moved, e)
		}
	}
}

// sizeClass returns the bytes that the allocator takes for n: its size classes
// (runtime/sizeclasses.go), and pages of 8 KiB beyond them.
func sizeClass(n int64) int64 {
	switch {
	case n <= 0:
		return 0
	case n <= 32:
		return (n + 7) &^ 7
	case n <= 256:
		return (n + 15) &^ 15
	case n > 32<<10:
		return (n + 8191) &^ 8191
	case n > 1024:
		return int64(sizeClasses.wide[(n+127)>>7&511])
	}
	return int64(sizeClasses.near[(n+31)>>5&63])
}

// sizeClasses has the classes from 257 bytes on: by 32 bytes up to 1,024, by 128 beyond. Each is
// a multiple of that.
var sizeClasses = func() (t struct {
	near [64]uint16
	wide [512]uint16
}) {
	at := 0
	for _, c := range [...]int{
		288, 320, 352, 384, 416, 448, 480, 512, 576, 640, 704, 768, 896, 1024, 1152, 1280, 1408, 1536, 1792, 2048,
		2304, 2688, 3072, 3200, 3456, 4096, 4864, 5376, 6144, 6528, 6784, 6912, 8192, 9472, 9728, 10240, 10880,
		12288, 13568, 14336, 16384, 18432, 19072, 20480, 21760, 24576, 27264, 28672, 32768,
	} {
		for ; at < c; at += 32 {
			if at < 1024 {
				t.near[at>>5+1] = uint16(c)
			}
			t.wide[at>>7+1] = uint16(c)
		}
	}
	return t
}()

// classSlots rounds a number of hashes up to what their size class holds.
func classSlots(n int) int { return int(sizeClass(int64(n)*8) / 8) }
