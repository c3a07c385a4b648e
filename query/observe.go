package query

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// observer counts what a Server does. It is safe for concurrent use.
type observer struct {
	metrics *obs.Metrics
	table   *table
	ok      []*metrics.Counter // answers with status 200, by route
	latency []*metrics.PrometheusHistogram
	ranks   *metrics.Counter
	blocks  *metrics.Counter
	flight  atomic.Int64 // read by each request, as a limit: xsync.Counter would sum its stripes then
}

const familyRefused = "kvatlas_http_refused_total"

func newObserver(m *obs.Metrics, t *table) *observer {
	m.Help(familyRefused, "Requests refused, by reason.")
	o := &observer{metrics: m, table: t, ok: make([]*metrics.Counter, len(t.all))}
	for i := range len(t.all) + 1 {
		o.latency = append(o.latency, m.Histogram("kvatlas_http_request_duration_seconds",
			"Time from a request's arrival to its answer, in seconds, by route.", obs.LatencyBuckets(), "route", t.name(i)))
		if i < len(t.all) {
			o.ok[i] = o.answers(i, 200)
		}
	}
	o.blocks = m.Counter("kvatlas_find_blocks_total", "Blocks that find_matches requests asked about.")
	o.ranks = m.Counter("kvatlas_find_ranks_total", "Ranks that find_matches answers listed.")
	m.Gauge("kvatlas_http_requests_in_flight", "Requests that are being answered.",
		func() float64 { return float64(o.flight.Load()) })
	return o
}

func (o *observer) answers(route, status int) *metrics.Counter {
	return o.metrics.Counter("kvatlas_http_requests_total", "Requests answered, by route and code, the status.",
		"route", o.table.name(route), "code", strconv.Itoa(status))
}

// answered counts one answer.
func (o *observer) answered(route, status int, took time.Duration) {
	if status == 200 && route < len(o.ok) {
		o.ok[route].Inc()
	} else {
		o.answers(route, status).Inc()
	}
	o.latency[route].Update(took.Seconds())
}

// refused counts one refusal. Reasons are constants of this package.
func (o *observer) refused(reason string) {
	o.metrics.GetOrCreateCounter(obs.Name(familyRefused, "reason", reason)).Inc()
}

// Lookups returns how many requests for holders of prefixes were answered, in a batch each
// as one.
func (s *Server) Lookups() (n uint64) {
	for i := range s.table.all {
		switch s.table.all[i].name {
		case "find_matches", "find_matches_batch", "query", "query_by_hash":
			n += s.obs.ok[i].Get()
		}
	}
	return n
}
