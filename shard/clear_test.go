package shard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// slowly has owners take apart no more than they are paid for.
var slowly = clears{from: 3, step: 40, paid: 1, busy: true}

// often has some of a history's operations clear their holders.
func often(ops []coretest.Op, r *rand.Rand) (all []coretest.Op) {
	for _, op := range ops {
		if all = append(all, op); r.IntN(12) == 0 {
			all = append(all, coretest.Op{Holder: op.Holder, Event: event.Event{Kind: event.Cleared, AllTiers: r.IntN(2) == 0}})
		}
	}
	return all
}

// left returns how many numbers some shard has still something under that is nobody's.
func left(t *testing.T, sp *Space) (n int) {
	t.Helper()
	var mu sync.Mutex
	if err := sp.submitWait(t.Context(), func(k *task) {
		k.inspect = func(o *owner) {
			mu.Lock()
			defer mu.Unlock()
			n = max(n, len(o.leaving))
		}
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestRanksAreClearedAgainAndAgain: ranks are cleared and store anew, workers are removed and come back, and replaced,
// while what they had is taken apart slowly: all that can be asked is as if nothing of it were there. In the end
// nothing of it is, and few numbers were needed.
func TestRanksAreClearedAgainAndAgain(t *testing.T) {
	most := 0
	for i, shards := range []int{1, 2, 3} {
		for _, g := range dealt(i, 3) {
			for _, seed := range coretest.Seeds(max(1, g.Seeds/40)) {
				r := rand.New(rand.NewPCG(seed, 25))
				sp := openSpace(t, Config{Shards: shards, clears: slowly})
				o := core.NewOracle()
				prompts := coretest.NewPrompts(r)
				var gone sync.WaitGroup
				for i, op := range often(history(g, seed), r) {
					have, want := apply(t, sp, batchOf([]coretest.Op{op})), op.Apply(o)
					prompts.Note(&op)
					if have != want {
						t.Fatalf("%d shards, %s, seed %d, operation %d %v: %+v, want %+v", shards, g.Name, seed, i, op, have, want)
					}
					if r.IntN(64) == 0 {
						gone.Add(1)
						removeSoon(t, sp, rankOf(op.Holder), gone.Done)
						o.Clear(op.Holder, 0, true)
					}
					if r.IntN(64) == 0 {
						replaceBy(t, sp, rankOf(op.Holder))
					}
					most = max(most, left(t, sp))
					if (i+1)%g.Interval == 0 {
						if err := compare(sp, o, prompts, 4); err != nil {
							t.Fatalf("%d shards, %s, seed %d, operation %d: %v", shards, g.Name, seed, i, err)
						}
					}
				}
				gone.Wait()
				workers := make(map[uint64]bool)
				for _, rank := range sp.Ranks() {
					workers[rank.Worker] = true
				}
				for w := range workers {
					if err := sp.RemoveWorker(t.Context(), w); err != nil {
						t.Fatal(err)
					}
				}
				empty(t, sp)
			}
		}
	}
	if most < 3 {
		t.Errorf("no more than %d numbers were leaving at a time", most)
	}
}

// removeSoon removes a rank, and has gone called when nothing of it is left.
func removeSoon(t *testing.T, sp *Space, id RankID, gone func()) {
	t.Helper()
	if err := sp.submit(context.Background(), func(k *task) {
		if m := sp.table.find(id); m != nil {
			k.members = append(k.members, m)
			sp.table.remove(m)
		}
		k.done = func(core.Outcome) { gone() }
	}); err != nil {
		t.Fatal(err)
	}
}

// replaceBy replaces what a rank holds by its own dump.
func replaceBy(t *testing.T, sp *Space, id RankID) {
	t.Helper()
	dumped, err := sp.DumpRank(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	p, err := sp.Replace(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dumped {
		if _, err := p.Add(t.Context(), []event.Event{d.Event}, [][]uint32{d.Copies}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := p.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// empty requires that nothing is held, nothing is left, and all numbers are free.
func empty(t *testing.T, sp *Space) {
	t.Helper()
	for range 1 << 20 {
		if left(t, sp) == 0 {
			break
		}
	}
	if err := sp.submitWait(t.Context(), func(k *task) {
		if free, next := len(sp.table.free), int(sp.table.next); free != next {
			t.Errorf("%d of %d numbers are free", free, next)
		}
		k.inspect = func(o *owner) {
			x := o.index.(*core.Radix)
			if m := x.Memory(); m.Holders+m.Runs+m.Content+m.Coverage+m.Exceptions+m.Descendants+m.Children > 0 || len(o.hidden)+len(o.leaving) > 0 {
				t.Errorf("shard %d: %+v, %d hidden, %d leaving", o.number, m, len(o.hidden), len(o.leaving))
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
}

// TestLookupsBesideClears checks the answers of lookups while ranks are cleared all the time.
func TestLookupsBesideClears(t *testing.T) {
	for _, shards := range []int{1, 2} {
		for _, g := range generators() {
			t.Run(fmt.Sprintf("%d/%s", shards, g.Name), func(t *testing.T) {
				sp := openSpace(t, Config{Shards: shards, clears: slowly})
				ops := often(history(g, 8), rand.New(rand.NewPCG(8, 26)))
				err := coretest.Beside(ops, 8, 2,
					func(op *coretest.Op) error {
						_, err := sp.ApplyWait(context.Background(), batchOf([]coretest.Op{*op}))
						return err
					},
					func() func(coretest.Query) (coretest.Answer, error) {
						var r Result
						return func(q coretest.Query) (coretest.Answer, error) {
							r.EarlyExit = q.Early
							return answer(sp, q.Local, &r), nil
						}
					})
				if err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// TestWhatIsClearedDoesNotPileUp: ranks that are filled and cleared without a pause, by an owner that has no other
// time for it, need no more memory than they had, and few numbers.
func TestWhatIsClearedDoesNotPileUp(t *testing.T) {
	const ranks, chains, rounds = 4, 400, 12
	sp := openSpace(t, Config{Shards: 1, clears: clears{paid: 1, busy: true}})
	r := rand.New(rand.NewPCG(1, 27))
	var once, most int64
	used := func() int64 {
		n := int64(0)
		for i := range 10 {
			if i != 1 && i != 2 && i != 9 {
				n += sp.shards[0].account.bytes[i].Load()
			}
		}
		return n
	}
	for round := range rounds {
		for w := range uint64(ranks) {
			for range chains {
				h := r.Uint64()
				apply(t, sp, chain(w, 0, h))
			}
		}
		if most = max(most, used()); round == 0 {
			once = most
		}
		for w := range uint64(ranks) {
			out := apply(t, sp, &event.Batch{Space: testSpace, Worker: w, Events: []event.Event{{Kind: event.Cleared, AllTiers: true}}})
			if out.Removed != chains {
				t.Fatalf("%+v", out)
			}
		}
		if n := left(t, sp); n != ranks {
			t.Fatalf("round %d: %d are leaving", round, n)
		}
	}
	if most > once*5/4 {
		t.Errorf("%d bytes, of which one round needs %d", most, once)
	}
	if n := sp.table.next; n > 3*ranks {
		t.Errorf("%d numbers for %d ranks", n, ranks)
	}
}

// TestNothingIsRefusedForWhatIsCleared: a rank that fills the budget is cleared and stores as much again at once.
func TestNothingIsRefusedForWhatIsCleared(t *testing.T) {
	racetest.Without(t, "what is cleared beside lookups is so in smaller tests")
	set := New(Config{Shards: 1, MemoryBudget: 16 << 20, clears: clears{paid: 1, busy: true}})
	defer set.Close()
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 28))
	chains := 0
	for round := range 6 {
		for n := 0; round == 0 || n < chains*3/4; n++ {
			if out := apply(t, sp, chain(1, 0, r.Uint64())); out.Stored != 1 {
				if chains = n; round > 0 {
					t.Fatalf("%+v of chain %d in round %d", out, n, round)
				}
				break
			}
		}
		apply(t, sp, &event.Batch{Space: testSpace, Worker: 1, Events: []event.Event{{Kind: event.Cleared, AllTiers: true}}})
	}
}

// TestCloseFinishesWhatIsCleared: who waits for a removal is told, although the space is closed meanwhile.
func TestCloseFinishesWhatIsCleared(t *testing.T) {
	set := New(Config{Shards: 2, clears: slowly})
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(1000) {
		apply(t, sp, chain(1, 0, 1+i))
	}
	var gone sync.WaitGroup
	gone.Add(1)
	removeSoon(t, sp, RankID{1, 0}, gone.Done)
	set.Close()
	gone.Wait()
	if len(sp.table.free) != int(sp.table.next) {
		t.Errorf("%d of %d numbers are free", len(sp.table.free), sp.table.next)
	}
}

// beforehand is an index that calls asked before each lookup.
type beforehand struct {
	core.Index
	asked func()
}

func (l *beforehand) Find(local []uint64, m *core.Matches) {
	if f := l.asked; f != nil {
		l.asked = nil
		f()
	}
	l.Index.Find(local, m)
}

// TestTheNumberOfAClearedRankIsNotCredited clears a rank after a lookup has begun, and gives the number that it had to
// another rank before the lookup looks.
func TestTheNumberOfAClearedRankIsNotCredited(t *testing.T) {
	index := &beforehand{Index: core.NewRadix(core.Options{})}
	sp := openSpace(t, Config{Shards: 1, NewIndex: func() core.Index { return index }})
	apply(t, sp, chain(1, 0, 1, 2, 3, 4, 5))
	had := sp.table.find(RankID{1, 0}).holder.Load()
	index.asked = func() {
		apply(t, sp, &event.Batch{Space: testSpace, Worker: 1, Events: []event.Event{{Kind: event.Cleared, AllTiers: true}}})
		apply(t, sp, chain(2, 0, 9))
		if is := sp.table.find(RankID{2, 0}).holder.Load(); is != had {
			t.Fatalf("the number was not reused: %d, and %d before", is, had)
		}
	}
	if got := depths(sp, 9); got[RankID{1, 0}] != 0 || got[RankID{2, 0}] != 1 {
		t.Errorf("found %v", got)
	}
	if got := depths(sp, 1); len(got) != 0 {
		t.Errorf("found %v", got)
	}
}

// TestALittleIsClearedAtOnce: a rank keeps its number as long as it cannot have much, and has another one after it was cleared of
// more; of one tier only if it never had others.
func TestALittleIsClearedAtOnce(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2, clears: clears{from: 4}})
	stored := func(tier event.Tier, hashes ...uint64) {
		b := chain(1, 0, hashes...)
		b.Events[0].Tier = tier
		apply(t, sp, b)
	}
	number := func() uint32 { return sp.table.find(RankID{1, 0}).holder.Load() }
	cleared := func(tier event.Tier, all bool, removed int, moves bool) {
		t.Helper()
		was := number()
		out := apply(t, sp, &event.Batch{Space: testSpace, Worker: 1, Events: []event.Event{{Kind: event.Cleared, Tier: tier, AllTiers: all}}})
		if out.Removed != removed || (number() != was) != moves {
			t.Errorf("%+v, number %d, %d before", out, number(), was)
		}
	}
	stored(event.Device, 1, 2, 3)
	cleared(0, true, 3, false)
	stored(event.Device, 1, 2, 3)
	stored(event.Device, 4, 5)
	cleared(0, true, 5, true)
	stored(event.Device, 1, 2, 3)
	cleared(0, true, 3, false)
	stored(event.HostPinned, 1, 2, 3, 4, 5)
	cleared(event.HostPinned, false, 5, true)
	stored(event.HostPinned, 1, 2, 3)
	stored(event.Device, 1, 2, 3, 4, 5)
	cleared(event.Device, false, 5, false)
	cleared(event.HostPinned, false, 3, false)
}
