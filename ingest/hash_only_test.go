package ingest

import (
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// offload is step where the engine moves blocks of prompts to lower tiers and
// says so by their names: of blocks that it told the content of, of some that it
// tells later, and of some that it never does.
func (e *engine) offload(dpRank uint32) event.Event {
	c := e.prompts.chains[e.rng.IntN(len(e.prompts.chains))]
	hashes := blockhash.SequenceHashes(nil, c)
	ev := event.Event{Kind: event.Stored, DPRank: dpRank, Tier: event.Tier(e.rng.IntN(3))}
	some := func() {
		for range 1 + e.rng.IntN(5) {
			ev.Engine = append(ev.Engine, hashes[e.rng.IntN(len(hashes))])
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
		ev.Engine, ev.Local = hashes[:n], c[:n]
	}
	return ev
}

// Before its content a hash is unknown content: counted, and held neither by a
// replica that hears all of it nor by one that restarts, reads the stream again
// or takes a dump, before the content is told or after.
func TestHistoriesOfNamesEndEqualToTheOracle(t *testing.T) {
	for _, mode := range []string{"jetstream", "core"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			var all tally
			offloaded, unknown := 0, uint64(0)
			for seed := range uint64(racetest.Few(100 * scale(t))) { // of two, none need recover
				h := newHistory(t, seed, mode == "core")
				ps := newPrompts(seed)
				for _, s := range h.workers {
					s.prompts = ps
				}
				h.run()
				for _, r := range h.set.Lookup(testSpace).Ranks() {
					offloaded += r.Held[event.HostPinned] + r.Held[event.Disk]
				}
				unknown += h.metrics.GetOrCreateCounter(`kvatlas_ingest_blocks_total{result="unknown_block"}`).Get()
				h.closeReplica()
				h.set.Close()
				all.sum(h.found)
			}
			t.Logf("%+v, %d blocks on lower tiers, %d names of unknown content", all, offloaded, unknown)
			if all.gaps == 0 || all.dumps == 0 || all.recovered == 0 || all.replicas == 0 || offloaded == 0 || unknown == 0 {
				t.Error("the histories do not reach everything")
			}
		})
	}
}
