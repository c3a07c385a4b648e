package query

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/obs"
)

// The routes, as labels of metrics.
const (
	routeFind = iota
	routeWorkers
	routeLive
	routeReady
	routeMetrics
	routeVersion
	routeRegister
	routeUnregister
	routeListWorkers
	routeNone // no such route, or not HTTP at all
	numRoutes
)

// routeNames returns the label of each route.
func routeNames() [numRoutes]string {
	return [numRoutes]string{
		"find_matches", "workers", "livez", "readyz", "metrics", "version",
		"register", "unregister", "list_workers", "none",
	}
}

// observer counts what a Server does. It is safe for concurrent use.
type observer struct {
	metrics *obs.Metrics
	names   [numRoutes]string
	ok      [numRoutes]*metrics.Counter // answers with status 200
	latency [numRoutes]*metrics.PrometheusHistogram
	ranks   *metrics.Counter
	blocks  *metrics.Counter
	flight  atomic.Int64
}

func newObserver(m *obs.Metrics) *observer {
	o := &observer{metrics: m, names: routeNames()}
	for i, name := range o.names {
		o.latency[i] = m.Histogram("kvatlas_http_request_duration_seconds",
			"Time from a request's arrival to its answer, in seconds, by route.", obs.LatencyBuckets(), "route", name)
		if i != routeNone {
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
	return o.metrics.Counter("kvatlas_http_requests_total", "Requests answered, by route and status.",
		"route", o.names[route], "code", strconv.Itoa(status))
}

// answered counts one answer.
func (o *observer) answered(route, status int, took time.Duration) {
	c := o.ok[route]
	if status != 200 || c == nil {
		c = o.answers(route, status)
	}
	c.Inc()
	o.latency[route].Update(took.Seconds())
}

// refused counts one refusal. Reasons are constants of this package.
func (o *observer) refused(reason string) {
	o.metrics.Counter("kvatlas_http_refused_total", "Requests refused, by reason.", "reason", reason).Inc()
}
