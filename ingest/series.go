package ingest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// exposePublishers adds how many ranks are incomplete, and the metrics of single
// ranks: of the first MaxSeries that were seen, and the sum of the others, so that
// the number of series is bounded whatever the fleet does. They end with ctx.
func (in *Ingest) exposePublishers(ctx context.Context) {
	in.cfg.Metrics.RegisterMetricsWriter(func(w io.Writer) {
		if ctx.Err() == nil {
			in.writePublishers(w)
		}
	})
}

// publisherSeries is what one label set shows.
type publisherSeries struct {
	labels                               string
	kinds                                [event.Cleared + 1]uint64
	blocks                               core.Outcome
	duplicates, gaps, missed, recoveries uint64
}

func (s *publisherSeries) add(k *RankStatus) {
	s.kinds[event.Stored] += k.Stored
	s.kinds[event.Removed] += k.Removed
	s.kinds[event.Cleared] += k.Cleared
	s.blocks.Add(k.Blocks)
	s.duplicates += k.Duplicates
	s.gaps += k.Gaps
	s.missed += k.Missed
	s.recoveries += k.Recoveries
}

func (in *Ingest) writePublishers(w io.Writer) {
	all := in.ranks()
	ranks := make([]*RankStatus, len(all)) // the statuses are large: they stay where they are
	incomplete, contested := 0, 0
	for i := range all {
		ranks[i] = &all[i]
		if all[i].Incomplete {
			incomplete++
		}
		if all[i].Is(follow.Contested) {
			contested++
		}
	}
	gauge := func(name string, n int) {
		metrics.WriteMetadataIfNeeded(w, name, "gauge")
		fmt.Fprintf(w, "%s %d\n", name, n)
	}
	gauge("kvatlas_ingest_incomplete_ranks", incomplete)
	gauge("kvatlas_ingest_contested_ranks", contested)
	slices.SortFunc(ranks, func(a, b *RankStatus) int { return cmp.Or(a.FirstSeen.Compare(b.FirstSeen), a.compare(b)) })
	own := min(len(ranks), in.cfg.MaxSeries)
	series := make([]publisherSeries, 0, own+1)
	for _, k := range ranks[:own] {
		s := publisherSeries{labels: fmt.Sprintf("model=%q,block_size=\"%d\",group=%q,worker=\"%d\",dp_rank=\"%d\"",
			k.Space.Model, k.Space.BlockSize, k.Space.Group, k.Worker, k.DPRank)}
		s.add(k)
		series = append(series, s)
	}
	if own < len(ranks) {
		other := publisherSeries{labels: `model="",block_size="",group="",worker="other",dp_rank=""`}
		for _, k := range ranks[own:] {
			other.add(k)
		}
		series = append(series, other)
	}
	// One family after the other, as the exposition format wants it.
	family := func(name string, write func(name string, s *publisherSeries)) {
		name = "kvatlas_ingest_publisher_" + name
		metrics.WriteMetadataIfNeeded(w, name, "counter")
		for i := range series {
			write(name, &series[i])
		}
	}
	family("events_total", func(name string, s *publisherSeries) {
		for kind := event.Stored; kind <= event.Cleared; kind++ {
			fmt.Fprintf(w, "%s{%s,kind=%q} %d\n", name, s.labels, kind, s.kinds[kind])
		}
	})
	family("blocks_total", func(name string, s *publisherSeries) {
		for _, b := range s.blocks.Counts() {
			fmt.Fprintf(w, "%s{%s,result=%q} %d\n", name, s.labels, b.Result, b.N)
		}
	})
	count := func(name string, n func(s *publisherSeries) int) {
		family(name, func(name string, s *publisherSeries) { fmt.Fprintf(w, "%s{%s} %d\n", name, s.labels, n(s)) })
	}
	count("duplicates_total", func(s *publisherSeries) int { return int(s.duplicates) })
	count("gaps_total", func(s *publisherSeries) int { return int(s.gaps) })
	count("missed_total", func(s *publisherSeries) int { return int(s.missed) })
	count("recoveries_total", func(s *publisherSeries) int { return int(s.recoveries) })
}
