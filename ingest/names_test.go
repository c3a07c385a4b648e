package ingest

import (
	"context"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
)

// offload is step where the engine moves blocks of prompts to lower tiers and
// says so by their names: of blocks that it told the content of, and of some
// that it got from elsewhere.
func (e *engine) offload(dpRank uint32) event.Event {
	c := e.prompts.chains[e.rng.IntN(len(e.prompts.chains))]
	names := blockhash.SequenceHashes(nil, c)
	ev := event.Event{Kind: event.Stored, DPRank: dpRank, Tier: event.Tier(e.rng.IntN(3))}
	some := func() {
		for range 1 + e.rng.IntN(5) {
			ev.Engine = append(ev.Engine, names[e.rng.IntN(len(names))])
		}
	}
	switch k := e.rng.IntN(40); {
	case k == 0:
		return event.Event{Kind: event.Cleared, AllTiers: e.rng.IntN(2) == 0, Tier: ev.Tier, DPRank: dpRank}
	case k < 12:
		ev.Kind = event.Removed
		some()
	case k < 26:
		some()
	default:
		n := 1 + e.rng.IntN(len(c))
		ev.Engine, ev.Local = names[:n], c[:n]
	}
	return ev
}

// newNamesHistory is newHistory of engines that offload what another worker
// holds all the time.
func newNamesHistory(t *testing.T, seed uint64, live bool) *history {
	h := newHistory(t, seed, live)
	ps := newPrompts(seed)
	for _, s := range h.workers {
		s.prompts = ps
	}
	h.knower = &source{publisher: &publisher{engine: newEngine(knower, 1, seed), ids: map[uint32]uint64{}}}
	h.knower.incarnation = 1
	h.newSource(h.knower)
	evs := ps.all()
	for i := range evs {
		h.knower.ids[0]++
		evs[i].ID = h.knower.ids[0]
		h.tr.apply(knower, evs[i])
		h.knower.kept.Apply(evs[i])
	}
	h.knower.late = []message{{knower, batch(knower, 1, evs...)}}
	if live {
		h.know()
	} else {
		h.arrive(h.knower)
	}
	return h
}

// know has the replica learn of the one that holds everything before it hears
// of the others: between streams there is no order.
func (h *history) know() {
	h.link.Lock()
	h.link.down = false
	h.link.Unlock()
	deadline := time.Now().Add(time.Minute)
	for {
		h.clock.Add(int64(5 * time.Second))
		h.feed(message{knower, h.knower.publisher.heartbeat()})
		h.settle(deadline)
		if st := h.lane.rank(knower, 0).status(); st.LastID == h.knower.ids[0] && !st.Incomplete {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("seed %d: nothing is known of the prompts: %+v", h.seed, h.lane.rank(knower, 0).status())
		}
	}
}

// Blocks that are stored by name alone end where the oracle has them, whatever
// is lost, doubled or delayed on the way, whoever restarts, and whenever a dump
// is taken.
func TestHistoriesOfNamesEndEqualToTheOracle(t *testing.T) {
	for _, mode := range []string{"jetstream", "core"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var all tally
			offloaded := 0
			for seed := range uint64(20 * scale(t)) {
				h := newNamesHistory(t, seed, mode == "core")
				h.run()
				for _, r := range h.set.Lookup(testSpace).Ranks() {
					offloaded += r.Held[event.HostPinned] + r.Held[event.Disk]
				}
				h.closeReplica()
				h.set.Close()
				all.sum(h.found)
			}
			t.Logf("%+v, %d blocks on lower tiers", all, offloaded)
			if all.gaps == 0 || all.dumps == 0 || all.recovered == 0 || all.restarts == 0 || offloaded == 0 {
				t.Error("the histories do not reach everything")
			}
		})
	}
}

// A dump whose names nobody knows while another worker is being recovered for
// the first time is taken once more when that is done; otherwise names that
// nobody knows ask for nothing.
func TestADumpsNamesWaitForFirstRecoveries(t *testing.T) {
	for _, beside := range []bool{false, true} {
		h := newHistory(t, 1, true)
		h.workers, h.knower = nil, nil
		q := blockhash.SequenceHashes(nil, []uint64{1, 2, 3})
		worker := func(id uint64, ev event.Event) *source {
			s := &source{publisher: &publisher{engine: newEngine(id, 1, 1), ids: map[uint32]uint64{0: 1}, incarnation: 1}}
			h.newSource(s)
			ev.ID = 1
			s.kept.Apply(ev)
			return s
		}
		offloads := worker(1, event.Event{Kind: event.Stored, Tier: event.HostPinned, Engine: q[1:]})
		knows := worker(2, event.Event{Kind: event.Stored, Engine: q, Local: []uint64{1, 2, 3}})
		gate := make(chan struct{})
		h.lane.recoverer.ask = func(ctx context.Context, subject string, request []byte) ([]byte, error) {
			h.link.Lock()
			src := h.link.sources[subject]
			h.link.Unlock()
			if src == knows.kept {
				select {
				case <-gate:
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			data, _ := src.Answer(request, 1<<20)
			return data, nil
		}
		heard := func(s *source) {
			h.clock.Add(int64(5 * time.Second))
			h.feed(message{s.worker, s.publisher.heartbeat()})
		}
		held := func() (n int) {
			for _, r := range h.set.Lookup(testSpace).Ranks() {
				n += r.Held[event.HostPinned]
			}
			return n
		}
		deadline := time.Now().Add(time.Minute)
		if beside {
			heard(knows)
		}
		heard(offloads)
		for h.lane.rank(1, 0).active != nil { // the other one waits at the gate
			select {
			case f := <-h.lane.inbox:
				f(h.ctx)
			case <-time.After(time.Until(deadline)):
				t.Fatal("no dump")
			}
		}
		if st := h.lane.rank(1, 0).status(); st.Dumps != 1 || st.Incomplete != beside || held() != 0 {
			t.Fatalf("beside another: %v: %+v, %d blocks held", beside, st, held())
		}
		close(gate)
		if !beside {
			heard(knows)
		}
		h.settle(deadline)
		heard(offloads)
		h.settle(deadline)
		heard(offloads)
		h.settle(deadline)
		st := h.lane.rank(1, 0).status()
		if beside && (st.Dumps != 2 || st.Incomplete || held() != 2) {
			t.Errorf("%+v, %d blocks held", st, held())
		}
		if !beside && (st.Dumps != 1 || st.Incomplete || held() != 0) {
			t.Errorf("%+v, %d blocks held", st, held())
		}
		if n := h.metrics.GetOrCreateCounter(`kvatlas_ingest_blocks_total{result="unknown_block"}`).Get(); n != 2 {
			t.Errorf("%d unknown blocks are counted", n)
		}
		h.closeReplica()
		h.set.Close()
	}
}
