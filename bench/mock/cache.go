package mock

// cache is a pool of KV blocks. A block is free (in the LRU list, its content
// reusable while it is named) or used by refs requests. A named block holds the
// content that its engine hash names, an anonymous one holds content that
// nothing else can find: a partial block.
type cache struct {
	name   []uint64 // engine hash of each named block
	named  []bool
	refs   []int32
	prev   []int32 // LRU list of the free blocks: next victim first;
	next   []int32 // index len(refs) is its sentinel
	free   int
	freed  uint64 // how often a block became free
	byName names

	evicted []uint64 // names that were evicted since the last flush, in order
}

func newCache(m *Memory, blocks int) *cache {
	c := &cache{
		name: table[uint64](m, blocks), named: table[bool](m, blocks), refs: table[int32](m, blocks),
		prev: table[int32](m, blocks+1), next: table[int32](m, blocks+1),
		byName: newNames(m, blocks),
	}
	end := int32(blocks)
	c.prev[end], c.next[end] = end, end
	for b := range end {
		c.link(b, end)
	}
	return c
}

// link puts block b into the free list before block at.
func (c *cache) link(b, at int32) {
	c.prev[b], c.next[b] = c.prev[at], at
	c.next[c.prev[at]], c.prev[at] = b, b
	c.free++
}

func (c *cache) unlink(b int32) {
	c.next[c.prev[b]], c.prev[c.next[b]] = c.next[b], c.prev[b]
	c.free--
}

// use adds a user to block b.
func (c *cache) use(b int32) {
	if c.refs[b] == 0 {
		c.unlink(b)
	}
	c.refs[b]++
}

// release takes a user from block b. The last one makes it free: the last
// victim if its content can be reused, else the next.
func (c *cache) release(b int32) {
	c.refs[b]--
	if c.refs[b] > 0 {
		return
	}
	c.freed++
	end := int32(len(c.refs))
	if c.named[b] {
		c.link(b, end)
	} else {
		c.link(b, c.next[end])
	}
}

// evict evicts the next victim and returns it, anonymous and used once. The
// caller has checked that a block is free.
func (c *cache) evict() int32 {
	b := c.next[len(c.refs)]
	c.unlink(b)
	c.refs[b] = 1
	if c.named[b] {
		c.named[b] = false
		c.byName.remove(c.name[b])
		c.evicted = append(c.evicted, c.name[b])
	}
	return b
}

// after returns the block of a name that is looked for after that of the block before (below 0 for
// none). Blocks of one prompt are mostly neighbours, as they were evicted in a row: to look there first costs
// less than what byName does where hundreds of engines have one each.
func (c *cache) after(before int32, name uint64) (b int32, ok bool) {
	if before >= 0 {
		for _, b := range [...]int32{before + 1, before - 1} {
			if b >= 0 && int(b) < len(c.name) && c.name[b] == name && c.named[b] {
				return b, true
			}
		}
	}
	return c.byName.get(name)
}

// setName names the anonymous block b.
func (c *cache) setName(b int32, name uint64) {
	c.name[b], c.named[b] = name, true
	c.byName.set(name, b)
}

// clear makes all blocks anonymous; none may be in use.
func (c *cache) clear() {
	clear(c.named)
	c.byName.clear()
}
