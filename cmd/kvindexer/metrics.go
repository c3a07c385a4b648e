package main

import (
	"fmt"
	"io"
	"strconv"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// registerMetrics exposes what the index holds, by space, and explains what
// ingest exposes.
func registerMetrics(m *obs.Metrics, set *shard.Set) {
	m.Gauge("kvatlas_index_spaces", "Index spaces.", func() float64 { return float64(len(set.Spaces())) })
	m.Help("kvatlas_index_ranks", "Ranks (workers' data-parallel ranks) in a space.")
	m.Help("kvatlas_index_blocks", "Blocks held, over all ranks of a space, by tier.")
	m.Help("kvatlas_index_queued_batches", "Batches accepted and not applied yet.")
	for _, texts := range []map[string]string{ingest.Help(), registry.Help(), direct.Help()} {
		for family, text := range texts {
			m.Help(family, text)
		}
	}
	m.RegisterMetricsWriter(func(w io.Writer) { writeSpaces(w, set) })
}

// writeSpaces writes the gauges of all spaces, family by family.
func writeSpaces(w io.Writer, set *shard.Set) {
	type stats struct {
		labels []string
		ranks  []shard.RankStat
		queued int
	}
	var all []stats
	for _, id := range set.Spaces() {
		sp := set.Lookup(id)
		if sp == nil { // gone since
			continue
		}
		labels := []string{"model", id.Model, "block_size", strconv.Itoa(int(id.BlockSize)), "group", id.Group}
		all = append(all, stats{labels, sp.Ranks(), sp.Stats().Queued})
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_ranks", "gauge")
	for _, s := range all {
		writeGauge(w, "kvatlas_index_ranks", len(s.ranks), s.labels...)
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_blocks", "gauge")
	for _, s := range all {
		for tier, name := range []string{"device", "host_pinned", "disk", "external"} {
			held := 0
			for _, r := range s.ranks {
				held += r.Held[tier]
			}
			writeGauge(w, "kvatlas_index_blocks", held, append(s.labels[:len(s.labels):len(s.labels)], "tier", name)...)
		}
	}
	metrics.WriteMetadataIfNeeded(w, "kvatlas_index_queued_batches", "gauge")
	for _, s := range all {
		writeGauge(w, "kvatlas_index_queued_batches", s.queued, s.labels...)
	}
}

func writeGauge(w io.Writer, family string, value int, labels ...string) {
	fmt.Fprintf(w, "%s %d\n", obs.Name(family, labels...), value)
}
