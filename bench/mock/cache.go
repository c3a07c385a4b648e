package mock

// cache is a pool of KV blocks. A block is free (in the LRU list, its content
// reusable while it is named) or used by refs requests. A named block holds the
// content that its engine hash names, an anonymous one holds content that
// nothing else can find: a partial block.
type cache struct {
	// All that is asked of a block is in one place, as each place is another line of memory to wait for where hundreds of
	// engines take turns. The last one is the LRU list's sentinel.
	blocks []block
	free   int
	freed  uint64 // how often a block became free
	byName names

	evicted []uint64 // names that were evicted since the last flush, in order
}

type block struct {
	name       uint64 // engine hash, if named
	prev, next int32  // LRU list of the free blocks: next victim first
	refs       int32
	named      bool
}

func newCache(m *Memory, blocks int) *cache {
	c := &cache{blocks: table[block](m, blocks+1), byName: newNames(m, blocks)}
	end := c.end()
	c.blocks[end].prev, c.blocks[end].next = end, end
	for b := range end {
		c.link(b, end)
	}
	return c
}

// end is the sentinel.
func (c *cache) end() int32 { return int32(len(c.blocks) - 1) }

// link puts block b into the free list before block at.
func (c *cache) link(b, at int32) {
	of, next := &c.blocks[b], &c.blocks[at]
	of.prev, of.next = next.prev, at
	c.blocks[next.prev].next, next.prev = b, b
	c.free++
}

func (c *cache) unlink(b int32) {
	of := &c.blocks[b]
	c.blocks[of.prev].next, c.blocks[of.next].prev = of.next, of.prev
	c.free--
}

// use adds a user to block b.
func (c *cache) use(b int32) {
	if c.blocks[b].refs == 0 {
		c.unlink(b)
	}
	c.blocks[b].refs++
}

// release takes a user from block b. The last one makes it free: the last
// victim if its content can be reused, else the next.
func (c *cache) release(b int32) {
	of := &c.blocks[b]
	of.refs--
	if of.refs > 0 {
		return
	}
	c.freed++
	end := c.end()
	if of.named {
		c.link(b, end)
	} else {
		c.link(b, c.blocks[end].next)
	}
}

// evict evicts the next victim and returns it, anonymous and used once. The
// caller has checked that a block is free.
func (c *cache) evict() int32 {
	b := c.blocks[c.end()].next
	c.unlink(b)
	of := &c.blocks[b]
	of.refs = 1
	if of.named {
		of.named = false
		c.byName.remove(of.name)
		c.evicted = append(c.evicted, of.name)
	}
	return b
}

// after returns the block of a name that is looked for after that of the block before (below 0 for
// none). Blocks of one prompt are mostly neighbours, as they were evicted in a row: to look there first costs
// less than what byName does where hundreds of engines have one each.
func (c *cache) after(before int32, name uint64) (b int32, ok bool) {
	if before >= 0 {
		for _, b := range [...]int32{before + 1, before - 1} {
			if b < 0 || b >= c.end() {
				continue
			}
			if of := &c.blocks[b]; of.name == name && of.named {
				return b, true
			}
		}
	}
	return c.byName.get(name)
}

// setName names the anonymous block b.
func (c *cache) setName(b int32, name uint64) {
	of := &c.blocks[b]
	of.name, of.named = name, true
	c.byName.set(name, b)
}

// clear makes all blocks anonymous; none may be in use.
func (c *cache) clear() {
	for b := range c.blocks {
		c.blocks[b].named = false
	}
	c.byName.clear()
}
