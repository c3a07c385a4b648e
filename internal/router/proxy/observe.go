package proxy

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/quota"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/predict"
)

// observer is the metrics of a Proxy.
type observer struct {
	set                                                                        *obs.Metrics
	retriesDenied, requestFaults, engineErrors                                 *metrics.Counter
	decodeOnly, prefillFailed, handOvers, handedOver, handLost, unfiled, stale *metrics.Counter
	tokenizeFailed, tokenizeCached, tokenizeAsked                              *metrics.Counter
	firstByte                                                                  *metrics.PrometheusHistogram
	ok                                                                         *metrics.Counter            // of requests that ended so: nearly all
	retries                                                                    map[string]*metrics.Counter // by reason
	kept                                                                       map[string]*metrics.Counter // by where it was found
	tokenizeHedged, forgotten                                                  *metrics.Counter
	unread                                                                     map[string]*metrics.Counter // by reason
	trials                                                                     map[string]*metrics.Counter // by result
	promptsAsTokens, promptsAsText                                             *metrics.Counter
}

const (
	familyRequests = "kvatlas_router_requests_total"
	familyRetries  = "kvatlas_router_retries_total"
	familyState    = "kvatlas_router_breaker_state"
	familyQueue    = "kvatlas_router_queue_length"
	familyLimited  = "kvatlas_router_limited_total"
	familyLeftOut  = "kvatlas_router_left_out_total"
)

// Of prompts that decode workers were to get from prefill workers.
const (
	familyApart  = "kvatlas_router_pairs_apart"
	familyHanded = "kvatlas_router_handed_over_total"
	helpHanded   = "Prompts that a decode worker was to get from a prefill worker, by result: came, by what the decode worker says of its cache (mooncake), or lost, by that or as it failed and the request was good."
)

func newObserver(m *obs.Metrics, p *Proxy) *observer {
	m.Help(familyRequests, "Requests, by outcome: how they ended.")
	const tokenize, help = "kvatlas_router_tokenize_total", "Texts whose tokens were needed, by where they came from." //nolint:gosec // names of metrics
	o := &observer{
		set: m, retries: make(map[string]*metrics.Counter), kept: make(map[string]*metrics.Counter), unread: make(map[string]*metrics.Counter), trials: make(map[string]*metrics.Counter),
		retriesDenied:   m.Counter("kvatlas_router_retries_denied_total", "Retries that the share of all requests did not allow."),
		requestFaults:   m.Counter("kvatlas_router_request_faults_total", "Requests at which two engines failed with status 500, or that two would not have: the request's own fault, and not theirs."),
		engineErrors:    m.Counter("kvatlas_router_engine_errors_total", "Attempts that an engine did not answer, or not to the end."),
		decodeOnly:      m.Counter("kvatlas_router_decode_only_total", "Requests that a decode worker did all of, although there are prefill workers."),
		prefillFailed:   m.Counter("kvatlas_router_prefill_failed_total", "Prefill workers that did not do their part of a request."),
		handedOver:      m.Counter(familyHanded, helpHanded, "result", "came"),
		handLost:        m.Counter(familyHanded, helpHanded, "result", "lost"),
		handOvers:       m.Counter("kvatlas_router_hand_over_fields_total", "Requests whose own fields about where a prompt's KV entries are were taken out."),
		stale:           m.Counter("kvatlas_router_stale_connections_total", "Requests that were sent again because an engine had closed the idle connection that they went on."),
		unfiled:         m.Counter("kvatlas_router_bodies_without_file_total", "Bodies that had to stay in memory because no file could be made."),
		forgotten:       m.Counter("kvatlas_router_responses_not_remembered_total", "Responses of which what was said is not remembered: too long, compressed, not over when it was answered, or not understood."),
		tokenizeHedged:  m.Counter("kvatlas_router_tokenize_hedged_total", "Texts that another engine was asked for too, because the first took longer than nearly all others."),
		tokenizeFailed:  m.Counter(tokenize, help, "from", "failed"),
		tokenizeCached:  m.Counter(tokenize, help, "from", "cache"),
		tokenizeAsked:   m.Counter(tokenize, help, "from", "engine"),
		ok:              m.GetOrCreateCounter(obs.Name(familyRequests, "outcome", "ok")),
		promptsAsTokens: m.Counter("kvatlas_router_prompts_as_tokens_total", "Prompts that went to an engine as the tokens that were made of them here (--pass-tokens)."),
		promptsAsText:   m.Counter("kvatlas_router_prompts_as_text_total", "Prompts whose tokens were made here and known to be the engine's, and that went as they came: the engine does not take tokens there, or the request says more of its text."),
		firstByte: m.Histogram("kvatlas_router_first_byte_seconds", "Time from a request's arrival to its answer's first byte.",
			obs.LatencyBuckets()),
	}
	const bodies, bodiesHelp = "kvatlas_router_body_bytes", "Bytes that the bodies of requests being answered take, by place."
	m.Gauge(bodies, bodiesHelp, func() float64 { return float64(p.spool.Stats().Memory) }, "place", "memory")
	m.Gauge(bodies, bodiesHelp, func() float64 { return float64(p.spool.Stats().Files) }, "place", "files")
	m.Gauge("kvatlas_router_bodies_arriving", "Bodies of requests that have not arrived whole.", func() float64 { return float64(p.spool.Stats().Bodies) })
	for _, why := range [...]string{whyGone, whyUnreachable, whyOverdue, whyBrokeOff, whyFull, whyStatus500, whyStatus5xx, whyNothing, whyRefused} {
		o.retries[why] = m.Counter(familyRetries, "Requests that were sent to another worker, by reason.", "reason", why)
	}
	for _, result := range [...]string{trialWell, trialFailed, trialFull, trialRefused, trialUnsent, trialSilent} {
		o.trials[result] = m.Counter("kvatlas_router_trials_total",
			"The router's own requests to engines, before a gateway's clients' go there and where an engine gives nothing, by result: well, failed, full, refused (with a status that the request may be the cause of), unsent (no connection) and silent (as another engine was not).", "result", result)
	}
	for _, found := range [...]string{keptKnown, keptAsked, keptNot} {
		o.kept[found] = m.Counter("kvatlas_router_kept_total", "Requests about responses, files and batches that engines keep, by how the engine was found.", "found", found)
	}
	for _, why := range [...]string{unreadEngine, unreadOther, unreadRefused, unreadPast, unreadLong, unreadDiffers} {
		o.unread[why] = m.Counter("kvatlas_router_unread_conversations_total",
			"Requests by other APIs than completions and chats that went by load, by reason: engine (not known as vLLM), unsupported, refused (the engine would, too), past (of another response, not known), too_long (--max-prompt-tokens, by bytes), differs (an engine makes another prompt of such a conversation).", "reason", why)
	}
	m.Gauge("kvatlas_router_responses_bytes", "Memory that takes what responses said, for those that go on with them.", func() float64 { return float64(p.turns.used(time.Now())) })
	m.Gauge("kvatlas_router_in_flight", "Requests being answered.", func() float64 { return float64(p.InFlight()) })
	for family, help := range map[string]string{ //nolint:gosec // names of metrics
		"kvatlas_router_predicted_cached_tokens_total": "Prompt tokens that the router expected to be cached where it sent the request.",
		"kvatlas_router_reported_cached_tokens_total":  "Prompt tokens that the engine found cached.",
		"kvatlas_router_predictions_total":             "Answers that say what was cached.",
		"kvatlas_router_prediction_error":              "Tokens predicted or reported but not both, as a part of those that were either, of late.",
		"kvatlas_router_predictions_wrong":             "1 while a worker's predictions stay wrong.",
		"kvatlas_router_live_bookings":                 "Requests that are booked, those of other routers too.",
		"kvatlas_router_put_off_total":                 "Times that a request stayed at the router, as it was better to wait there for a worker.",
		"kvatlas_router_settled_total":                 "Times that a request was put off only until other routers' choices of that moment were heard.",
		"kvatlas_router_pulls_total":                   "Prefixes that engines were told to fetch from another worker, and found cached then.",
		"kvatlas_router_pulls_missed_total":            "Prefixes that engines were told to fetch from another worker, and did not find cached then, or not all of them.",
		"kvatlas_router_contradictions_total":          "Engines' reports of what was cached that are not what the index has, with nothing that explains it.",
		"kvatlas_router_doubts_total":                  "Times that what a worker holds was to be read anew for that.",
		familyApart:                                    "Pairs of a prefill and a decode worker that are not made, by reason: transfer (kv_transfer is not the same), engine (one is of a kind that does not know it), lost (prompts did not come).",
		familyState:                                    "What requests tell of a worker: 1 for the state that it is in. open, full and silent ones get none.",
		familyLimited:                                  "Requests that were refused because of a limit of their tenant, by limit: requests or tokens.",
		familyQueue:                                    "Requests that wait because all workers of their model are busy, or the prompts ahead are long.",
		familyLeftOut:                                  "How often a worker was left out for what became of requests, by reason: failing (or giving nothing), full, and told (half open for another router's word that it fails).",
		"kvatlas_router_spared_total":                  "How often a worker was not left out because too many others were.",
		"kvatlas_router_worker_failures_total":         "Requests that a worker failed at.",
	} {
		m.Help(family, help)
	}
	quotas := func(name, help string, value func(s quota.Stats) float64) {
		m.Gauge("kvatlas_router_quota_"+name, help, func() float64 { return value(p.quotas.Stats()) })
	}
	quotas("part", "What part of tenants' limits this router, and those that it hears, hold to: below 1 while routers are cut off from each other.", func(s quota.Stats) float64 { return s.Part })
	quotas("routers", "Other routers that share tenants' limits, those that are silent too.", func(s quota.Stats) float64 { return float64(s.Known) })
	quotas("synced", "Of these, whose use of the limits is known.", func(s quota.Stats) float64 { return float64(s.Synced) })
	quotas("gaps_total", "How often another router's use had to be asked for: it was met, or a message was missed.", func(s quota.Stats) float64 { return float64(s.Gaps) })
	quotas("refused_total", "Messages about tenants' use that were none, or of too many routers.", func(s quota.Stats) float64 { return float64(s.Refused) })
	m.Gauge("kvatlas_router_quota_tenants", "Tenants whose use of their limits is known apart.", func() float64 { own, _ := p.quotas.Accounts(); return float64(own) })
	m.Gauge("kvatlas_router_quota_shared_total", "Requests of tenants beyond those, which share accounts.", func() float64 { _, shared := p.quotas.Accounts(); return float64(shared) })
	const dropped, droppedHelp = "kvatlas_router_access_log_dropped_total", "Requests that the access log does not tell of, by reason: full (its buffer) and failed (to be written)."
	m.Gauge(dropped, droppedHelp, func() float64 { full, _ := p.cfg.AccessLog.Dropped(); return float64(full) }, "reason", "full")
	m.Gauge(dropped, droppedHelp, func() float64 { _, failed := p.cfg.AccessLog.Dropped(); return float64(failed) }, "reason", "failed")
	helpAccounts(m, p.cfg.Decisions)
	m.RegisterMetricsWriter(func(w io.Writer) {
		writeModels(w, p)
		writeAccounts(w, p)
	})
	return o
}

// outcome returns the counter of requests that ended so. Outcomes are of a fixed
// list.
func (o *observer) outcome(how string) *metrics.Counter {
	if how == "ok" {
		return o.ok
	}
	return o.set.GetOrCreateCounter(obs.Name(familyRequests, "outcome", how))
}

// limited returns the counter of requests that a limit of their tenant refused.
func (o *observer) limited(by string) *metrics.Counter {
	return o.set.GetOrCreateCounter(obs.Name(familyLimited, "limit", by))
}

// writeModels writes what is known of each model and worker, family by family.
func writeModels(w io.Writer, p *Proxy) {
	p.meters.prune()
	type row struct {
		labels []string
		stat   predict.Stat
	}
	var rows []row
	metrics.WriteMetadataIfNeeded(w, familyQueue, "gauge")
	for _, m := range p.fleet.Models() {
		fmt.Fprintf(w, "%s %d\n", obs.Name(familyQueue, labelsOf(m)...), p.queue.waiting(m))
	}
	var stats []route.Stats
	models := p.fleet.Models()
	for _, m := range models {
		stats = append(stats, m.Router.Stats())
	}
	for _, f := range [...]struct {
		name, kind string
		value      func(s *route.Stats) uint64
	}{
		{"kvatlas_router_live_bookings", "gauge", func(s *route.Stats) uint64 { return uint64(s.Live) }},
		{"kvatlas_router_put_off_total", "counter", func(s *route.Stats) uint64 { return s.Later }},
		{"kvatlas_router_settled_total", "counter", func(s *route.Stats) uint64 { return s.Settled }},
		{"kvatlas_router_contradictions_total", "counter", func(s *route.Stats) uint64 { return s.Contradicted }},
		{"kvatlas_router_doubts_total", "counter", func(s *route.Stats) uint64 { return s.Doubted }},
		{"kvatlas_router_pulls_total", "counter", func(s *route.Stats) uint64 { return s.Pulled }},
		{"kvatlas_router_pulls_missed_total", "counter", func(s *route.Stats) uint64 { return s.NotPulled }},
	} {
		metrics.WriteMetadataIfNeeded(w, f.name, f.kind)
		for i, m := range models {
			fmt.Fprintf(w, "%s %d\n", obs.Name(f.name, labelsOf(m)...), f.value(&stats[i]))
		}
	}
	for _, m := range models {
		labels := labelsOf(m)
		for _, s := range m.Check.Stats() {
			rows = append(rows, row{append(labels[:len(labels):len(labels)],
				"worker", strconv.FormatUint(s.Worker, 10), "dp_rank", strconv.FormatUint(uint64(s.DPRank), 10)), s})
		}
	}
	writeHealth(w, p)
	writeApart(w, models)
	family := func(name, kind string, value func(s *predict.Stat) float64) {
		metrics.WriteMetadataIfNeeded(w, name, kind)
		for i := range rows {
			fmt.Fprintf(w, "%s %v\n", obs.Name(name, rows[i].labels...), value(&rows[i].stat))
		}
	}
	family("kvatlas_router_predicted_cached_tokens_total", "counter", func(s *predict.Stat) float64 { return float64(s.Predicted) })
	family("kvatlas_router_reported_cached_tokens_total", "counter", func(s *predict.Stat) float64 { return float64(s.Reported) })
	family("kvatlas_router_predictions_total", "counter", func(s *predict.Stat) float64 { return float64(s.Requests) })
	family("kvatlas_router_prediction_error", "gauge", func(s *predict.Stat) float64 { return s.Error })
	family("kvatlas_router_predictions_wrong", "gauge", func(s *predict.Stat) float64 {
		if s.Wrong {
			return 1
		}
		return 0
	})
}

// writeApart writes how many pairs are not made.
func writeApart(w io.Writer, models []*fleet.Model) {
	metrics.WriteMetadataIfNeeded(w, familyApart, "gauge")
	for _, m := range models {
		if !m.Split() {
			continue
		}
		n, _ := m.AllApart()
		for _, why := range fleet.Aparts() {
			fmt.Fprintf(w, "%s %d\n", obs.Name(familyApart, append(labelsOf(m), "reason", why)...), n[why])
		}
	}
}

// labelsOf returns the labels that name a model.
func labelsOf(m *fleet.Model) []string {
	return []string{"model", m.Space.Model, "block_size", strconv.Itoa(int(m.BlockSize)), "group", m.Group}
}

// writeHealth writes what requests tell of each worker, family by family.
func writeHealth(w io.Writer, p *Proxy) {
	type row struct {
		labels []string
		route.Health
	}
	var rows []row
	for _, m := range p.fleet.Models() {
		for _, h := range m.Router.Health() {
			rows = append(rows, row{append(labelsOf(m), "worker", strconv.FormatUint(h.Worker, 10)), h})
		}
	}
	family := func(name, kind string, lines func(r *row, line func(v uint64, labels ...string))) {
		metrics.WriteMetadataIfNeeded(w, name, kind)
		for i := range rows {
			lines(&rows[i], func(v uint64, labels ...string) {
				fmt.Fprintf(w, "%s %d\n", obs.Name(name, append(rows[i].labels[:len(rows[i].labels):len(rows[i].labels)], labels...)...), v)
			})
		}
	}
	family(familyState, "gauge", func(r *row, line func(uint64, ...string)) {
		state := r.State.String()
		if r.Silent {
			state = "silent"
		}
		line(1, "state", state)
	})
	family(familyLeftOut, "counter", func(r *row, line func(uint64, ...string)) {
		line(r.LeftOut, "reason", "failing")
		line(r.Refused, "reason", "full")
		line(r.Told, "reason", "told")
	})
	family("kvatlas_router_spared_total", "counter", func(r *row, line func(uint64, ...string)) { line(r.Spared) })
	family("kvatlas_router_worker_failures_total", "counter", func(r *row, line func(uint64, ...string)) { line(r.Failed) })
}
