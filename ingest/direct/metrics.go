package direct

import (
	"sync"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/ingest/zmqfeed"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// meters count over all ranks; Ranks has each by itself.
type meters struct {
	set                 *metrics.Set
	events              [event.Cleared + 1]*metrics.Counter
	otherRank, filtered *metrics.Counter

	mu   sync.Mutex
	past zmqfeed.Stats // of feeds that ended, added up
}

func newMeters(set *metrics.Set, d *Direct) *meters {
	m := &meters{set: set,
		otherRank: set.GetOrCreateCounter("kvatlas_direct_other_rank_events_total"),
		filtered:  set.GetOrCreateCounter("kvatlas_direct_filtered_blocks_total"),
	}
	for k := event.Stored; k <= event.Cleared; k++ {
		m.events[k] = set.GetOrCreateCounter(obs.Name("kvatlas_direct_events_total", "kind", k.String()))
	}
	gauge := func(name string, f func() float64, pairs ...string) {
		set.GetOrCreateGauge(obs.Name("kvatlas_direct_"+name, pairs...), f)
	}
	feeds := func(name string, f func(*zmqfeed.Stats) uint64, pairs ...string) {
		gauge(name, func() float64 {
			s := d.stats()
			return float64(f(&s))
		}, pairs...)
	}
	for p := zmqfeed.Connecting; p <= zmqfeed.Live; p++ {
		gauge("ranks", func() float64 { return d.count(func(s RankStatus) bool { return zmqfeed.PhaseOf(s.State) == p }) }, "phase", p.String())
	}
	gauge("incomplete_ranks", func() float64 { return d.count(func(s RankStatus) bool { return s.Incomplete }) })
	feeds("batches_total", func(s *zmqfeed.Stats) uint64 { return s.Live }, "way", "live")
	feeds("batches_total", func(s *zmqfeed.Stats) uint64 { return s.Replayed }, "way", "replayed")
	feeds("bytes_total", func(s *zmqfeed.Stats) uint64 { return s.Bytes })
	feeds("missed_batches_total", func(s *zmqfeed.Stats) uint64 { return s.Missed })
	feeds("gaps_total", func(s *zmqfeed.Stats) uint64 { return s.Gaps })
	feeds("replays_total", func(s *zmqfeed.Stats) uint64 { return s.Replays })
	feeds("disconnects_total", func(s *zmqfeed.Stats) uint64 { return s.Disconnects })
	for r := range zmqfeed.Reason(zmqfeed.NumReasons) {
		feeds("lost_batches_total", func(s *zmqfeed.Stats) uint64 { return s.Lost[r] }, "reason", r.String())
	}
	for c := follow.FellBack; c <= follow.Unproven; c++ {
		feeds("restarts_total", func(s *zmqfeed.Stats) uint64 { return s.Restarts[c] }, "cause", c.String())
	}
	for r := range engine.Reason(engine.NumReasons) {
		feeds("left_out_total", func(s *zmqfeed.Stats) uint64 { return s.Left[r] }, "reason", r.String())
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
	add(&m.past, s)
}

func add(a *zmqfeed.Stats, b zmqfeed.Stats) {
	a.Live += b.Live
	a.Replayed += b.Replayed
	a.Bytes += b.Bytes
	a.Missed += b.Missed
	a.Gaps += b.Gaps
	a.Replays += b.Replays
	a.Disconnects += b.Disconnects
	for i, n := range b.Lost {
		a.Lost[i] += n
	}
	for i, n := range b.Restarts {
		a.Restarts[i] += n
	}
	for i, n := range b.Left {
		a.Left[i] += n
	}
}

func (d *Direct) stats() (sum zmqfeed.Stats) {
	for _, r := range d.all() {
		add(&sum, r.feed.Stats())
	}
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	add(&sum, d.m.past)
	return sum
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
	return map[string]string{
		"kvatlas_direct_other_rank_events_total": "Events that name another rank than that of their socket, which holds.",
		"kvatlas_direct_filtered_blocks_total":   "Blocks that decoding left out.",
		"kvatlas_direct_events_total":            "Events applied, by kind.",
		"kvatlas_direct_blocks_total":            "Blocks of events, by result: what the index did with them.",
		"kvatlas_direct_ranks":                   "Ranks whose engines are followed, by phase.",
		"kvatlas_direct_incomplete_ranks":        "Ranks of which something is missing.",
		"kvatlas_direct_batches_total":           "Batches of engines, by way: live, or replayed.",
		"kvatlas_direct_bytes_total":             "Bytes of engines' live messages.",
		"kvatlas_direct_missed_batches_total":    "Batches that did not come live; the replay has those that are not lost.",
		"kvatlas_direct_gaps_total":              "Holes in engines' live messages.",
		"kvatlas_direct_replays_total":           "Replays asked of engines.",
		"kvatlas_direct_disconnects_total":       "Subscriptions that broke.",
		"kvatlas_direct_lost_batches_total":      "Batches that are lost for good, by reason.",
		"kvatlas_direct_restarts_total":          "Engine restarts, by cause: what showed them.",
		"kvatlas_direct_left_out_total":          "Things left out of batches, by reason.",
	}
}
