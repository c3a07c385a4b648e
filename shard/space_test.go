package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// gated is an index whose writes wait at a gate, and whose lookups call a
// hook once they have their answer.
type gated struct {
	core.Index
	gate  chan struct{} // nil: open
	found func()
}

func (g *gated) Store(h core.Holder, ev *event.Event, countCopies bool) core.Outcome {
	if g.gate != nil {
		<-g.gate
	}
	return g.Index.Store(h, ev, countCopies)
}

func (g *gated) Find(local []uint64, m *core.Matches) {
	g.Index.Find(local, m)
	if g.found != nil {
		g.found()
	}
}

// chain is a batch that stores one chain for a rank, names equal to contents.
func chain(worker uint64, dpRank uint32, hashes ...uint64) *event.Batch {
	return &event.Batch{Space: testSpace, Worker: worker, Events: []event.Event{
		{Kind: event.Stored, DPRank: dpRank, Engine: hashes, Local: hashes},
	}}
}

func apply(t testing.TB, sp *Space, b *event.Batch) core.Outcome {
	t.Helper()
	out, err := sp.ApplyWait(context.Background(), b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// depths returns the device depths of one lookup.
func depths(sp *Space, query ...uint64) map[RankID]uint32 {
	var r Result
	found := map[RankID]uint32{}
	sp.Find(query, &r)
	r.Each(func(id RankID, depth [event.NumTiers]uint32) { found[id] = depth[event.Device] })
	return found
}

func TestOpenLookupSpaces(t *testing.T) {
	set := New(Config{MaxSpaces: 3})
	defer set.Close()
	keys := []event.Space{{Model: "a", BlockSize: 16}, {Model: "a", BlockSize: 32}, {Model: "a", BlockSize: 32, Group: "x"}}
	for _, k := range []int{2, 0, 1, 2} {
		sp, err := set.Open(keys[k])
		if err != nil {
			t.Fatal(err)
		}
		if set.Lookup(keys[k]) != sp || sp.Key() != keys[k] {
			t.Fatalf("Lookup(%v) finds another space", keys[k])
		}
	}
	if got := set.Spaces(); !slices.Equal(got, keys) {
		t.Errorf("Spaces() = %v", got)
	}
	if set.Lookup(event.Space{Model: "b", BlockSize: 16}) != nil {
		t.Error("Lookup finds a space that was not opened")
	}
	if _, err := set.Open(event.Space{Model: "b", BlockSize: 16}); !errors.Is(err, ErrTooManySpaces) {
		t.Errorf("a fourth space: %v", err)
	}
	if _, err := set.Open(event.Space{Model: "b"}); err == nil {
		t.Error("block size 0 is accepted")
	}
	sp := set.Lookup(keys[0])
	if err := sp.Apply(t.Context(), &event.Batch{Space: keys[1]}, nil); !errors.Is(err, ErrOtherSpace) {
		t.Errorf("a batch of another space: %v", err)
	}
	set.Close()
	if _, err := set.Open(event.Space{Model: "c", BlockSize: 16}); !errors.Is(err, ErrClosed) {
		t.Errorf("Open after Close: %v", err)
	}
}

// TestLookupsBesidePublishers checks the answers of lookups during writes.
func TestLookupsBesidePublishers(t *testing.T) {
	for i, shards := range []int{1, 2, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			for _, g := range dealt(i, 3) {
				sp := openSpace(t, Config{Shards: shards})
				err := coretest.Beside(history(g, 7), 7, 2,
					func(op *coretest.Op) error {
						_, err := sp.ApplyWait(context.Background(), batchOf([]coretest.Op{*op}))
						return err
					},
					func() func(coretest.Query) (coretest.Answer, error) {
						var r Result
						return func(q coretest.Query) (coretest.Answer, error) {
							if q.Unfold {
								q.Local = sp.Unfold(nil, blockhash.SequenceHashes(nil, q.Local))
							}
							r.EarlyExit = q.Early
							return answer(sp, q.Local, &r), nil
						}
					})
				if err != nil {
					t.Errorf("%s: %v", g.Name, err)
				}
			}
		})
	}
}

func TestFullQueueChangesNothing(t *testing.T) {
	for _, shards := range []int{1, 3} {
		gate := make(chan struct{})
		set := New(Config{Shards: shards, Queue: 2, NewIndex: func() core.Index {
			return &gated{Index: core.NewRadix(core.Options{}), gate: gate}
		}})
		sp, err := set.Open(testSpace)
		if err != nil {
			t.Fatal(err)
		}
		var applied atomic.Int32
		done := func(core.Outcome) { applied.Add(1) }
		for w := range uint64(2) {
			if err := sp.Apply(t.Context(), chain(w, 0, 1, 2), done); err != nil {
				t.Fatal(err)
			}
		}
		if st := sp.Stats(); st.Queued != 2 || st.Queue != 2 || st.Ranks != 2 {
			t.Errorf("Stats() = %+v", st)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := sp.Apply(ctx, chain(9, 0, 1, 2), done); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Apply on a full queue: %v", err)
		}
		if err := sp.RemoveWorker(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("RemoveWorker on a full queue: %v", err)
		}
		cancel()
		close(gate)
		set.Close()
		if n := applied.Load(); n != 2 {
			t.Errorf("%d batches applied, want 2", n)
		}
		if got := depths(sp, 1, 2); len(got) != 2 || got[RankID{0, 0}] != 2 || got[RankID{1, 0}] != 2 {
			t.Errorf("found %v", got)
		}
		if got := sp.Ranks(); len(got) != 2 {
			t.Errorf("Ranks() = %v", got)
		}
	}
}

func TestCloseDrains(t *testing.T) {
	gate := make(chan struct{})
	set := New(Config{Shards: 2, Queue: 100, NewIndex: func() core.Index {
		return &gated{Index: core.NewRadix(core.Options{}), gate: gate}
	}})
	sp, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	var applied atomic.Int32
	for w := range uint64(100) {
		if err := sp.Apply(t.Context(), chain(w, 0, w, 1), func(core.Outcome) { applied.Add(1) }); err != nil {
			t.Fatal(err)
		}
	}
	closed := make(chan struct{})
	go func() {
		set.Close()
		close(closed)
	}()
	// This one waits for room, which there is only when Close has begun to
	// drain: it is refused or applied as a whole.
	late := make(chan error)
	go func() { late <- sp.Apply(t.Context(), chain(100, 0, 100, 1), func(core.Outcome) { applied.Add(1) }) }()
	close(gate)
	<-closed
	want := int32(101)
	if err := <-late; errors.Is(err, ErrClosed) {
		want--
	} else if err != nil {
		t.Error(err)
	}
	if n := applied.Load(); n != want {
		t.Errorf("%d batches applied before Close returned, want %d", n, want)
	}
	if _, err := sp.ApplyWait(t.Context(), chain(1, 0, 5)); !errors.Is(err, ErrClosed) {
		t.Errorf("Apply after Close: %v", err)
	}
	if err := sp.RemoveWorker(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("RemoveWorker after Close: %v", err)
	}
	if _, err := sp.Digest(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("Digest after Close: %v", err)
	}
	if got := depths(sp, 7, 1); got[RankID{7, 0}] != 2 {
		t.Errorf("lookup after Close found %v", got)
	}
	set.Close() // again
}

func TestRemoveWorkerAndRank(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for w := range uint64(3) {
		for dp := range uint32(2) {
			apply(t, sp, chain(w, dp, 1, 2, 3))
			apply(t, sp, chain(w, dp, 4, 5))
		}
	}
	if err := sp.RemoveWorker(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := sp.RemoveRank(t.Context(), RankID{2, 0}); err != nil {
		t.Fatal(err)
	}
	if err := sp.RemoveWorker(t.Context(), 77); err != nil {
		t.Fatal(err)
	}
	got := depths(sp, 1, 2, 3)
	if len(got) != 3 || got[RankID{0, 0}] != 3 || got[RankID{0, 1}] != 3 || got[RankID{2, 1}] != 3 {
		t.Errorf("found %v", got)
	}
	want := []RankStat{{RankID: RankID{0, 0}, Held: [4]int{5}}, {RankID: RankID{0, 1}, Held: [4]int{5}}, {RankID: RankID{2, 1}, Held: [4]int{5}}}
	if got := sp.Ranks(); !slices.Equal(got, want) {
		t.Errorf("Ranks() = %v", got)
	}
	// What comes back starts with nothing, and takes the numbers that are free.
	out := apply(t, sp, &event.Batch{Space: testSpace, Worker: 1, Events: []event.Event{
		{Kind: event.Stored, HasParent: true, Parent: 3, Engine: []uint64{4}, Local: []uint64{4}},
	}})
	if out != (core.Outcome{UnknownParent: 1}) {
		t.Errorf("a store below what was removed: %+v", out)
	}
	for w := range uint64(2) {
		apply(t, sp, chain(10+w, 0, 1, 2))
	}
	for i := range *sp.table.slots.Load() {
		if m := (*sp.table.slots.Load())[i].Load(); m != nil && i >= 6 {
			t.Errorf("%v has the number %d though there are 6 ranks", m.id, i)
		}
	}
}

// TestEventsOfUnknownRanks: removals and clears of a rank that has stored
// nothing make no rank.
func TestEventsOfUnknownRanks(t *testing.T) {
	for _, shards := range []int{1, 2} {
		sp := openSpace(t, Config{Shards: shards, MaxRanks: 1})
		b := &event.Batch{Space: testSpace, Worker: 5, Events: []event.Event{
			{Kind: event.Removed, Engine: []uint64{1, 2}}, {Kind: event.Cleared, AllTiers: true},
		}}
		if out := apply(t, sp, b); out != (core.Outcome{Unknown: 2}) {
			t.Errorf("outcome %+v", out)
		}
		if got := sp.Ranks(); len(got) != 0 {
			t.Errorf("Ranks() = %v", got)
		}
		if out := apply(t, sp, chain(5, 0, 1, 2)); out != (core.Outcome{Stored: 2}) {
			t.Errorf("outcome %+v", out)
		}
		if out := apply(t, sp, chain(5, 1, 1, 2)); out != (core.Outcome{Refused: 2}) {
			t.Errorf("outcome beyond MaxRanks: %+v", out)
		}
		if out := apply(t, sp, &event.Batch{Space: testSpace, Worker: 5, Events: []event.Event{
			{Kind: event.Stored, Tier: 9, Engine: []uint64{3}, Local: []uint64{3}}, {Kind: event.Removed, Tier: 4, Engine: []uint64{1}}, {Kind: 77},
		}}); out != (core.Outcome{}) {
			t.Errorf("outcome of a tier that does not exist: %+v", out)
		}
	}
}

// TestReusedNumberIsNotCredited removes a worker after a lookup has its answer
// and gives its number to another before the answer is read.
func TestReusedNumberIsNotCredited(t *testing.T) {
	index := &gated{Index: core.NewRadix(core.Options{})}
	sp := openSpace(t, Config{Shards: 1, NewIndex: func() core.Index { return index }})
	apply(t, sp, chain(1, 0, 1, 2, 3))
	index.found = func() {
		index.found = nil
		if err := sp.RemoveWorker(context.Background(), 1); err != nil {
			t.Error(err)
		}
		apply(t, sp, chain(2, 0, 9))
		if m := sp.table.find(RankID{2, 0}); m == nil || m.holder.Load() != 0 {
			t.Fatalf("the number was not reused: %+v", m)
		}
	}
	if got := depths(sp, 1, 2, 3); len(got) != 0 {
		t.Errorf("found %v", got)
	}
	if got := depths(sp, 9); got[RankID{2, 0}] != 1 {
		t.Errorf("found %v", got)
	}
	// Nor if the answer is read only later.
	var r Result
	sp.Find([]uint64{9}, &r)
	if err := sp.RemoveRank(t.Context(), RankID{2, 0}); err != nil {
		t.Fatal(err)
	}
	apply(t, sp, chain(3, 0, 8))
	r.Each(func(id RankID, depth [event.NumTiers]uint32) { t.Errorf("%v is credited with %v", id, depth) })
}

// TestWorkersComeAndGo lets workers store a chain of their own below a shared
// block and leave again, beside lookups: nobody is ever credited with the
// chain of another.
func TestWorkersComeAndGo(t *testing.T) {
	for _, shards := range []int{1, 3} {
		sp := openSpace(t, Config{Shards: shards})
		const workers = 12
		var finds atomic.Int64
		var stop atomic.Bool
		var readers, writers sync.WaitGroup
		for seed := range uint64(2) {
			readers.Go(func() {
				r := rand.New(rand.NewPCG(seed, 9))
				var res Result
				for !stop.Load() {
					w := r.Uint64N(workers)
					sp.Find([]uint64{7, 100 + w, 200 + w}, &res)
					res.Each(func(id RankID, depth [event.NumTiers]uint32) {
						if id.Worker != w && depth[event.Device] > 1 {
							t.Errorf("worker %d is credited with the chain of worker %d", id.Worker, w)
							stop.Store(true)
						}
					})
					sp.Ranks()
					finds.Add(1)
				}
			})
		}
		for first := range uint64(3) {
			writers.Go(func() {
				for round := int64(0); round < 100 && !stop.Load(); round++ {
					for finds.Load() < round*4 {
						runtime.Gosched()
					}
					for w := first; w < workers; w += 3 {
						if err := sp.Apply(t.Context(), chain(w, 0, 7, 100+w, 200+w), nil); err != nil {
							t.Error(err)
						}
					}
					for w := first; w < workers; w += 3 {
						if err := sp.RemoveWorker(t.Context(), w); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		writers.Wait()
		stop.Store(true)
		readers.Wait()
		if got := sp.Ranks(); len(got) != 0 {
			t.Errorf("left: %v", got)
		}
		if d, err := sp.Digest(t.Context()); err != nil || d != 0 {
			t.Errorf("digest %d, %v", d, err)
		}
		if n := len(*sp.table.slots.Load()); n > 16 {
			t.Errorf("%d holder numbers for %d workers", n, workers)
		}
	}
}

// TestDigestAtOnePoint takes digests beside writers: each is that of some
// prefix of the batches, over all shards.
func TestDigestAtOnePoint(t *testing.T) {
	sp := openSpace(t, Config{Shards: 3})
	o := core.NewOracle()
	allowed := map[uint64]bool{}
	note := func() { allowed[o.Digest(SpaceHash(testSpace), identity)] = true }
	note()
	var batches []*event.Batch
	for i := range uint64(200) {
		// Every batch touches several shards.
		b := &event.Batch{Space: testSpace, Worker: 1000}
		for j := range uint64(4) {
			ev := event.Event{Kind: event.Stored, Engine: []uint64{i*8 + j}, Local: []uint64{i*8 + j}}
			o.Store(0, &ev, false)
			b.Events = append(b.Events, ev)
		}
		note()
		batches = append(batches, b)
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		for _, b := range batches {
			if err := sp.Apply(t.Context(), b, nil); err != nil {
				t.Error(err)
			}
		}
	})
	for range 50 {
		d, err := sp.Digest(t.Context())
		if err != nil || !allowed[d] {
			t.Fatalf("digest %#x (%v) is of no prefix of the batches", d, err)
		}
	}
	writer.Wait()
}

func TestResultAllocatesNothing(t *testing.T) {
	sp := openSpace(t, Config{})
	for w := range uint64(300) {
		apply(t, sp, chain(w, 0, 1, 2, 3))
	}
	var r Result
	prompt := []uint64{1, 2, 3}
	sum := uint32(0)
	if n := testing.AllocsPerRun(10, func() {
		sp.Find(prompt, &r)
		r.Each(func(_ RankID, depth [event.NumTiers]uint32) { sum += depth[event.External] })
	}); n != 0 {
		t.Errorf("Find and Each allocate %v times", n)
	}
	if sum == 0 || sum%900 != 0 {
		t.Errorf("sum of depths %d", sum)
	}
	if ranks, blocks := r.Sum(event.Device); ranks != 300 || blocks != 900 {
		t.Errorf("Sum() = %d, %d", ranks, blocks)
	}
	sp.Find(nil, &r)
	r.Each(func(id RankID, _ [event.NumTiers]uint32) { t.Errorf("%v matches an empty prompt", id) })
}
