package mock

import "slices"

// cache is a pool of KV blocks. A block is named, and holds the content that its engine hash
// names, or blank: nothing else can find what it holds. It is free, what it holds reusable until
// it is evicted, or in use by requests.
//
// Named blocks stand in runs, and all that is done to blocks of one prompt together is done to
// runs: a prompt of hundreds of blocks has a few. As a name tells all that is before it, a
// prompt that has a run's last name at its place has all of the run's. Who uses a block uses those before
// it, and gives them up after it: so a block is evicted before what it extends.
type cache struct {
	size, free int
	blank      int    // of the free ones: they are the next victims
	held       int    // named ones
	freed      uint64 // how often blocks became free

	runs    []run // by number; 0 is the sentinel of the LRU list, and nobody's
	spare   []int32
	byFirst names    // runs by the names that they begin with
	path    []int32  // of the last match
	evicted []uint64 // names that were evicted since the last flush, in order
}

// run is some named blocks in a row: whoever uses one of them uses all, and those of its parent.
type run struct {
	names      []uint64
	parent     int32 // the run that it goes on; 0 at the beginning of a prompt
	kids       int32 // runs that go on this one
	refs       int32 // requests that use it
	prev, next int32 // LRU list of those that none uses: next victim, from its last block on, first
}

func newCache(blocks int) *cache {
	return &cache{size: blocks, free: blocks, blank: blocks, runs: make([]run, 1), byFirst: newNames()}
}

// link puts a run into the LRU list before the run at.
func (c *cache) link(r, at int32) {
	of, next := &c.runs[r], &c.runs[at]
	of.prev, of.next = next.prev, at
	c.runs[next.prev].next, next.prev = r, r
}

func (c *cache) unlink(r int32) {
	of := &c.runs[r]
	c.runs[of.prev].next, c.runs[of.next].prev = of.next, of.prev
}

// add makes a run and returns its number.
func (c *cache) add(r run) int32 {
	n := int32(len(c.runs))
	if k := len(c.spare); k > 0 {
		n, c.spare = c.spare[k-1], c.spare[:k-1]
		c.runs[n] = r
	} else {
		c.runs = append(c.runs, r)
	}
	c.byFirst.set(r.names[0], n)
	return n
}

// match returns how many of the names, which follow what the cache has, it has in a row from the first on.
func (c *cache) match(names []uint64) (blocks int) {
	c.path = c.path[:0]
	for blocks < len(names) {
		r, ok := c.byFirst.get(names[blocks])
		if !ok {
			break
		}
		of := c.runs[r].names
		n := common(of, names[blocks:])
		blocks += n
		c.path = append(c.path, r)
		if n < len(of) {
			break
		}
	}
	return blocks
}

// matchAfter is match for names that follow those of s. As a rule no run goes on its last one,
// which is at hand, where to look for a name is not.
func (c *cache) matchAfter(s *sequence, names []uint64) (blocks int) {
	if s.last != 0 && c.runs[s.last].kids == 0 {
		return 0
	}
	return c.match(names)
}

// common returns how many names a and b, of which the first is the same, have in common: once
// they differ they do so to their ends.
func common(a, b []uint64) int {
	n := min(len(a), len(b))
	if a[n-1] == b[n-1] {
		return n
	}
	same, other := 0, n-1
	for other-same > 1 {
		if mid := (same + other) / 2; a[mid] == b[mid] {
			same = mid
		} else {
			other = mid
		}
	}
	return other
}

// idle returns how many of the first blocks of the last match are free.
func (c *cache) idle(blocks int) (free int) {
	for _, r := range c.path {
		n := min(len(c.runs[r].names), blocks)
		if blocks -= n; c.runs[r].refs == 0 {
			free += n
		}
	}
	return free
}

// use lets s use the first blocks of the last match, which follow those that it uses.
func (c *cache) use(s *sequence, blocks int) {
	for _, r := range c.path {
		if blocks == 0 {
			break
		}
		if len(c.runs[r].names) > blocks {
			r = c.split(r, blocks)
		}
		of := &c.runs[r]
		n := len(of.names)
		if of.refs == 0 {
			c.unlink(r)
			c.free -= n
		}
		of.refs++
		s.last, s.named, s.blocks = r, s.named+n, s.blocks+n
		blocks -= n
	}
}

// split makes the first blocks of a run one of their own and returns it. The rest keeps its
// number, by which it is in use.
func (c *cache) split(r int32, blocks int) (front int32) {
	of := c.runs[r]
	front = c.add(run{names: of.names[:blocks:blocks], parent: of.parent, kids: 1, refs: of.refs})
	if of.refs == 0 {
		c.link(front, of.next)
	}
	rest := &c.runs[r]
	rest.names, rest.parent = of.names[blocks:], front
	c.byFirst.set(rest.names[0], r)
	return front
}

// name gives so many of s's blank blocks, the next ones, their names.
func (c *cache) name(s *sequence, blocks int) {
	rest := s.name[s.named:] // for all of which there is room, as they follow
	if last := &c.runs[s.last]; s.last != 0 && last.refs == 1 && last.kids == 0 {
		last.names = append(slices.Grow(last.names, len(rest)), rest[:blocks]...) // they come and go together
	} else {
		last.kids++
		s.last = c.add(run{names: append(make([]uint64, 0, len(rest)), rest[:blocks]...), parent: s.last, refs: 1})
	}
	s.named += blocks
	c.held += blocks
}

// giveBlank makes so many blank blocks of s free.
func (c *cache) giveBlank(s *sequence, blocks int) {
	if blocks > 0 {
		c.freed++
	}
	s.blocks -= blocks
	c.blank += blocks
	c.free += blocks
}

// release gives up the blocks of s.
func (c *cache) release(s *sequence) {
	c.giveBlank(s, s.blocks-s.named)
	for r := s.last; r != 0; r = c.runs[r].parent {
		of := &c.runs[r]
		if of.refs--; of.refs == 0 {
			c.link(r, 0)
			c.free += len(of.names)
			c.freed++
		}
	}
	s.last, s.named, s.blocks = 0, 0, 0
}

// take gives s a blank block, the next victim, and returns what it was. The caller has checked
// that one is free.
func (c *cache) take(s *sequence) (name uint64, named bool) {
	c.free--
	s.blocks++
	if c.blank > 0 {
		c.blank--
		return 0, false
	}
	r := c.runs[0].next
	of := &c.runs[r]
	last := len(of.names) - 1
	name, of.names = of.names[last], of.names[:last]
	if last == 0 {
		c.unlink(r)
		c.byFirst.remove(name)
		c.runs[of.parent].kids--
		*of = run{}
		c.spare = append(c.spare, r)
	}
	c.held--
	c.evicted = append(c.evicted, name)
	return name, true
}

// clear makes all blocks blank; none may be in use.
func (c *cache) clear() {
	*c = *newCache(c.size)
}
