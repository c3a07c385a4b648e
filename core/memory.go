package core

// Memory is what an index holds, in bytes by kind. It follows every
// allocation, rounded to the allocator's size classes where that matters.
type Memory struct {
	Content   int64 // local hashes
	Names     int64 // engine hashes
	Directory int64 // engine hash → block
	Runs      int64 // runs, bodies, segment lists
	Children  int64
	Coverage  int64 // cut-offs
	Records   int64 // what is not ordinary: holes, lower tiers, copies, own names
	Links     int64
	Holders   int64
	Tables    int64 // run table, names entered more than once
}

// Total returns the sum.
func (m Memory) Total() int64 {
	return m.Content + m.Names + m.Directory + m.Runs + m.Children + m.Coverage + m.Records + m.Links + m.Holders + m.Tables
}

const holderBytes = 144

// Memory returns the bytes in use. It belongs to the writer.
func (x *Radix) Memory() Memory {
	m := x.mem
	m.Names = x.arena.bytes()
	m.Directory = x.dir.bytes()
	m.Holders += int64(cap(x.holders)) * 8
	m.Tables = int64(cap(x.runs))*8 + int64(cap(x.freeIDs))*4 + int64(len(x.dups))*64 + int64(cap(x.entries))*8
	return m
}

// MappedBytes returns how many of the bytes in use are not on the Go heap. It
// may be called beside the writer.
func (x *Radix) MappedBytes() int64 { return x.arena.mapped.Load() }

// NearBudget reports whether the index is within a sixteenth of its budget, or
// beyond. It belongs to the writer.
func (x *Radix) NearBudget() bool {
	return x.arena.inUse >= maxSegs || x.opts.Budget > 0 && x.Memory().Total() > x.opts.Budget-x.opts.Budget/16
}

// overBudget reports whether new blocks of the holder are to be refused.
func (s *store) overBudget() bool {
	if s.arena.inUse >= maxSegs {
		return true
	}
	if s.opts.Budget == 0 {
		return false
	}
	used := s.Memory().Total()
	if used <= s.opts.Budget {
		return false
	}
	if used > s.opts.Budget+s.opts.Budget/16 {
		return true
	}
	holders := 0
	for _, o := range s.holders {
		if o != nil && o.live > 0 {
			holders++
		}
	}
	held := 0
	for _, n := range s.hs.held {
		held += n
	}
	return holders == 0 || held*holders > s.total
}

// classes are the allocator's size classes up to 1 KiB in steps that matter
// here; above, sizes are rounded to an eighth of their power of two.
func sizeClass(n int64) int64 {
	switch {
	case n <= 0:
		return 0
	case n <= 16:
		return (n + 7) &^ 7
	case n <= 256:
		return (n + 15) &^ 15
	case n > 32<<10:
		return (n + 8191) &^ 8191
	}
	step := int64(32)
	for n > step*16 {
		step *= 2
	}
	return (n + step - 1) &^ (step - 1)
}

// classSlots rounds a number of hashes up to what their size class holds.
func classSlots(n int) int { return int(sizeClass(int64(n)*8) / 8) }
