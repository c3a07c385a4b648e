package direct

import (
	"maps"
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// meters count over all ranks; Ranks has each by itself.
type meters struct {
	set                 *metrics.Set
	events              [event.Cleared + 1]*metrics.Counter
	otherRank, filtered *metrics.Counter

	series []zmqfeed.Series // of feeds
	mu     sync.Mutex
	past   []uint64 // of feeds that ended, by series
}

func newMeters(set *metrics.Set, d *Direct) *meters {
	series := zmqfeed.AllSeries()
	m := &meters{set: set, series: series, past: make([]uint64, len(series)),
		otherRank: set.GetOrCreateCounter("kvatlas_direct_other_rank_events_total"),
		filtered:  set.GetOrCreateCounter("kvatlas_direct_filtered_blocks_total"),
	}
	for k := event.Stored; k <= event.Cleared; k++ {
		m.events[k] = set.GetOrCreateCounter(obs.Name("kvatlas_direct_events_total", "kind", k.String()))
	}
	gauge := func(name string, f func() float64, pairs ...string) {
		set.GetOrCreateGauge(obs.Name("kvatlas_direct_"+name, pairs...), f)
	}
	for p := zmqfeed.Connecting; p <= zmqfeed.Live; p++ {
		gauge("ranks", func() float64 { return d.count(func(s RankStatus) bool { return zmqfeed.PhaseOf(s.State) == p }) }, "phase", p.String())
	}
	gauge("incomplete_ranks", func() float64 {
		return d.count(func(s RankStatus) bool { return s.Incomplete && s.State != follow.Recovering })
	})
	for i, x := range m.series {
		gauge(x.Name, func() float64 { return float64(d.total(i)) }, x.Labels...)
	}
	return m
}

func (m *meters) event(k event.Kind) {
	if k >= event.Stored && k <= event.Cleared {
		m.events[k].Inc()
	}
}

func (m *meters) applied(o core.Outcome) {
	for _, c := range o.Counts() {
		if c.N > 0 {
			m.set.GetOrCreateCounter(obs.Name("kvatlas_direct_blocks_total", "result", c.Result)).Add(c.N)
		}
	}
}

// leave keeps what a feed counted that has ended: counters do not fall.
func (m *meters) leave(s zmqfeed.Stats) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, x := range m.series {
		m.past[i] += x.Value(&s)
	}
}

// total returns a series over all feeds.
func (d *Direct) total(i int) uint64 {
	sum := uint64(0)
	for _, r := range d.all() {
		s := r.feed.Stats()
		sum += d.m.series[i].Value(&s)
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	return sum + d.m.past[i]
}

func (d *Direct) count(is func(RankStatus) bool) float64 {
	n := 0
	for _, r := range d.all() {
		if is(r.status()) {
			n++
		}
	}
	return float64(n)
}

// Help returns the help text of every metric, by name.
func Help() map[string]string {
	all := zmqfeed.SeriesHelp("kvatlas_direct_")
	maps.Copy(all, map[string]string{
		"kvatlas_direct_other_rank_events_total": "Events that name another rank than that of their socket, which holds.",
		"kvatlas_direct_filtered_blocks_total":   "Blocks that decoding left out.",
		"kvatlas_direct_events_total":            "Events applied, by kind.",
		"kvatlas_direct_blocks_total":            "Blocks of events, by result: what the index did with them.",
		"kvatlas_direct_ranks":                   "Ranks whose engines are followed, by phase.",
		"kvatlas_direct_incomplete_ranks":        "Ranks of which something is missing.",
	})
	return all
}
