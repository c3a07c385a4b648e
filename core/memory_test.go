package core_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// filler applies events that it makes from a seed.
type filler struct {
	*core.Radix
	*rand.Rand
	parts int // a fill is to be that many times smaller
}

func (f *filler) hashes(n int) []uint64 {
	s := make([]uint64, n)
	for i := range s {
		s[i] = f.Uint64()
	}
	return s
}

func (f *filler) store(h int, hashes, local []uint64) {
	f.Store(core.Holder(h), &event.Event{Kind: event.Stored, Engine: hashes, Local: local}, true)
}

func (f *filler) storeAfter(h int, parent uint64, hashes, local []uint64) {
	f.Store(core.Holder(h), &event.Event{Kind: event.Stored, HasParent: true, Parent: parent, Engine: hashes, Local: local}, true)
}

func (f *filler) remove(h int, hashes []uint64) {
	f.Remove(core.Holder(h), &event.Event{Kind: event.Removed, Engine: hashes}, true)
}

// fills are ways to fill an index, with the number of holders that they use.
var fills = map[string]func(f *filler) (holders int){
	"conversations": func(f *filler) int {
		system := f.hashes(2 * 40)
		for h := range 64 {
			for range 64 / f.parts {
				hashes, local := append([]uint64(nil), system[:40]...), append([]uint64(nil), system[40:]...)
				for range 1 + f.IntN(6) { // turns, each answered by two workers
					k := 4 + f.IntN(60)
					hashes, local = append(hashes, f.hashes(k)...), append(local, f.hashes(k)...)
					f.store(h, hashes, local)
					f.store((h+7)%64, hashes, local)
					f.remove(h, hashes[len(hashes)-1:])
					hashes, local = hashes[:len(hashes)-1], local[:len(local)-1]
				}
			}
		}
		return 64
	},
	"one-block roots": func(f *filler) int {
		for i := range 200_000 / f.parts {
			f.store(i%16, f.hashes(1), f.hashes(1))
		}
		return 16
	},
	"decoded": func(f *filler) int { // chains that grow by a block an event
		for i := range 500 / f.parts {
			last := f.Uint64()
			f.store(i%16, []uint64{last}, f.hashes(1))
			for range 300 {
				name := f.hashes(1)
				f.storeAfter(i%16, last, name, f.hashes(1))
				last = name[0]
			}
		}
		return 16
	},
	"many holders": func(f *filler) int {
		for range 30 / f.parts {
			hashes, local := f.hashes(50), f.hashes(50)
			for h := range 3000 {
				k := 50
				if h%5 == 0 {
					k = 1 + f.IntN(50)
				}
				f.store(h, hashes[:k], local[:k])
			}
		}
		return 3000
	},
	"few of many holders": func(f *filler) int { // lists that grow
		for range 20_000 / f.parts {
			hashes, local := f.hashes(8), f.hashes(8)
			for range 1 + f.IntN(14) {
				f.store(f.IntN(5000), hashes, local)
			}
		}
		return 5000
	},
	"holes": func(f *filler) int {
		for i := range 1000 / f.parts {
			hashes := f.hashes(200)
			f.store(i%32, hashes, f.hashes(200))
			var odd []uint64
			for j := 1; j < len(hashes); j += 2 {
				odd = append(odd, hashes[j])
			}
			f.remove(i%32, odd)
		}
		return 32
	},
	"copies": func(f *filler) int {
		for i := range 200 / f.parts {
			hashes, local := f.hashes(200), f.hashes(200)
			f.store(i%32, hashes, local)
			f.store(i%32, hashes, local)
		}
		return 32
	},
	"tiers": func(f *filler) int {
		for range 1000 / f.parts {
			hashes, local := f.hashes(60), f.hashes(60)
			for range 10 {
				h := core.Holder(f.IntN(64))
				f.store(int(h), hashes, local)
				f.Store(h, &event.Event{Kind: event.Stored, Tier: event.Tier(1 + f.IntN(3)), Engine: hashes[30:]}, true)
				if f.IntN(2) == 0 {
					f.remove(int(h), hashes[40:])
				}
			}
		}
		return 64
	},
	"wide tiers": func(f *filler) int {
		for range 40 / f.parts {
			hashes, local := f.hashes(60), f.hashes(60)
			for h := range 400 {
				f.store(h, hashes, local)
				f.Store(core.Holder(h), &event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: hashes[:30]}, true)
			}
		}
		return 400
	},
	"100,000 children": func(f *filler) int {
		trunk := f.hashes(1)
		local := f.hashes(1)
		for h := range 16 {
			f.store(h, trunk, local)
		}
		for i := range 100_000 / f.parts {
			f.storeAfter(i%16, trunk[0], f.hashes(1), f.hashes(1))
		}
		return 16
	},
	"children all along": func(f *filler) int { // as many offsets as children
		trunk, local := f.hashes(30_000), f.hashes(30_000)
		f.store(0, trunk, local)
		for i := range trunk {
			f.storeAfter(0, trunk[i], f.hashes(1), f.hashes(1))
		}
		return 1
	},
	"own names": func(f *filler) int {
		for range 200 / f.parts {
			local := f.hashes(100)
			for h := range 20 {
				f.store(h, f.hashes(100), local)
			}
		}
		return 20
	},
	"piled names": func(f *filler) int { // one content named again and again
		for h := range 8 {
			local := f.hashes(20)
			for range 1000 / f.parts {
				f.store(h, f.hashes(20), local)
			}
		}
		return 8
	},
	"closed hashes": func(f *filler) int { // the same hashes for other content
		hashes := f.hashes(200)
		for h := range 256 / f.parts {
			local := f.hashes(200)
			f.store(2*h, hashes, local)
			f.store(2*h+1, hashes, local)
		}
		return 512 / f.parts
	},
	"one own name each": func(f *filler) int { // a segment for one hash
		for range 2000 / f.parts {
			hashes, local := f.hashes(20), f.hashes(20)
			f.store(0, hashes, local)
			for h := 1; h < 8; h++ {
				n := append([]uint64(nil), hashes...)
				n[f.IntN(20)] = f.Uint64()
				f.store(h, n, local)
			}
		}
		return 8
	},
	"same name elsewhere": func(f *filler) int {
		for range 20_000 / f.parts {
			name := f.hashes(1)
			for h := range 4 {
				f.store(h, name, f.hashes(1))
			}
		}
		return 4
	},
	"names rebound": func(f *filler) int {
		hashes := f.hashes(50_000)
		for range 4 {
			for i := 0; i < len(hashes); i += 50 {
				f.store(0, hashes[i:i+50], f.hashes(50))
			}
		}
		return 1
	},
	"evicted ancestors": func(f *filler) int {
		for i := range 4000 / f.parts {
			hashes, h := f.hashes(20), i%64
			f.store(h, hashes, f.hashes(20))
			for j := range 5 {
				f.storeAfter(h, hashes[3*j], f.hashes(3), f.hashes(3))
			}
			f.remove(h, hashes)
		}
		return 64
	},
	"crowded hashes": func(f *filler) int { // chosen to crowd one part of the tables
		for i := range 15_000 / f.parts {
			f.store(i%8, []uint64{f.crowded()}, []uint64{f.crowded()})
		}
		return 8
	},
	"thinned": func(f *filler) int { // nine tenths gone again
		var all [][]uint64
		for i := range 4000 / f.parts {
			hashes := f.hashes(64)
			all = append(all, hashes)
			f.store(i%64, hashes, f.hashes(64))
		}
		for _, i := range f.Perm(len(all))[:len(all)*9/10] {
			f.remove(i%64, all[i])
		}
		return 64
	},
	"thinned children and exceptions": func(f *filler) int {
		trunk := f.hashes(1)
		f.store(0, trunk, f.hashes(1))
		var children [][]uint64
		for range 60_000 / f.parts {
			n := f.hashes(3)
			children = append(children, n)
			f.storeAfter(0, trunk[0], n, f.hashes(3))
			f.remove(0, n[1:2])
		}
		for _, i := range f.Perm(len(children))[:len(children)*9/10] {
			f.remove(0, children[i])
		}
		return 1
	},
}

// crowded returns a hash that shares the leading bits that the tables go by
// with all others that it returns.
func (f *filler) crowded() uint64 {
	for {
		if h := f.Uint64(); f.Mix(h)>>52 == 0 {
			return h
		}
	}
}

// settledHeap returns the live heap.
func settledHeap() int64 {
	var m runtime.MemStats
	for range 3 { // finalisers and cleanups take a round each, and the processor when it is busy
		done := make(chan struct{})
		runtime.AddCleanup(new([64]byte), func(c chan struct{}) { close(c) }, done)
		runtime.GC()
		<-done
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func newFiller(parts int) *filler {
	return &filler{core.NewRadix(core.Options{}), rand.New(rand.NewPCG(1, 2)), parts}
}

// TestMemoryIsWhatTheHeapHas compares what the index says it holds with what
// it holds. Where pointers have 32 bits it holds less: there it says the most.
func TestMemoryIsWhatTheHeapHas(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	for name, fill := range fills {
		t.Run(name, func(t *testing.T) {
			before := settledHeap()
			f := newFiller(2)
			fill(f)
			x := f.Radix
			have := settledHeap() - before + x.MappedBytes()
			said := x.Memory().Total()
			t.Logf("%d bytes, accounted %+.1f %%, %d of it mapped, %+v", have, 100*float64(said-have)/float64(have), x.MappedBytes(), x.Memory())
			most := have / 10
			if strconv.IntSize == 32 {
				most = have * 6 / 10
			}
			if d := said - have; 10*-d > have || d > most {
				t.Errorf("accounted %d bytes, has %d (%+.1f %%)", said, have, 100*float64(d)/float64(have))
			}
			runtime.KeepAlive(f)
		})
	}
}

// TestMemoryGoesBack fills an index, removes everything in several ways, and
// compares what is left with a new index: by kind as accounted, and the heap.
func TestMemoryGoesBack(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	empty := core.NewRadix(core.Options{}).Memory()
	for name, fill := range fills {
		for _, how := range []string{"clear", "remove"} {
			t.Run(fmt.Sprintf("%s/%s", name, how), func(t *testing.T) {
				before := settledHeap()
				f := newFiller(8)
				base := settledHeap() - before
				holders := fill(f)
				for _, h := range f.Perm(holders) {
					if how == "clear" {
						f.Clear(core.Holder(h), 0, true)
						continue
					}
					for tier, hashes := range heldHashes(f.Radix, core.Holder(h)) {
						f.Shuffle(len(hashes), func(i, j int) { hashes[i], hashes[j] = hashes[j], hashes[i] })
						f.Remove(core.Holder(h), &event.Event{Kind: event.Removed, Tier: event.Tier(tier), Engine: hashes}, false)
					}
				}
				if m := f.Memory(); m != empty {
					t.Errorf("accounted afterwards %+v, of a new one %+v", m, empty)
				}
				if left := settledHeap() - before - base; left > 16<<10 || f.MappedBytes() != 0 {
					t.Errorf("%d bytes of heap and %d mapped more than a new one", left, f.MappedBytes())
				}
				runtime.KeepAlive(f)
			})
		}
	}
}

// heldHashes returns the hashes that the holder has copies of, by tier.
func heldHashes(x *core.Radix, h core.Holder) (names [event.NumTiers][]uint64) {
	x.Dump(h, func(ev *event.Event, copies []uint32) bool {
		for i, e := range ev.Engine {
			if copies[i] > 0 {
				names[ev.Tier] = append(names[ev.Tier], e)
			}
		}
		return true
	})
	return names
}

// TestBudgetHolds stores and removes at random under a budget: the index stays
// near it, whatever it is offered; who holds less than a fair share is not
// refused at the budget itself; and once most is removed it takes blocks again.
func TestBudgetHolds(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	const budget = 6 << 20
	for seed := range uint64(4) {
		f := &filler{core.NewRadix(core.Options{Budget: budget}), rand.New(rand.NewPCG(seed, 3)), 1}
		const holders = 32
		var kept [holders][][]uint64 // hashes, of which more may be refused than held
		var known [][2][]uint64
		refused := 0
		for range 60_000 {
			h := f.IntN(holders)
			if h < holders/2 && f.IntN(4) > 0 {
				h = 0 // one that stores far more than others
			}
			var hashes, local []uint64
			switch k := f.IntN(10); {
			case k < 6 || len(known) == 0:
				n := 1 + f.IntN(30)
				hashes, local = f.hashes(n), f.hashes(n)
				known = append(known, [2][]uint64{hashes, local})
			case k < 8:
				c := known[f.IntN(len(known))]
				hashes, local = c[0], c[1]
			case k < 9: // the same content by hashes of the holder's own
				local = known[f.IntN(len(known))][1]
				hashes = f.hashes(len(local))
			default: // holes
				if len(kept[h]) > 0 {
					c := kept[h][f.IntN(len(kept[h]))]
					f.remove(h, c[f.IntN(len(c)):][:1])
				}
				continue
			}
			before := f.Memory().Total()
			out := f.Store(core.Holder(h), &event.Event{Kind: event.Stored, Engine: hashes, Local: local}, f.IntN(4) == 0)
			if got := out.Stored + out.Duplicate + out.Refused; got != len(hashes) {
				t.Fatalf("seed %d: %+v of %d blocks", seed, out, len(hashes))
			}
			if out.Refused > 0 {
				refused++
				if before <= budget/2 && f.Memory().Total() <= budget/2 {
					t.Fatalf("seed %d: refused at %d bytes of %d", seed, before, budget)
				}
			}
			kept[h] = append(kept[h], hashes)
			if got := f.Memory().Total(); out.Stored > 0 && got > budget+4<<20 {
				t.Fatalf("seed %d: %d bytes, budget %d: %+v", seed, got, budget, f.Memory())
			} else if got > budget+5<<20 { // holes need memory too, and removals are not refused
				t.Fatalf("seed %d: %d bytes after removals, budget %d: %+v", seed, got, budget, f.Memory())
			}
		}
		if refused == 0 {
			t.Fatalf("seed %d: nothing was refused", seed)
		}
		if err := f.Check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for h := range holders - 1 {
			f.Clear(core.Holder(h), 0, true)
		}
		if out := f.Store(3, &event.Event{Kind: event.Stored, Engine: f.hashes(100), Local: f.hashes(100)}, false); out.Stored != 100 {
			t.Errorf("seed %d: after removals %+v, %d bytes of %d", seed, out, f.Memory().Total(), budget)
		}
	}
}

// However long an event is, it takes no more than there is.
func TestALongEventKeepsToTheBudget(t *testing.T) {
	const budget, blocks = 2 << 20, 400_000
	f := &filler{core.NewRadix(core.Options{Budget: budget}), rand.New(rand.NewPCG(1, 6)), 1}
	out := f.Store(0, &event.Event{Kind: event.Stored, Engine: f.hashes(blocks), Local: f.hashes(blocks)}, true)
	if got := f.Memory().Total(); got > budget+4<<20 || out.Stored < blocks/10 || out.Refused == 0 || out.Stored+out.Refused != blocks {
		t.Errorf("%+v, %d bytes, budget %d", out, got, budget)
	}
}

// TestBudgetIsFair: at the budget, who holds more than an equal share is
// refused, who holds less is not.
func TestBudgetIsFair(t *testing.T) {
	f := &filler{core.NewRadix(core.Options{Budget: 8 << 20}), rand.New(rand.NewPCG(1, 4)), 1}
	store := func(h int) core.Outcome {
		return f.Store(core.Holder(h), &event.Event{Kind: event.Stored, Engine: f.hashes(20), Local: f.hashes(20)}, true)
	}
	for h := 1; h < 8; h++ {
		store(h)
	}
	for i := 0; store(0).Refused == 0; i++ {
		if i > 1<<20 {
			t.Fatal("the index grows without limit")
		}
	}
	for h := 1; h < 8; h++ {
		if out := store(h); out.Refused > 0 {
			t.Errorf("holder %d, with 20 blocks of %d, is refused", h, f.Held(0, event.Device))
		}
	}
	// What is held stays, and storing it again is no new block.
	if f.Held(0, event.Device) < 1000 {
		t.Errorf("the largest holds %d blocks", f.Held(0, event.Device))
	}
}

// TestRefusedHashesAreNotInvented: a hash that an engine gives to other content
// stops meaning the old one even if the new block is refused.
func TestRefusedHashesAreNotInvented(t *testing.T) {
	f := &filler{core.NewRadix(core.Options{Budget: 1}), rand.New(rand.NewPCG(1, 5)), 1}
	// Beyond its budget from the first event on; the other holder makes ten
	// blocks more than a fair share.
	f.store(1, f.hashes(1), f.hashes(1))
	hashes, local := f.hashes(10), f.hashes(10)
	f.store(0, hashes, local)
	moved := []uint64{f.Uint64(), hashes[8]}
	out := f.Store(0, &event.Event{Kind: event.Stored, Engine: moved, Local: f.hashes(2)}, false)
	if want := (core.Outcome{Refused: 2, Replaced: 1}); out != want {
		t.Errorf("%+v, want %+v", out, want)
	}
	var m core.Matches
	f.Find(local, &m)
	if n, blocks := m.Sum(event.Device); n != 1 || blocks != 8 {
		t.Errorf("%d holders, %d blocks; want 1 and 8", n, blocks)
	}
	out = f.Store(0, &event.Event{Kind: event.Stored, Engine: hashes[:8], Local: local[:8]}, false)
	if want := (core.Outcome{Duplicate: 8}); out != want {
		t.Errorf("what is held already: %+v, want %+v", out, want)
	}
}

// Whatever the budget is, one that nothing can reach refuses nothing.
func TestAnyBudget(t *testing.T) {
	for _, budget := range []int64{math.MinInt64, -1, 0, 1 << 40, math.MaxInt64 - 1, math.MaxInt64} {
		x := core.NewRadix(core.Options{Budget: budget})
		out := x.Store(0, &event.Event{Kind: event.Stored, Engine: []uint64{1, 2}, Local: []uint64{1, 2}}, false)
		if out.Stored != 2 {
			t.Errorf("with a budget of %d: %+v", budget, out)
		}
	}
}

// TestAPromptOfFewOfManyRanks: a run that some of 10,000 ranks hold costs less than
// a held length for each of them.
func TestAPromptOfFewOfManyRanks(t *testing.T) {
	const ranks, prompts, each = 10_000, 50, 17
	f := newFiller(40)
	for h := range ranks {
		f.store(h, f.hashes(1), f.hashes(1))
	}
	before := f.Memory().Coverage
	for i := range prompts {
		hashes, local := f.hashes(5), f.hashes(5)
		for k := range each {
			n := 5 - (i+k)%2
			f.store((i*each+k)*7%ranks, hashes[:n], local[:n])
		}
	}
	if n := (f.Memory().Coverage - before) / prompts; n > ranks*4/2 {
		t.Errorf("the coverage of a run that %d of %d ranks hold takes %d bytes", each, ranks, n)
	} else {
		t.Logf("%d bytes", n)
	}
}
