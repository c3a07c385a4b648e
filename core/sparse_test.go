package core_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// A temper is how an index treats its holders: how many hashes sparse ones may know, how much they may search and be asked,
// and whether they turn dense, and sparse again, between the operations, for no reason.
type temper struct {
	name   string
	sparse int
	mean   bool // nothing is left to search and ask with, or little
	turns  bool
}

var tempers = []temper{
	{name: "sparse", sparse: 1 << 16},
	{name: "dense"},
	{name: "eight", sparse: 8},
	{name: "mean", sparse: 1 << 16, mean: true},
	{name: "turning", sparse: 1 << 16, turns: true},
	{name: "turning, mean", sparse: 40, turns: true, mean: true},
}

func (v *temper) newRadix() *core.Radix {
	x := core.NewRadix(core.Options{})
	x.SetSparse(v.sparse)
	if v.name == "sparse" {
		x.SetJoinedBound(1 << 20)
	}
	if v.mean || v.turns {
		x.SetEntered(3)
	}
	return x
}

// before is called before each operation.
func (v *temper) before(x *core.Radix, r *rand.Rand) {
	if v.mean {
		x.SetSaved([...]int{0, r.IntN(40), r.IntN(400)}[r.IntN(3)])
		x.SetAsked(r.IntN(6))
	}
	for h := core.Holder(0); v.turns && h < x.Holders(); h++ {
		switch r.IntN(16) {
		case 0:
			x.Turn(h)
		case 1:
			x.Refill(h)
		case 2:
			x.Enter(h)
		}
	}
}

// tempered is an index with a temper, whose writer's structures are verified after each operation.
type tempered struct {
	*core.Radix
	*temper
	r *rand.Rand
	n int
}

func (v *temper) newIndex() core.Index { return v.index(1) }

func (v *temper) index(seed uint64) *tempered {
	return &tempered{Radix: v.newRadix(), temper: v, r: rand.New(rand.NewPCG(seed, 29))}
}

func (x *tempered) done() {
	if x.n++; x.n > 300 && x.n%97 > 0 {
		return
	}
	if err := x.Check(); err != nil {
		panic(err)
	}
}

func (x *tempered) Store(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.Store(h, ev, count)
}

func (x *tempered) StoreCopies(h core.Holder, tier event.Tier, hash uint64, n uint32) core.Outcome {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.StoreCopies(h, tier, hash, n)
}

func (x *tempered) Remove(h core.Holder, ev *event.Event, count bool) core.Outcome {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.Remove(h, ev, count)
}

func (x *tempered) Clear(h core.Holder, tier event.Tier, all bool) core.Outcome {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.Clear(h, tier, all)
}

func (x *tempered) Forget(h core.Holder, hashes []uint64) int {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.Forget(h, hashes)
}

func (x *tempered) Infer(h, from core.Holder, hash uint64) int {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.Infer(h, from, hash)
}

func (x *tempered) StoreFrom(h, from core.Holder, hash uint64, tier event.Tier) core.Outcome {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.StoreFrom(h, from, hash, tier)
}

func (x *tempered) WhoKnows(hash uint64, f func(core.Holder) bool) (core.Holder, bool) {
	x.before(x.Radix, x.r)
	defer x.done()
	return x.Radix.WhoKnows(hash, f)
}

// checkTempered compares an index of each temper, whose name is told to the seeds, with the oracle. What is compared asks
// for all hashes, so that they are entered, and holders become dense for it: so half of the histories are compared at their end only.
func checkTempered(t *testing.T, seeds int, history func(seed uint64) (ops []coretest.Op, interval int)) {
	for i := range tempers {
		v := &tempers[i]
		t.Run(v.name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(seeds) {
				ops, interval := history(seed)
				if seed%2 == 0 {
					interval = len(ops)
				}
				newIndex := func() core.Index { return v.index(seed) }
				if at, err := coretest.Check(newIndex, ops, interval); err != nil {
					short, err := coretest.Minimise(newIndex, ops[:at+1], err, 10*time.Second)
					t.Fatalf("seed %d, operation %d; %d operations are enough:\n%s\n%v", seed, at, len(short), coretest.Print(short), err)
				}
			}
		})
	}
}

// TestHowSparseHoldersAreChangesNothing: whenever holders become dense and sparse, answers are the oracle's.
func TestHowSparseHoldersAreChangesNothing(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			n := 300
			if some := map[string]int{"deep": 60, "fleet": 120, "tiers": 150}[g.Name]; some > 0 {
				n = some // of long chains, which take their time
			}
			checkTempered(t, max(2, g.Seeds/20), func(seed uint64) ([]coretest.Op, int) {
				ops := g.History(seed)
				if seed%4 > 1 {
					ops = clearing(ops, seed) // who comes again is sparse again
				}
				return ops[:min(len(ops), n)], g.Interval
			})
		})
	}
	t.Run("generating", func(t *testing.T) {
		checkTempered(t, 4, func(seed uint64) ([]coretest.Op, int) { return generating(seed, 500), 50 })
	})
}

func FuzzTempered(f *testing.F) {
	f.Fuzz(func(t *testing.T, how uint8, data []byte) {
		ops := coretest.Decode(data)
		v := &tempers[int(how)%len(tempers)]
		interval := 1 + len(ops)/8
		if how >= 128 {
			interval = max(1, len(ops))
		}
		if _, err := coretest.Check(v.newIndex, ops, interval); err != nil {
			t.Fatalf("%s: %s\n%v", v.name, coretest.Print(ops), err)
		}
	})
}

// pools returns lists of hashes, to be taken from the beginning, of which filters take many for others: of up to eight lines those
// that are alike, and near ones if they are away from home by a line; others in pairs.
var pools = sync.OnceValue(func() map[string][]uint64 {
	r := rand.New(rand.NewPCG(1, 31))
	var alike, near, pairs, mixed []uint64
	for range 48 {
		alike = append(alike, core.HashUnder(3, 0x5A0001, r.Uint64()))
		near = append(near, core.HashUnder(4, 0x5A0001, r.Uint64()))
	}
	for range 2000 {
		home, tags := r.IntN(8), 1+r.Uint32N(1<<24-1)|1
		pairs = append(pairs, core.HashUnder(home, tags, r.Uint64()), core.HashUnder((home+r.IntN(2))%8, tags, r.Uint64()))
	}
	for i := range alike {
		mixed = append(mixed, pairs[2*i], alike[i], pairs[2*i+1])
		if i%2 == 0 {
			mixed = append(mixed, near[i])
		}
	}
	return map[string][]uint64{"alike": alike, "pairs": pairs, "mixed": append(mixed, pairs[2*len(alike):]...)}
})

// pooled gives the engine hashes of a history names from the pool, as they come; what it has no more for stays. Such of a few
// are spread over it.
func pooled(ops []coretest.Op, pool []uint64) []coretest.Op {
	names := map[uint64]uint64{}
	name := func(e uint64) uint64 {
		n, ok := names[e]
		if !ok {
			if n = e; len(names) < len(pool) {
				n = pool[len(names)]
			}
			names[e] = n
		}
		return n
	}
	ops = slices.Clone(ops)
	for i := range ops {
		ev := &ops[i].Event
		if ev.HasParent {
			ev.Parent = name(ev.Parent)
		}
		if ev.Kind == 0 && ev.HasParent {
			continue // Engine is a holder
		}
		ev.Engine = slices.Clone(ev.Engine)
		for j, e := range ev.Engine {
			ev.Engine[j] = name(e)
		}
	}
	return ops
}

// TestHashesThatFiltersTakeForOthers: filters take most of a history's hashes for others of it, and answers are the
// oracle's.
func TestHashesThatFiltersTakeForOthers(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for name, pool := range pools() {
		for _, g := range coretest.Solo() {
			if g.Name == "deep" || g.Name == "fleet" {
				continue // more hashes than there are in a pool
			}
			t.Run(name+"/"+g.Name, func(t *testing.T) {
				checkTempered(t, max(2, g.Seeds/32), func(seed uint64) ([]coretest.Op, int) {
					ops := g.History(seed)
					if seed%4 > 1 {
						ops = clearing(ops, seed)
					}
					return pooled(ops[:min(len(ops), 150)], pool), g.Interval
				})
			})
		}
	}
}

// homonymous is a history in which most hashes mean several things: each rank calls whatever it stores by the same few
// hashes, and some have the same content, so that each hash has closed blocks, some of them not entered yet, which several ranks know.
func homonymous(seed uint64, n int) []coretest.Op {
	r := rand.New(rand.NewPCG(seed, 37))
	ranks, contents, long := 6+r.IntN(10), uint64(1+r.IntN(8)), 20+r.IntN(30)
	if seed%3 == 0 {
		ranks += 30
	}
	var ops []coretest.Op
	at, end := make([]uint64, ranks), make([]int, ranks) // the content of each, and where it goes on
	h := 0
	for len(ops) < n {
		if r.IntN(3) > 0 { // else once more
			h = r.IntN(ranks)
		}
		first := uint64(1)
		if h%5 == 3 {
			first++ // calls the same blocks otherwise
		}
		ops = append(ops, coretest.Op{Holder: core.Holder(h)})
		ev := &ops[len(ops)-1].Event
		lo := r.IntN(long)
		hi := lo + 1 + r.IntN(long-lo)
		switch k := r.IntN(60); {
		case k < 10 && end[h] > 0 && end[h] < long: // as it generates
			ev.Kind, ev.HasParent, ev.Parent = stored, true, first+uint64(end[h])-1
			ev.Engine, ev.Local = chain(first+uint64(end[h]), 1), []uint64{at[h]<<8 | uint64(end[h]) | 1<<30}
			end[h]++
		case k < 20 && end[h] > 0:
			ev.Kind, ev.Engine = removed, chain(first+uint64(end[h])-1, 1)
			end[h]--
		case k < 40:
			if r.IntN(4) == 0 {
				at[h] = r.Uint64N(contents)
			}
			if ev.Kind = stored; r.IntN(3) > 0 {
				lo = 0
			}
			end[h] = hi
			ev.Engine = chain(first+uint64(lo), hi-lo)
			if ev.HasParent = lo > 0; ev.HasParent {
				ev.Parent = first + uint64(lo) - 1
			}
			for j := lo; j < hi; j++ {
				ev.Local = append(ev.Local, at[h]<<8|uint64(j))
			}
			if r.IntN(3) == 0 {
				ev.Local[r.IntN(hi-lo)] += 1 << 20 << r.IntN(9) // leaves the others there
			}
			if r.IntN(12) == 0 {
				ev.Engine[r.IntN(hi-lo)] = ev.Engine[0] // which may be itself
			}
		case k < 51:
			ev.Kind = removed
			if r.IntN(2) == 0 {
				hi = long
			}
			ev.Engine = chain(first+uint64(lo), hi-lo)
			if r.IntN(4) > 0 {
				slices.Reverse(ev.Engine)
			}
		case k < 53:
			ev.Engine = chain(uint64(lo+1), 1+r.IntN(3)) // Forget
		case k < 56: // Infer or StoreFrom
			ev.HasParent, ev.Parent, ev.AllTiers, ev.DPRank = true, uint64(hi), r.IntN(2) == 0, r.Uint32N(256)
		case k < 58:
			ev.Kind, ev.Engine = stored, chain(first+uint64(lo), hi-lo) // hash-only
			ev.Tier = event.Tier(r.IntN(2))
		default:
			ev.Kind, ev.AllTiers = event.Cleared, r.IntN(2) == 0
		}
	}
	return ops
}

// TestHashesOfManyPositionsEnteredLate: hashes that mean several things to as many ranks are entered where they are only
// once somebody asks, and whoever knows them there is found.
func TestHashesOfManyPositionsEnteredLate(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	checkTempered(t, 6, func(seed uint64) ([]coretest.Op, int) {
		n := 150
		if seed%3 == 0 {
			n = 400
		}
		return homonymous(seed, n), 50
	})
}

// TestBudgetRefusesSparseAndDenseAlike: what is refused, and what it means to refuse it, is the same whether holders are
// sparse or dense.
func TestBudgetRefusesSparseAndDenseAlike(t *testing.T) {
	for _, g := range coretest.Solo()[:2] {
		refused := 0
		for _, seed := range coretest.Seeds(g.Seeds / 8) {
			granted := true
			opts := core.Options{Budget: 1 << 40, Share: func(have, _, _ int64) (int64, bool) { return have, granted }}
			dense, x := core.NewRadix(opts), core.NewRadix(opts)
			v, r := &tempers[seed%uint64(len(tempers))], rand.New(rand.NewPCG(seed, 41))
			dense.SetSparse(0)
			x.SetSparse(v.sparse)
			for i, op := range pooled(g.History(seed), pools()["alike"]) {
				granted = r.IntN(4) > 0
				v.before(x, r)
				got, want := op.Apply(x), op.Apply(dense)
				if refused += got.Refused; got != want {
					t.Fatalf("%s, %s, seed %d, operation %d, %v: %+v, where all are dense %+v", g.Name, v.name, seed, i, op, got, want)
				}
				if err := x.Check(); err != nil {
					t.Fatal(err)
				}
			}
			identity := func(h core.Holder) (uint64, uint32) { return uint64(h), 0 }
			if x.Digest(1, identity) != dense.Digest(1, identity) {
				t.Errorf("%s, seed %d: other blocks are held than where all are dense", g.Name, seed)
			}
		}
		if refused == 0 {
			t.Errorf("%s: nothing is refused", g.Name)
		}
	}
}
