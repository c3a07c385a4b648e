package mock

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// literal is the cache as one would write it on paper: every block by itself.
type literal struct {
	free []*block          // the next victim first
	by   map[uint64]*block // what can be found
}

type block struct {
	name  uint64
	named bool
	uses  int
}

func newLiteral(blocks int) *literal {
	l := &literal{by: map[uint64]*block{}}
	for range blocks {
		l.free = append(l.free, &block{})
	}
	return l
}

func (l *literal) match(names []uint64) (blocks int) {
	for blocks < len(names) && l.by[names[blocks]] != nil {
		blocks++
	}
	return blocks
}

func (l *literal) use(names []uint64) (used []*block) {
	for _, n := range names {
		b := l.by[n]
		if b.uses++; b.uses == 1 {
			l.free = slices.DeleteFunc(l.free, func(o *block) bool { return o == b })
		}
		used = append(used, b)
	}
	return used
}

func (l *literal) take() (b *block, name uint64, named bool) {
	b, l.free = l.free[0], l.free[1:]
	name, named = b.name, b.named
	delete(l.by, name)
	*b = block{uses: 1}
	return b, name, named
}

// release gives up blocks, the last first; what cannot be found is the next victim.
func (l *literal) release(used []*block) {
	for _, b := range slices.Backward(used) {
		if b.uses--; b.uses == 0 && b.named {
			l.free = append(l.free, b)
		} else if b.uses == 0 {
			l.free = slices.Insert(l.free, 0, b)
		}
	}
}

// TestCacheIsLiteral: on random histories of requests that share prefixes, the cache finds, lets go and evicts what single
// blocks in a list would: the least recently used first, of a prompt the last, and none that a request uses.
func TestCacheIsLiteral(t *testing.T) {
	type request struct {
		sequence
		used []*block
	}
	var evicted, shared, found, pinned int
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 3))
		size := 1 + rng.IntN(60)
		c, l := newCache(size), newLiteral(size)
		var live []*request
		chain := func() []uint64 { // a name tells all that is before it
			names, name := make([]uint64, rng.IntN(size+1)), seed
			for i := range names {
				name = name*0x9e3779b97f4a7c15 + rng.Uint64N(1+rng.Uint64N(3)) + 1
				names[i] = name
			}
			return names
		}
		// compute makes the next blocks of the prompt ones that can be found, unless another request's can be.
		compute := func(q *request, n int) {
			to := min(q.named+n, len(q.name), q.blocks)
			n = c.match(q.name[q.named:to])
			if want := l.match(q.name[q.named:to]); n != want {
				t.Fatalf("seed %d: %d blocks are found, want %d", seed, n, want)
			}
			if n > 0 {
				shared += n
				l.release(q.used[len(q.used)-n:])
				q.used = slices.Insert(q.used[:len(q.used)-n], q.named, l.use(q.name[q.named:q.named+n])...)
				c.giveBlank(&q.sequence, n)
				c.use(&q.sequence, n)
			}
			if q.named < to {
				for i, name := range q.name[q.named:to] {
					b := q.used[q.named+i]
					b.name, b.named, l.by[name] = name, true, b
				}
				c.name(&q.sequence, to-q.named)
			}
		}
		for range 600 {
			switch rng.IntN(4) {
			case 0:
				q := &request{sequence: sequence{name: chain()}}
				want := q.name[:rng.IntN(len(q.name)+1)]
				cached := c.match(want)
				if n := l.match(want); n != cached {
					t.Fatalf("seed %d: %d blocks are found, want %d", seed, cached, n)
				}
				idle := 0
				for _, name := range want[:cached] {
					if l.by[name].uses == 0 {
						idle++
					}
				}
				if n := c.idle(cached); n != idle {
					t.Fatalf("seed %d: %d of the %d blocks that are found are free, want %d", seed, n, cached, idle)
				}
				need := len(q.name) - cached + rng.IntN(2)
				if c.free-idle < need {
					continue
				}
				found += cached
				c.use(&q.sequence, cached)
				q.used = l.use(q.name[:cached])
				for range need {
					b, name, named := l.take()
					if got, is := c.take(&q.sequence); got != name && named || is != named {
						t.Fatalf("seed %d: %x (%v) is evicted, want %x (%v)", seed, got, is, name, named)
					}
					if q.used = append(q.used, b); named {
						evicted++
					}
				}
				live = append(live, q)
			case 1, 2:
				if len(live) > 0 {
					compute(live[rng.IntN(len(live))], 1+rng.IntN(size))
				}
			default:
				if len(live) > 0 {
					i := rng.IntN(len(live))
					c.release(&live[i].sequence)
					l.release(live[i].used)
					live = slices.Delete(live, i, i+1)
				} else if rng.IntN(20) == 0 {
					c.clear()
					l = newLiteral(size)
				}
			}
			if len(l.free) < size {
				pinned++
			}
			if c.free != len(l.free) || c.held != len(l.by) {
				t.Fatalf("seed %d: %d blocks are free, %d can be found, want %d and %d", seed, c.free, c.held, len(l.free), len(l.by))
			}
		}
	}
	if evicted < 1000 || shared < 1000 || found < 1000 || pinned < 1000 {
		t.Errorf("%d evicted, %d shared, %d found, %d times some in use: it shows little", evicted, shared, found, pinned)
	}
}

// TestPoolIsLiteral: a lower tier lets the least recently used go, and tells what it has got and lost.
func TestPoolIsLiteral(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 4))
		size := 1 + rng.IntN(20)
		p := newPool(0, size)
		var list, told []uint64 // the next victim first; what was there when last told
		for range 500 {
			name := rng.Uint64N(uint64(2 * size))
			at := slices.Index(list, name)
			switch rng.IntN(8) {
			default:
				var want uint64
				full := at < 0 && len(list) == size
				if full {
					want, list = list[0], list[1:]
				} else if at >= 0 {
					list = slices.Delete(list, at, at+1)
				}
				list = append(list, name)
				if victim, is := p.put(name); is != full || victim != want {
					t.Fatalf("seed %d: %d (%v) leaves, want %d (%v)", seed, victim, is, want, full)
				}
			case 0, 1:
				if p.touch(name); at >= 0 {
					list = append(slices.Delete(list, at, at+1), name)
				}
			case 2:
				in := func(list []uint64, not []uint64) (some []uint64) {
					for _, n := range list {
						if !slices.Contains(not, n) {
							some = append(some, n)
						}
					}
					slices.Sort(some)
					return some
				}
				for gone, want := range map[bool][]uint64{false: in(list, told), true: in(told, list)} {
					got := slices.Clone(p.changes(gone))
					if slices.Sort(got); !slices.Equal(got, want) {
						t.Fatalf("seed %d: gone %v: told of %v, want %v", seed, gone, got, want)
					}
				}
				p.settle()
				told = slices.Clone(list)
			}
			if got := p.appendNames(nil); !slices.Equal(got, list) {
				t.Fatalf("seed %d: it has %v, want %v", seed, got, list)
			}
		}
	}
}
