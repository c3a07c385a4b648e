package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// dumped collects what an index says about a holder, as batches of events.
func dumped(x core.Index, h core.Holder) (events []event.Event, copies [][]uint32) {
	x.Dump(h, func(ev *event.Event, c []uint32) bool {
		e := *ev
		e.Engine, e.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
		events, copies = append(events, e), append(copies, slices.Clone(c))
		return true
	})
	return events, copies
}

// walk applies random events of one rank to both indexes.
func walk(rng *rand.Rand, steps int, apply func(ev *event.Event, countCopies bool)) {
	countCopies := rng.IntN(2) == 0
	name := func() uint64 { return 1 + rng.Uint64N(40) }
	for range steps {
		ev := event.Event{Kind: event.Stored, Tier: event.Tier(rng.IntN(3))}
		switch rng.IntN(6) {
		case 0, 1:
			ev.Kind = event.Removed
			ev.Engine = []uint64{name(), name()}
		case 2:
			ev.Engine = []uint64{name(), name()} // hash-only
		default:
			ev.HasParent, ev.Parent = rng.IntN(3) > 0, name()
			for range 1 + rng.IntN(4) {
				ev.Engine = append(ev.Engine, name())
				ev.Local = append(ev.Local, rng.Uint64N(6))
			}
		}
		apply(&ev, countCopies)
	}
}

// A rank that is replaced by a dump is what the dumped index has; before the
// commit nothing of it shows, and other ranks stay as they are.
func TestReplaceIsTheDump(t *testing.T) {
	for _, seed := range coretest.Seeds(300) {
		rng := rand.New(rand.NewPCG(seed, 5))
		sp := openSpace(t, Config{Shards: 1 + int(seed%4)})
		want := core.NewOracle()
		ids := []RankID{{1, 0}, {1, 1}, {2, 0}}
		for h, id := range ids {
			walk(rng, 30, func(ev *event.Event, countCopies bool) {
				e := *ev
				e.DPRank = id.DPRank
				apply(t, sp, &event.Batch{Space: testSpace, Worker: id.Worker, CountCopies: countCopies, Events: []event.Event{e}})
				if h > 0 {
					applyTo(want, core.Holder(h), &e, countCopies)
				}
			})
		}
		source := core.NewRadix(core.Options{})
		walk(rng, int(rng.UintN(60)), func(ev *event.Event, countCopies bool) {
			applyTo(source, 9, ev, countCopies)
			applyTo(want, 0, ev, countCopies)
		})
		before := spaceDigest(t, sp)
		p, err := sp.Replace(t.Context(), ids[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, err := sp.Replace(t.Context(), ids[0]); !errors.Is(err, ErrReplacing) {
			t.Fatalf("a second replacement: %v", err)
		}
		events, copies := dumped(source, 9)
		for len(events) > 0 {
			n := 1 + rng.IntN(len(events))
			out, err := p.Add(t.Context(), events[:n], copies[:n])
			if err != nil || out.UnknownParent+out.UnknownBlock > 0 {
				t.Fatalf("seed %d: %+v, %v", seed, out, err)
			}
			events, copies = events[n:], copies[n:]
			if got := spaceDigest(t, sp); got != before {
				t.Fatalf("seed %d: the digest shows what is not committed", seed)
			}
		}
		if _, err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := spaceDigest(t, sp); got != before {
			t.Fatalf("seed %d: the digest shows what is not committed", seed)
		}
		ranks := len(sp.Ranks())
		if seed%5 == 4 {
			if err := p.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := spaceDigest(t, sp); got != before || len(sp.Ranks()) != ranks {
				t.Fatalf("seed %d: an aborted replacement shows", seed)
			}
			continue
		}
		done := make(chan struct{})
		if err := p.Commit(t.Context(), func() { close(done) }); err != nil {
			t.Fatal(err)
		}
		<-done
		got := spaceDigest(t, sp)
		if want := want.Digest(SpaceHash(testSpace), func(h core.Holder) (uint64, uint32) { return ids[h].Worker, ids[h].DPRank }); got != want {
			t.Fatalf("seed %d, %d shards: digest %x, want %x", seed, len(sp.shards), got, want)
		}
		for _, st := range sp.Ranks() {
			h := slices.Index(ids, st.RankID)
			for tier, n := range st.Held {
				if n != want.Held(core.Holder(h), event.Tier(tier)) {
					t.Fatalf("seed %d: %+v held, the oracle's tier %d has %d", seed, st, tier, want.Held(core.Holder(h), event.Tier(tier)))
				}
			}
		}
	}
}

func applyTo(x core.Index, h core.Holder, ev *event.Event, countCopies bool) {
	switch ev.Kind {
	case event.Stored:
		x.Store(h, ev, countCopies)
	case event.Removed:
		x.Remove(h, ev, countCopies)
	}
}

func spaceDigest(t testing.TB, sp *Space) uint64 {
	t.Helper()
	d, err := sp.Digest(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Lookups beside replacements see the old state or the new one, whole.
func TestLookupsBesideReplacementsSeeOneState(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			sp := openSpace(t, Config{Shards: shards})
			apply(t, sp, chain(1, 0, 10, 11, 12))
			short := event.Event{Kind: event.Stored, Engine: []uint64{10, 11, 12}, Local: []uint64{10, 11, 12}}
			long := short
			for b := uint64(100); b < 400; b++ {
				long.Engine = append(long.Engine, b)
			}
			long.Local = long.Engine
			query := long.Engine
			var readers sync.WaitGroup
			over := make(chan struct{})
			for range 2 {
				readers.Go(func() {
					for {
						select {
						case <-over:
							return
						default:
						}
						d := depths(sp, query...)
						if got := d[RankID{1, 0}]; len(d) != 1 || got != 3 && got != 303 {
							t.Errorf("depths %v: neither the old state nor the new", d)
							return
						}
						present := 0
						sp.EachMember(func(Member) { present++ })
						if present != 1 {
							t.Errorf("%d ranks", present)
							return
						}
					}
				})
			}
			for i := range 2000 {
				p, err := sp.Replace(t.Context(), RankID{1, 0})
				if err != nil {
					t.Fatal(err)
				}
				ev := long
				if i%2 == 1 {
					ev = short
				}
				ones := slices.Repeat([]uint32{1}, len(ev.Engine))
				if _, err := p.Add(t.Context(), []event.Event{ev}, [][]uint32{ones}); err != nil {
					t.Fatal(err)
				}
				if _, err := p.Finish(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := p.Commit(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			close(over)
			readers.Wait()
		})
	}
}

// A rank that is removed while it is being replaced stays removed, and its
// numbers are given away again.
func TestARemovedRankIsNotReplaced(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for range 50 {
		apply(t, sp, chain(1, 0, 10, 11))
		p, err := sp.Replace(t.Context(), RankID{1, 0})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Add(t.Context(), chain(1, 0, 10).Events, [][]uint32{{1}}); err != nil {
			t.Fatal(err)
		}
		if err := sp.RemoveWorker(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Finish(t.Context()); !errors.Is(err, ErrRankRemoved) {
			t.Errorf("finishing: %v", err)
		}
		if err := p.Commit(t.Context(), nil); !errors.Is(err, ErrRankRemoved) {
			t.Errorf("committing: %v", err)
		}
		if err := p.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		if d := depths(sp, 10); len(d) != 0 {
			t.Fatalf("depths %v", d)
		}
	}
	if sp.table.next > 2 {
		t.Errorf("%d numbers for one rank and its replacement", sp.table.next)
	}
	if got := spaceDigest(t, sp); got != 0 {
		t.Errorf("digest %x of nothing", got)
	}
}

// An index close to its budget says so, and no longer once it has room.
func TestFullSaysWhetherThereIsRoom(t *testing.T) {
	sp := openSpace(t, Config{MemoryBudget: 4 << 20})
	if sp.Stats().Full {
		t.Fatal("full from the start")
	}
	rng := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for range 6000 {
		blocks := make([]uint64, 64)
		for i := range blocks {
			blocks[i] = rng.Uint64()
		}
		refused += apply(t, sp, chain(1, 0, blocks...)).Refused
	}
	if refused == 0 || !sp.Stats().Full {
		t.Fatalf("%d blocks refused, full: %v", refused, sp.Stats().Full)
	}
	if err := sp.RemoveWorker(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if sp.Stats().Full {
		t.Error("empty, and full")
	}
}
