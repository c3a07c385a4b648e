package ingest

import (
	"bytes"
	"context"
	"encoding/binary"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
	"github.com/kvatlas/kvatlas/shard"
)

// partitionBench is one partition on a real index, fed by hand in place of a reader.
type partitionBench struct {
	t         testing.TB
	partition *partition
	set       *shard.Set
	asked     *asked
	metrics   *metrics.Set
	number    uint64
	ctx       context.Context
}

func newPartitionBench(t testing.TB, change func(*Config)) *partitionBench {
	t.Helper()
	set, open := newIndex(t, 2)
	index, err := open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	b := &partitionBench{t: t, set: set, asked: &asked{}, metrics: metrics.NewSet(), ctx: context.Background()}
	cfg := Config{
		HoldMessages: 8, HoldBytes: 1 << 20, GapWait: time.Hour, MaxRanks: 100, MaxWorkerRanks: 100, MaxMessages: 1 << 20, MaxBytes: 1 << 30,
		Recover: b.asked, Metrics: b.metrics, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	b.partition = newPartition(&shared{
		cfg: &cfg, m: newMeters(b.metrics), space: testSpace, index: index,
		badLog: new(onceASecond),
	})
	b.partition.source(0).reads(testStream)
	return b
}

// feed hands over one message on the worker's subject.
func (b *partitionBench) feed(worker uint64, data []byte) {
	b.t.Helper()
	b.number++
	n, err := b.partition.source(0).window.add(b.ctx, entry{seq: b.number, bytes: len(data)})
	if err != nil {
		b.t.Fatal(err)
	}
	w := b.partition.works.Get().(*work)
	w.begin(worker, data)
	w.source, w.number = b.partition.source(0), n
	b.partition.handle(b.ctx, w)
}

// at has the partition look at what waits, at that time.
func (b *partitionBench) at(now time.Time) {
	b.partition.now = func() time.Time { return now }
	b.partition.expire(b.ctx)
	b.partition.now = time.Now
}

// settle waits until the index has applied everything.
func (b *partitionBench) settle() {
	b.partition.applying.Wait()
	b.partition.readNotes(b.ctx)
}

// finished checks that every message is done with.
func (b *partitionBench) finished() {
	b.t.Helper()
	b.settle()
	if p := b.partition.source(0).window.progress(); p.pos != b.number || p.inFlight != 0 || p.bytes != 0 {
		b.t.Fatalf("position %d of %d messages, %d in flight with %d bytes", p.pos, b.number, p.inFlight, p.bytes)
	}
}

func (b *partitionBench) counter(name string) uint64 { return b.metrics.GetOrCreateCounter(name).Get() }

// batch encodes events of the worker.
func batch(worker, incarnation uint64, evs ...event.Event) []byte {
	return event.AppendBatch(nil, &event.Batch{Space: testSpace, Worker: worker, Incarnation: incarnation, Events: evs})
}

func heartbeat(worker, incarnation uint64, last ...event.Position) []byte {
	return event.AppendHeartbeat(nil, &event.Batch{Space: testSpace, Worker: worker, Incarnation: incarnation, Last: last})
}

// store is the event with the id that stores one block at the root.
func store(id, block uint64) event.Event {
	return event.Event{Kind: event.Stored, ID: id, Engine: []uint64{block}, Local: []uint64{block}}
}

// publisher makes messages of what an engine does.
type publisher struct {
	*engine
	incarnation uint64
	ids         map[uint32]uint64
	lost        int // messages of the incarnation that never arrive
}

// message returns the next message; truth learns what it says.
func (p *publisher) message(tr *truth) []byte {
	var evs []event.Event
	for range 1 + p.rng.IntN(4) {
		ev := p.step()
		p.ids[ev.DPRank]++
		ev.ID = p.ids[ev.DPRank]
		tr.apply(p.worker, ev)
		evs = append(evs, ev)
	}
	return batch(p.worker, p.incarnation, evs...)
}

// heartbeat returns a message with the ids of everything sent.
func (p *publisher) heartbeat() []byte {
	var last []event.Position
	for r := range uint32(len(p.ranks)) {
		last = append(last, event.Position{DPRank: r, ID: p.ids[r]})
	}
	return heartbeat(p.worker, p.incarnation, last...)
}

// restarted begins a new incarnation; truth forgets the old one.
func (p *publisher) restarted(tr *truth) {
	for r := range uint32(len(p.ranks)) {
		if p.ids[r] > 0 {
			tr.apply(p.worker, event.Event{Kind: event.Cleared, AllTiers: true, DPRank: r})
		}
	}
	p.restart()
	p.incarnation = p.rng.Uint64() | 1
	p.ids = map[uint32]uint64{}
	p.lost = 0
}

// Whatever duplicates, delays within the publisher's window, restarts and
// rubbish a stream has, the index ends equal to the oracle; and when messages
// are lost too, the loss is told for every rank that the index has wrong.
func TestPartitionEndsEqualToTheOracle(t *testing.T) {
	var total struct{ histories, duplicates, restarts, stale, lost, gaps uint64 }
	for seed := range seeds(t, 600) {
		rng := rand.New(rand.NewPCG(seed, 3))
		loss := seed%3 == 2
		b := newPartitionBench(t, nil)
		tr := newTruth()
		var pubs []*publisher
		for i := range 1 + rng.IntN(3) {
			p := &publisher{engine: newEngine(uint64(i), 1+rng.IntN(2), seed), ids: map[uint32]uint64{}}
			p.incarnation = rng.Uint64() | 1
			pubs = append(pubs, p)
		}
		// late holds messages of a publisher that come after up to 7 successors.
		type delayed struct {
			p     *publisher
			data  []byte
			after int // successors that may still go first
		}
		var late []delayed
		var past []delayed
		lost, rubbish := 0, 0
		deliver := func(p *publisher, data []byte) {
			b.feed(p.worker, data)
			past = append(past, delayed{p: p, data: data})
			for i := range late {
				if late[i].p == p {
					late[i].after--
				}
			}
			if rng.IntN(6) == 0 { // a copy, of any age
				d := past[rng.IntN(len(past))]
				b.feed(d.p.worker, d.data)
			}
		}
		// release delivers what may wait no longer, or all.
		release := func(p *publisher, all bool) {
			for {
				i := slices.IndexFunc(late, func(d delayed) bool { return d.p == p && (all || d.after <= 0) })
				if i < 0 {
					return
				}
				data := late[i].data
				late = slices.Delete(late, i, i+1)
				deliver(p, data)
			}
		}
		for range 60 + rng.IntN(120) {
			p := pubs[rng.IntN(len(pubs))]
			switch rng.IntN(40) {
			case 0:
				release(p, true) // a process that is gone sends nothing more
				p.restarted(tr)
				b.feed(p.worker, p.heartbeat())
				continue
			case 1:
				release(p, true)
				b.feed(p.worker, p.heartbeat())
				continue
			case 2:
				if loss { // what comes late after it counts as lost
					rubbish++
					b.feed(p.worker, []byte("KVA\x01 no message"))
					continue
				}
			}
			data := p.message(tr)
			switch {
			case loss && rng.IntN(20) == 0:
				p.lost++
				lost++
			case rng.IntN(5) == 0:
				late = append(late, delayed{p, data, 1 + rng.IntN(7)})
			default:
				deliver(p, data)
				release(p, false)
			}
		}
		for _, p := range pubs {
			release(p, true)
			b.feed(p.worker, p.heartbeat())
		}
		b.finished()
		gaps := b.counter("kvatlas_ingest_gaps_total")
		total.histories++
		total.duplicates += b.counter(`kvatlas_ingest_ignored_events_total{reason="duplicate"}`)
		total.stale += b.counter(`kvatlas_ingest_ignored_events_total{reason="ended_incarnation"}`)
		total.restarts += b.counter("kvatlas_ingest_publisher_restarts_total")
		total.lost += uint64(lost)
		total.gaps += gaps
		if lost+rubbish == 0 {
			if have, want := digest(t, b.set), tr.digest(); have != want {
				t.Fatalf("seed %d: digest %x, the oracle's %x", seed, have, want)
			}
			if gaps != 0 || b.asked.count(Gap) != 0 {
				t.Fatalf("seed %d: %d gaps reported where nothing is lost", seed, gaps)
			}
		} else if missing(pubs) && (gaps == 0 || b.asked.count(Gap) == 0) {
			t.Fatalf("seed %d: %d messages lost, %d gaps counted, %d recoveries asked", seed, lost, gaps, b.asked.count(Gap))
		}
		checkIncomplete(t, seed, b, tr)
	}
	t.Logf("%+v", total)
	if total.duplicates == 0 || total.restarts == 0 || total.stale == 0 || total.gaps == 0 {
		t.Fatalf("the histories exercised too little: %+v", total)
	}
}

// missing reports whether a loss matters: its incarnation has not ended since.
func missing(pubs []*publisher) bool {
	return slices.ContainsFunc(pubs, func(p *publisher) bool { return p.lost > 0 })
}

// checkIncomplete verifies that each rank that differs from the oracle says so.
func checkIncomplete(t *testing.T, seed uint64, b *partitionBench, tr *truth) {
	t.Helper()
	held := map[workerRank][event.NumTiers]int{}
	for _, r := range b.set.Lookup(testSpace).Ranks() {
		held[workerRank{r.Worker, r.DPRank}] = r.Held
	}
	for _, r := range b.partition.mu.ranks {
		s := r.status()
		k := workerRank{s.Worker, s.DPRank}
		h, ok := tr.holders[k]
		if !ok || s.Incomplete {
			continue
		}
		if want := tr.oracle.Held(h, event.Device); held[k][event.Device] != want {
			t.Errorf("seed %d: %+v holds %d blocks, the oracle says %d, and it is not marked incomplete", seed, k, held[k][event.Device], want)
		}
	}
}

func TestALatePredecessorIsWaitedForAndBoundedly(t *testing.T) {
	b := newPartitionBench(t, nil)
	for id := uint64(2); id <= 9; id++ { // 8 messages: as many as are held
		b.feed(1, batch(1, 5, store(id, id)))
	}
	b.settle()
	if d := digest(t, b.set); d != 0 {
		t.Fatal("a message was applied before its predecessor")
	}
	if s := b.partition.rank(1, 0).status(); s.Held != 8 || s.Gaps != 0 {
		t.Fatalf("status %+v", s)
	}
	if p := b.partition.source(0).window.progress(); p.pos != 0 || p.inFlight != 8 {
		t.Fatalf("position %d with %d in flight", p.pos, p.inFlight)
	}
	b.feed(1, batch(1, 5, store(1, 1)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Held != 0 || s.Gaps != 0 || s.LastID != 9 || s.Events != 9 {
		t.Fatalf("status %+v", s)
	}
	// One more than can be held: the predecessor counts as lost.
	for id := uint64(11); id <= 19; id++ {
		b.feed(1, batch(1, 5, store(id, id)))
	}
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Gaps != 1 || s.Missed != 1 || s.LastID != 19 || !s.Incomplete {
		t.Fatalf("status %+v", s)
	}
	// What arrives after that is a duplicate: applied late it could undo what followed.
	b.feed(1, batch(1, 5, store(10, 10)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Duplicates != 1 || s.Events != 18 {
		t.Fatalf("status %+v", s)
	}
}

func TestHeldMessagesExpire(t *testing.T) {
	b := newPartitionBench(t, func(c *Config) { c.GapWait = time.Minute })
	b.feed(1, batch(1, 5, store(4, 1)))
	b.at(time.Now().Add(30 * time.Second))
	if s := b.partition.rank(1, 0).status(); s.Held != 1 {
		t.Fatalf("given up early: %+v", s)
	}
	b.at(time.Now().Add(2 * time.Minute))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Gaps != 1 || s.Missed != 3 || s.LastID != 4 {
		t.Fatalf("status %+v", s)
	}
}

func TestHeldMessagesNeverStopTheReader(t *testing.T) {
	b := newPartitionBench(t, func(c *Config) { c.MaxMessages = 3 })
	for id := uint64(2); id <= 4; id++ {
		b.feed(1, batch(1, 5, store(id, id)))
	}
	if !b.partition.source(0).window.full() {
		t.Fatal("the window has room")
	}
	b.at(time.Now())
	b.finished()
}

func TestAHeartbeatTellsOfALostLastMessage(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1)))
	b.feed(1, heartbeat(1, 5, event.Position{ID: 1}))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Gaps != 0 {
		t.Fatalf("a heartbeat with nothing new: %+v", s)
	}
	b.feed(1, heartbeat(1, 5, event.Position{ID: 3}))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Gaps != 1 || s.Missed != 2 || s.LastID != 3 {
		t.Fatalf("status %+v", s)
	}
	// Only what the heartbeat covers is lost: id 5 may still come.
	b.feed(1, batch(1, 5, store(6, 6)))
	b.feed(1, heartbeat(1, 5, event.Position{ID: 4}))
	if s := b.partition.rank(1, 0).status(); s.Gaps != 2 || s.Missed != 3 || s.Held != 1 {
		t.Fatalf("status %+v", s)
	}
	b.feed(1, batch(1, 5, store(5, 5)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Gaps != 2 || s.LastID != 6 {
		t.Fatalf("status %+v", s)
	}
	// A rank that was never heard of.
	b.feed(1, heartbeat(1, 5, event.Position{DPRank: 7, ID: 2}))
	if s := b.partition.rank(1, 7).status(); s.Gaps != 1 || s.Missed != 2 {
		t.Fatalf("status %+v", s)
	}
}

func TestIncarnations(t *testing.T) {
	tr := newTruth()
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 1), store(2, 2)))
	b.feed(1, batch(1, 6, store(1, 3)))
	b.feed(1, batch(1, 5, store(3, 4))) // of a process that is gone
	b.finished()
	tr.apply(1, store(1, 3))
	if have, want := digest(t, b.set), tr.digest(); have != want {
		t.Fatalf("digest %x, want %x", have, want)
	}
	if s := b.partition.rank(1, 0).status(); s.Restarts != 1 || s.Incarnation != 6 || s.Incomplete {
		t.Fatalf("status %+v", s)
	}
	if n := b.counter(`kvatlas_ingest_ignored_events_total{reason="ended_incarnation"}`); n != 1 {
		t.Fatalf("%d events of an ended incarnation", n)
	}
	// A heartbeat alone ends what the old one held, too.
	b.feed(1, heartbeat(1, 7, event.Position{}))
	b.finished()
	if d := digest(t, b.set); d != 0 {
		t.Fatal("blocks of an ended incarnation are left")
	}
}

func TestRestartsWithoutIncarnation(t *testing.T) {
	for name, tc := range map[string]struct {
		ids      []uint64
		restarts uint64
		last     uint64
	}{
		"from 0":                 {[]uint64{0, 1, 2, 0, 1}, 1, 1},
		"from 1":                 {[]uint64{1, 2, 3, 1}, 1, 1},
		"back to 0":              {[]uint64{1, 2, 0, 1}, 1, 1},
		"after one event":        {[]uint64{1, 1}, 1, 1},
		"a duplicate":            {[]uint64{1, 2, 3, 3, 2}, 0, 3},
		"second of two is a dup": {[]uint64{0, 1, 1}, 0, 1},
	} {
		for _, together := range []bool{true, false} {
			b := newPartitionBench(t, nil)
			var evs []event.Event
			for i, id := range tc.ids {
				evs = append(evs, store(id, uint64(i)+1))
			}
			if together {
				b.feed(1, batch(1, 0, evs...))
			} else {
				for _, ev := range evs {
					b.feed(1, batch(1, 0, ev))
				}
			}
			b.finished()
			s := b.partition.rank(1, 0).status()
			if s.Restarts != tc.restarts || s.LastID != tc.last {
				t.Errorf("%s (one message: %v): %+v", name, together, s)
			}
			// The index holds what was stored since the last restart.
			want := newTruth()
			seen := map[uint64]bool{}
			for i, id := range tc.ids {
				if tc.restarts > 0 && i > 0 && id <= 1 && id < tc.ids[i-1] || name == "after one event" && i == 1 {
					want.apply(1, event.Event{Kind: event.Cleared, AllTiers: true})
					clear(seen)
				}
				if !seen[id] {
					want.apply(1, evs[i])
				}
				seen[id] = true
			}
			if digest(t, b.set) != want.digest() {
				t.Errorf("%s (one message: %v): the index differs", name, together)
			}
		}
	}
}

func TestUnknownParentsAreCountedAndRecoveryAsked(t *testing.T) {
	b := newPartitionBench(t, nil)
	child := store(1, 2)
	child.HasParent, child.Parent = true, 99
	b.feed(1, batch(1, 5, child))
	b.finished()
	s := b.partition.rank(1, 0).status()
	if s.UnknownParents != 1 || !s.Incomplete || b.asked.count(UnknownParent) != 1 || digest(t, b.set) != 0 {
		t.Fatalf("status %+v, asked %d", s, b.asked.count(UnknownParent))
	}
	if n := b.counter(`kvatlas_ingest_blocks_total{result="unknown_parent"}`); n != 1 {
		t.Fatalf("%d blocks counted", n)
	}
	// The worker clears everything: nothing is missing any more.
	b.feed(1, batch(1, 5, event.Event{Kind: event.Cleared, AllTiers: true, ID: 2}))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.Incomplete {
		t.Fatalf("status %+v", s)
	}
}

func TestMalformedMessagesAreCountedAndSkipped(t *testing.T) {
	other := testSpace
	other.Model = "another"
	good := batch(1, 5, store(1, 1))
	newer := slices.Clone(good)
	newer[3] = 200
	for name, tc := range map[string]struct {
		data   []byte
		reason string
	}{
		"empty":         {nil, "truncated"},
		"rubbish":       {[]byte{0xff, 0x00}, "format"},
		"newer version": {newer, "version"},
		"cut":           {good[:len(good)-1], "truncated"},
		"other worker":  {batch(2, 5, store(1, 1)), "worker_mismatch"},
		"other space":   {event.AppendBatch(nil, &event.Batch{Space: other, Worker: 1, Events: []event.Event{store(1, 1)}}), "space_mismatch"},
		"bad JSON":      {[]byte(`{"event_id": "x"`), ""},
	} {
		b := newPartitionBench(t, nil)
		b.feed(1, good)
		b.feed(1, tc.data)
		if s := b.partition.rank(1, 0).status(); s.LastError() == "" {
			t.Errorf("%s: it does not show", name)
		}
		b.feed(1, batch(1, 5, store(2, 2)))
		b.finished()
		s := b.partition.rank(1, 0).status()
		if s.Malformed != 1 || s.LastError() != "" || s.LastID != 2 { // it was none of the rank's
			t.Errorf("%s: status %+v", name, s)
		}
		if tc.reason != "" {
			if n := b.counter(`kvatlas_ingest_malformed_total{reason="` + tc.reason + `"}`); n != 1 {
				t.Errorf("%s: counted %d times as %s", name, n, tc.reason)
			}
		}
	}
}

// Rubbish may come a million times a second.
func TestMalformedMessagesAreLoggedOnceASecond(t *testing.T) {
	var log bytes.Buffer // the partition's goroutine is this one
	b := newPartitionBench(t, func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	begun := time.Now()
	for range 300 {
		b.feed(1, []byte("rubbish"))
	}
	b.finished()
	most := 1 + int(time.Since(begun)/time.Second)
	if n := strings.Count(log.String(), "message skipped"); n < 1 || n > most {
		t.Errorf("%d lines, want 1 to %d", n, most)
	}
	if n := b.counter(`kvatlas_ingest_malformed_total{reason="format"}`); n != 300 {
		t.Errorf("counted %d times", n)
	}
	var once onceASecond
	for after, want := range []bool{true, false, false, true, false, false, true} { // thirds of a second, and a bit
		if got := once.ok(begun.Add(time.Duration(after) * 334 * time.Millisecond)); got != want {
			t.Errorf("after %d thirds of a second: %v", after, got)
		}
	}
	later := time.Now().Add(time.Hour)
	if !once.ok(later) || once.ok(clocktest.Set(t, later, 3600)) || !once.ok(clocktest.Set(t, later.Add(time.Second), -3600)) {
		t.Error("the wall clock decides what is logged")
	}
}

func TestTheLargestIDEndsAStream(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(2, 2)))
	b.feed(1, heartbeat(1, 5, event.Position{ID: math.MaxUint64}))
	b.feed(1, batch(1, 5, store(7, 7)))
	b.feed(1, heartbeat(1, 5, event.Position{ID: 3}))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != math.MaxUint64 || s.Duplicates != 1 || !s.Incomplete {
		t.Fatalf("status %+v", s)
	}
	b.feed(1, batch(1, 6, store(1, 1)))
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != 1 || s.Incomplete {
		t.Fatalf("after a restart: %+v", s)
	}
}

func TestRanksAreBounded(t *testing.T) {
	b := newPartitionBench(t, func(c *Config) { c.MaxRanks = 2 })
	for worker := range uint64(5) {
		b.feed(worker, batch(worker, 5, store(1, 1)))
		b.feed(worker, heartbeat(worker, 5, event.Position{ID: 1}))
	}
	b.finished()
	if n := b.counter(`kvatlas_ingest_malformed_total{reason="too_many_ranks"}`); n != 6 || len(b.partition.mu.ranks) != 2 {
		t.Fatalf("%d messages refused, %d ranks followed", n, len(b.partition.mu.ranks))
	}
}

// Who begins to read in the middle of a run without an incarnation may hold some of
// it back when the next one begins: that is no part of the next.
func TestWhatIsHeldOfARunWithoutIncarnationEndsWithIt(t *testing.T) {
	b := newPartitionBench(t, nil)
	for id := uint64(3); id <= 4; id++ {
		b.feed(1, batch(1, 0, store(id, id)))
	}
	want := newTruth()
	for id := uint64(1); id <= 3; id++ {
		b.feed(1, batch(1, 0, store(id, 10+id)))
		want.apply(1, store(id, 10+id))
	}
	b.finished()
	if s := b.partition.rank(1, 0).status(); s.LastID != 3 || s.Held > 0 || s.Incomplete || digest(t, b.set) != want.digest() {
		t.Errorf("%+v", s)
	}
}

// A RouterEvent names no space and no incarnation.
func TestRouterEventsOnTheSameSubjects(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(7, []byte(`{"worker_id":7,"event":{"event_id":1,"data":{"stored":{"parent_hash":null,"blocks":[{"block_hash":11,"tokens_hash":12}]}},"dp_rank":3}}`))
	b.finished()
	tr := newTruth()
	tr.apply(7, event.Event{Kind: event.Stored, DPRank: 3, Engine: []uint64{11}, Local: []uint64{12}})
	if have, want := digest(t, b.set), tr.digest(); have != want {
		t.Fatalf("digest %x, want %x; %+v", have, want, b.partition.byWorker[7])
	}
}

// FuzzPartition feeds arbitrary messages: none may panic or stay unfinished.
func FuzzPartition(f *testing.F) {
	f.Add(batch(1, 5, store(1, 1), store(2, 2)), batch(1, 5, store(9, 9)))
	f.Add(heartbeat(1, 5, event.Position{ID: math.MaxUint64}), batch(1, 0, store(1<<64-1, 1), store(0, 2)))
	f.Add(batch(1, 0, store(1, 1), store(0, 2), store(1, 3)), []byte("{}"))
	f.Fuzz(func(t *testing.T, one, two []byte) {
		b := newPartitionBench(t, nil)
		for _, m := range [][]byte{one, two, one} {
			worker := uint64(1)
			if len(m) >= 16 {
				worker = binary.LittleEndian.Uint64(m[8:])
			}
			b.feed(worker, m)
		}
		b.at(time.Now().Add(2 * time.Hour))
		b.finished()
	})
}
