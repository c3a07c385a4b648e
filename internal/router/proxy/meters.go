package proxy

import (
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/shard"
)

// The results of requests, in metrics by tenant and by worker.
const (
	resultOK      = "ok"
	resultClient  = "client_error" // it was wrong, or its tenant had used what it may
	resultFailed  = "failed"
	resultRefused = "refused" // nobody had room, or nobody was there
	resultGone    = "client_gone"
)

// other is the label of tenants and workers beyond those that metrics name.
const other = "other"

// The families, each by tenant and by worker.
const (
	meterRequests = iota
	meterFirst
	meterToken
	meterTotal
	meterRetries
	meterQueue  // by tenant only
	meterTokens // likewise
	meterFamilies
)

// families are the names by tenant and by worker, and their help texts.
var families = [meterFamilies]struct{ tenant, worker, help string }{
	meterRequests: {"kvatlas_router_tenant_requests_total", "kvatlas_router_worker_requests_total", "Requests for engines, by result: ok, client_error, failed, refused, client_gone; "},
	meterFirst:    {"kvatlas_router_tenant_first_token_seconds", "kvatlas_router_worker_first_token_seconds", "Time from a request's arrival to its answer's first byte, "},
	meterToken:    {"kvatlas_router_tenant_token_seconds", "kvatlas_router_worker_token_seconds", "Time of each further token of an answer, its mean, "},
	meterTotal:    {"kvatlas_router_tenant_request_seconds", "kvatlas_router_worker_request_seconds", "Time from a request's arrival to its end, if it was answered, "},
	meterRetries:  {"kvatlas_router_tenant_retries_total", "kvatlas_router_worker_retries_total", "Requests that went on to another worker, "},
	meterQueue:    {"kvatlas_router_tenant_queue_seconds", "", "Time that requests waited at the router, for all workers were busy or the prompts ahead long, of those that did, "},
	meterTokens:   {"kvatlas_router_tenant_tokens_total", "", "Tokens of answered requests, by kind: prompt, cached, output; "},
}

// Upper bounds in seconds: of whole answers and queues, first bytes, and single tokens.
var (
	totalBuckets = []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
	firstBuckets = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}
	tokenBuckets = []float64{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1}
)

// meterKey is what a meter is of: a tenant's or a worker's requests for a model.
type meterKey struct {
	model  *fleet.Model
	tenant string
	worker uint64
	of     bool // the worker, even if it is 0
}

// meter is the metrics of one key.
type meter struct {
	results              map[string]*metrics.Counter
	first, token, total  *metrics.PrometheusHistogram
	queue                *metrics.PrometheusHistogram // nil of a worker
	retries              *metrics.Counter
	prompt, cached, outs *metrics.Counter
	names                []string
}

// meters are the metrics by tenant and by worker, of so many of each.
type meters struct {
	set   *obs.Metrics
	limit int

	mu      sync.RWMutex
	all     map[meterKey]*meter
	tenants int
	workers int
}

func newMeters(set *obs.Metrics, limit int) *meters {
	for _, f := range families {
		set.Help(f.tenant, f.help+"by tenant.")
		if f.worker != "" {
			set.Help(f.worker, f.help+"by worker.")
		}
	}
	s := &meters{set: set, limit: limit, all: make(map[meterKey]*meter)}
	for _, k := range [...]meterKey{{}, {of: true}} { // those of all others, of no model in particular
		s.all[k] = s.make(k, other)
	}
	return s
}

// result says how a request ended.
func (t *tally) result() string {
	switch {
	case t.outcome == "client_gone":
		return resultGone
	case t.outcome == "engine_broke_off" || t.status == 0:
		return resultFailed
	case t.status < 400:
		return resultOK
	case t.attempts == 0 && t.status >= 500:
		return resultRefused
	case t.status < 500:
		return resultClient
	}
	return resultFailed
}

// request counts a request that has ended, for its tenant and for the last of its
// workers.
func (s *meters) request(q *call, total time.Duration) {
	if q.m == nil {
		return
	}
	t := &q.tally
	s.of(meterKey{model: q.m, tenant: q.payer.name}).count(t, total)
	if t.attempts > 0 {
		s.of(meterKey{model: q.m, worker: t.at.Worker, of: true}).count(t, total)
	}
}

// retried counts a request that goes on from a worker to another one.
func (s *meters) retried(q *call, from shard.RankID) {
	s.of(meterKey{model: q.m, tenant: q.payer.name}).retries.Inc()
	m := s.of(meterKey{model: q.m, worker: from.Worker, of: true})
	m.retries.Inc()
	m.results[resultFailed].Inc()
}

func (m *meter) count(t *tally, total time.Duration) {
	result := t.result()
	m.results[result].Inc()
	if m.queue != nil && t.queue > 0 {
		m.queue.Update(t.queue.Seconds())
	}
	if t.first > 0 {
		m.first.Update(t.first.Seconds())
		if t.output > 1 && result == resultOK && total > t.first {
			m.token.Update((total - t.first).Seconds() / float64(t.output-1))
		}
	}
	if result == resultOK {
		m.total.Update(total.Seconds())
		if m.prompt != nil {
			m.prompt.Add(t.prompt)
			m.cached.Add(t.cached)
			m.outs.Add(t.output)
		}
	}
}

// of returns the key's meter, or that of all others where there are too many.
func (s *meters) of(k meterKey) *meter {
	s.mu.RLock()
	m := s.known(k)
	s.mu.RUnlock()
	if m != nil {
		return m
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if m = s.known(k); m != nil {
		return m
	}
	*s.named(k)++
	name := k.tenant
	if k.of {
		name = strconv.FormatUint(k.worker, 10)
	}
	m = s.make(k, name)
	s.all[k] = m
	return m
}

// known returns the key's meter, or that of all others if there is no room for one; nil
// if it is to be made. s.mu is held.
func (s *meters) known(k meterKey) *meter {
	if m := s.all[k]; m != nil || *s.named(k) < s.limit {
		return m
	}
	return s.all[meterKey{of: k.of}]
}

// named returns how many of the key's kind have meters. s.mu is held.
func (s *meters) named(k meterKey) *int {
	if k.of {
		return &s.workers
	}
	return &s.tenants
}

// make registers the metrics of a key.
func (s *meters) make(k meterKey, name string) *meter {
	labels := []string{"model", other, "block_size", "0", "group", ""}
	if k.model != nil {
		labels = labelsOf(k.model)
	}
	kind := "tenant"
	if k.of {
		kind = "worker"
	}
	labels = append(labels, kind, name)
	m := &meter{results: make(map[string]*metrics.Counter)}
	full := func(family int, more ...string) string {
		f := families[family].tenant
		if k.of {
			f = families[family].worker
		}
		text := obs.Name(f, slices.Concat(labels, more)...)
		m.names = append(m.names, text)
		return text
	}
	histogram := func(family int, bounds []float64) *metrics.PrometheusHistogram {
		return s.set.GetOrCreatePrometheusHistogramExt(full(family), bounds)
	}
	for _, r := range [...]string{resultOK, resultClient, resultFailed, resultRefused, resultGone} {
		m.results[r] = s.set.GetOrCreateCounter(full(meterRequests, "result", r))
	}
	m.first, m.token, m.total = histogram(meterFirst, firstBuckets), histogram(meterToken, tokenBuckets), histogram(meterTotal, totalBuckets)
	m.retries = s.set.GetOrCreateCounter(full(meterRetries))
	if !k.of {
		m.queue = histogram(meterQueue, totalBuckets)
		m.prompt = s.set.GetOrCreateCounter(full(meterTokens, "kind", "prompt"))
		m.cached = s.set.GetOrCreateCounter(full(meterTokens, "kind", "cached"))
		m.outs = s.set.GetOrCreateCounter(full(meterTokens, "kind", "output"))
	}
	return m
}

// prune forgets workers that have left, so that others are named. Who reads the metrics
// calls it: no request looks at all meters.
func (s *meters) prune() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, m := range s.all {
		if !k.of || k.model == nil || k.model.Engine(k.worker) != nil {
			continue
		}
		for _, name := range m.names {
			s.set.UnregisterMetric(name)
		}
		delete(s.all, k)
		s.workers--
	}
}
