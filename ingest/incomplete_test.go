package ingest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// prompts are chains whose blocks every worker calls the same, and a worker that
// holds them all.
type prompts struct {
	rng    *rand.Rand
	chains [][]uint64
}

const knower = 1000 // the worker that holds all prompts

func newPrompts(seed uint64) *prompts {
	p := &prompts{rng: rand.New(rand.NewPCG(seed, 31))}
	for range 30 {
		var c []uint64
		for range 4 + p.rng.IntN(20) {
			c = append(c, p.rng.Uint64N(3))
		}
		p.chains = append(p.chains, c)
	}
	return p
}

// all returns the events of the worker that knows them, without ids.
func (p *prompts) all() (evs []event.Event) {
	for _, c := range p.chains {
		evs = append(evs, event.Event{Kind: event.Stored, Engine: blockhash.SequenceHashes(nil, c), Local: c})
	}
	return evs
}

// incompleteEngine is an engine of which events are lost before anybody numbers them.
type incompleteEngine struct {
	*prompts
	rng        *rand.Rand
	worker     uint64
	incomplete bool // since the last clear
}

// next returns the next event that is heard of.
func (e *incompleteEngine) next() event.Event {
	for {
		c := e.chains[e.rng.IntN(len(e.chains))]
		hashes := blockhash.SequenceHashes(nil, c)
		from := 0
		if e.incomplete { // goes on from what was lost, perhaps
			from = e.rng.IntN(len(c))
		}
		to := from + 1 + e.rng.IntN(len(c)-from)
		ev := event.Event{Kind: event.Stored, Engine: hashes[from:to], Local: c[from:to]}
		if from > 0 {
			ev.HasParent, ev.Parent = true, hashes[from-1]
		}
		switch e.rng.IntN(60) {
		case 0:
			e.incomplete = false
			return event.Event{Kind: event.Cleared, AllTiers: true}
		case 1, 2, 3, 4, 5:
			e.incomplete = true
			continue
		}
		if e.rng.IntN(3) == 0 {
			ev = event.Event{Kind: event.Removed, Engine: hashes[from:to]}
		}
		ev.Incomplete = e.incomplete
		return ev
	}
}

// Streams that lack events for good come to the oracle's answer for such
// streams, whatever happens on the way, and show as what they are.
func TestIncompleteStreamsEndEqualToTheOracle(t *testing.T) {
	inferred := uint64(0)
	for seed := range uint64(racetest.Few(40 * scale(t))) {
		b := newPartitionBench(t, nil)
		tr := newTruth()
		p := newPrompts(seed)
		id := uint64(0)
		for _, ev := range p.all() {
			id++
			ev.ID = id
			tr.apply(knower, ev)
			b.feed(knower, batch(knower, 1, ev))
		}
		rng := rand.New(rand.NewPCG(seed, 32))
		engines := make([]*incompleteEngine, 3)
		ids := make([]uint64, 3)
		late := make([][][]byte, 3)
		for i := range engines {
			engines[i] = &incompleteEngine{prompts: p, rng: rand.New(rand.NewPCG(seed, uint64(40+i))), worker: uint64(i)}
		}
		arrive := func(i int) {
			rng.Shuffle(len(late[i]), func(a, c int) { late[i][a], late[i][c] = late[i][c], late[i][a] })
			for _, m := range late[i] {
				for range 1 + rng.IntN(5)/4 {
					b.feed(uint64(i), m)
				}
			}
			late[i] = nil
		}
		for range 200 {
			i := rng.IntN(3)
			var evs []event.Event
			for range 1 + rng.IntN(3) {
				ev := engines[i].next()
				ids[i]++
				ev.ID = ids[i]
				tr.apply(uint64(i), ev)
				evs = append(evs, ev)
			}
			late[i] = append(late[i], batch(uint64(i), 7, evs...))
			if len(late[i]) > 6 || rng.IntN(3) > 0 {
				arrive(i)
			}
		}
		for i, e := range engines {
			arrive(i)
			b.feed(uint64(i), heartbeat(uint64(i), 7, event.Position{ID: ids[i], Incomplete: e.incomplete}))
		}
		b.finished()
		if have, want := digest(t, b.set), tr.digest(); have != want {
			t.Fatalf("seed %d: digest %x, the oracle's %x", seed, have, want)
		}
		for _, st := range b.set.Lookup(testSpace).Ranks() {
			h := tr.holders[workerRank{st.Worker, 0}]
			if want := tr.oracle.Inferred(h); st.Inferred != want {
				t.Fatalf("seed %d: %d blocks of worker %d are inferred, want %d", seed, st.Inferred, st.Worker, want)
			}
		}
		for i, e := range engines {
			if st := b.partition.rank(uint64(i), 0).status(); st.Incomplete != e.incomplete || e.incomplete == (st.LastError() == "") {
				t.Fatalf("seed %d: lossy %v: %+v", seed, e.incomplete, st)
			}
		}
		inferred += b.counter(`kvatlas_ingest_blocks_total{result="inferred"}`)
	}
	t.Logf("%d blocks inferred", inferred)
	if inferred == 0 {
		t.Error("nothing was inferred")
	}
}

// A heartbeat alone tells that a stream is incomplete, and that it no longer is.
func TestAHeartbeatTellsOfAnIncompleteStream(t *testing.T) {
	b := newPartitionBench(t, nil)
	b.feed(1, batch(1, 5, store(1, 10)))
	for _, lossy := range []bool{true, false} {
		b.feed(1, heartbeat(1, 5, event.Position{ID: 1, Incomplete: lossy}))
		b.settle()
		if st := b.partition.rank(1, 0).status(); st.Incomplete != lossy {
			t.Errorf("%+v", st)
		}
	}
}

// Replicas that come later take a dump: they show all that was heard to be
// stored, and of the rest what those blocks imply.
func TestALateReplicaInfersFromTheDump(t *testing.T) {
	n := newNATSBench(t, startBroker(t, t.TempDir()).Conn())
	ps := newPrompts(5)
	known, _ := n.worker(knower, coreMode)
	early := n.open("early", nil, nil)
	say := func(p *publish.Publisher, worker uint64, ev event.Event) {
		p.SetIncomplete(0, ev.Incomplete)
		n.truth.apply(worker, ev)
		if err := p.Publish(deadline(t), ev); err != nil {
			t.Fatal(err)
		}
	}
	for _, ev := range ps.all() {
		say(known, knower, ev)
	}
	e := &incompleteEngine{prompts: ps, rng: rand.New(rand.NewPCG(1, 2)), worker: 1}
	p, _ := n.worker(1, coreMode)
	say(p, 1, event.Event{Kind: event.Cleared, AllTiers: true})
	n.sameAsTruth(early) // it has taken its dumps: the rest it hears as it happens
	waittest.For(t, "both workers are there", func() bool { return len(early.Ranks()) == 2 })
	n.sameAsTruth(early)
	for range 400 {
		say(p, 1, e.next())
	}
	p.SetIncomplete(0, true)
	if err := p.Flush(deadline(t)); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the early replica is the oracle", func() bool { return digest(t, early.set) == n.truth.digest() })
	late := n.open("late", nil, nil)
	var st RankStatus
	waittest.For(t, "the late replica has its dump", func() bool {
		i := slices.IndexFunc(late.Ranks(), func(k RankStatus) bool { return k.Worker == 1 && k.Dumps > 0 && !k.Is(follow.Recovering) })
		if i >= 0 {
			st = late.Ranks()[i]
		}
		return i >= 0 && st.LastID == p.Positions()[0].ID
	})
	if !st.Incomplete || st.LastError() == "" {
		t.Errorf("it does not show: %+v", st)
	}
	waittest.For(t, "the metric is of that rank alone", func() bool {
		var out strings.Builder
		late.metrics.WritePrometheus(&out)
		return strings.Contains(out.String(), "\nkvatlas_ingest_incomplete_ranks 1\n")
	})
	h := n.truth.holders[workerRank{1, 0}]
	heard := n.truth.oracle.Held(h, event.Device) - n.truth.oracle.Inferred(h)
	var got shard.RankStat
	waittest.For(t, "everything has its place", func() bool { // the other worker's dump may come later
		for _, s := range late.set.Lookup(testSpace).Ranks() {
			if s.Worker == 1 {
				got = s
			}
		}
		return got.Inferred > 0 && got.Held[event.Device]-got.Inferred == heard
	})
	t.Logf("%d blocks heard of and held, %d inferred early; %d of %d late", heard, n.truth.oracle.Inferred(h), got.Inferred, got.Held[event.Device])
}
