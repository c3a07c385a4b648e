package replica

import (
	"fmt"
	"io"
	"strconv"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
)

// registerStale exposes of how many ranks the index lacks events.
func (r *Replica) registerStale() {
	const help = "Ranks, read from streams or from their engines, of which something is missing that is to be had, or nothing is heard; routers discount what they hold."
	r.cfg.Metrics.Gauge("kvatlas_ingest_stale_ranks", help, func() float64 {
		n := 0
		for _, ranks := range r.Stale() {
			n += len(ranks)
		}
		return float64(n)
	})
}

// registerMetrics exposes what the index holds, by space, and explains what
// ingest exposes.
func registerMetrics(m *obs.Metrics, set *shard.Set) {
	m.Gauge("kvatlas_index_spaces", "Index spaces.", func() float64 { return float64(len(set.Spaces())) })
	m.Help("kvatlas_index_ranks", "Ranks (workers' data-parallel ranks) in a space.")
	m.Help("kvatlas_index_blocks", "Blocks held, over all ranks of a space, by tier.")
	m.Help("kvatlas_index_memory_bytes", "Bytes that the indexes use, by kind: what for.")
	m.Gauge("kvatlas_index_memory_budget_bytes", "Bytes that the indexes may use together; 0 means no limit.", func() float64 {
		_, budget := set.MemoryBudget()
		return float64(budget)
	})
	m.Gauge("kvatlas_index_memory_full", "1 while new blocks are refused, or soon will be, because of the memory budget.", func() float64 {
		if set.Full() {
			return 1
		}
		return 0
	})
	m.Help("kvatlas_index_refused_blocks_total", "Blocks that were not stored because of the memory budget or the number of ranks.")
	m.Help("kvatlas_index_queued_batches", "Batches accepted and not applied yet.")
	for _, texts := range []map[string]string{ingest.Help(), registry.Help(), direct.Help(), keeper.Help()} {
		for family, text := range texts {
			m.Help(family, text)
		}
	}
	poolHelp(m)
	m.RegisterMetricsWriter(func(w io.Writer) { writeSpaces(w, set) })
}

// writeSpaces writes the gauges of all spaces, family by family.
func writeSpaces(w io.Writer, set *shard.Set) {
	type stats struct {
		labels  []string
		ranks   []shard.RankStat
		queued  int
		refused int
	}
	var all []stats
	for _, id := range set.Spaces() {
		sp := set.Lookup(id)
		if sp == nil { // gone since
			continue
		}
		labels := []string{"model", id.Model, "block_size", strconv.Itoa(int(id.BlockSize)), "group", id.Group}
		st := sp.Stats()
		all = append(all, stats{labels, sp.Ranks(), st.Queued, st.Outcome.Refused})
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_ranks", "gauge")
	for _, s := range all {
		ranks := 0
		for _, r := range s.ranks {
			if !r.Pool() {
				ranks++
			}
		}
		writeGauge(w, "kvatlas_index_ranks", ranks, s.labels...)
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_blocks", "gauge")
	for _, s := range all {
		var held [event.NumTiers]int
		for _, r := range s.ranks {
			for tier, n := range r.Held {
				if r.Pool() {
					tier = int(event.External) // whatever it is to the index
				}
				held[tier] += n
			}
		}
		for tier, n := range held {
			writeGauge(w, "kvatlas_index_blocks", n, append(s.labels[:len(s.labels):len(s.labels)], "tier", event.Tier(tier).String())...)
		}
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_memory_bytes", "gauge")
	for _, k := range set.Memory() {
		writeGauge(w, "kvatlas_index_memory_bytes", int(k.Bytes), "kind", k.Kind)
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_refused_blocks_total", "counter")
	for _, s := range all {
		writeGauge(w, "kvatlas_index_refused_blocks_total", s.refused, s.labels...)
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_queued_batches", "gauge")
	for _, s := range all {
		writeGauge(w, "kvatlas_index_queued_batches", s.queued, s.labels...)
	}
}

func writeGauge(w io.Writer, family string, value int, labels ...string) {
	fmt.Fprintf(w, "%s %d\n", obs.Name(family, labels...), value)
}
