package proxy

import (
	"hash/maphash"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/quota"
	"github.com/kvatlas/kvatlas/internal/router/selection"
	"github.com/kvatlas/kvatlas/internal/router/spool"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route"
)

// Proxy answers requests. It is an http.Handler.
type Proxy struct {
	cfg        Config
	fleet      *fleet.Fleet
	client     *upstream.Client
	selection  *selection.Service
	limit      *obs.Limited
	obs        *observer
	queue      queue
	budget     budget
	quotas     *quota.Table
	meters     *meters
	texts      *lru[textKey, []uint32]
	sessions   *lru[sessionKey, route.Session]
	kept       *lru[xxh3.Uint128, uint64] // of what, the worker
	turns      *lru[xxh3.Uint128, turn]   // of responses
	tokenizing tokenizing
	tokens     *tokens.Source
	buffers    sync.Pool     // of *room
	hashes     sync.Pool     // of *[]uint64
	desks      sync.Pool     // of *desk
	answers    sync.Pool     // of *tokenAnswers
	decoding   chan struct{} // has room for those that may decode bodies or read them from files at once
	asking     chan struct{} // has room for those that may ask all engines at once
	flight     *flight
	trials     trials
	spool      *spool.Spool
	routes     *routes
	hosts      *secure.Names
	guarded    http.Handler // what follows the canonical path
	seed       maphash.Seed // of clients' hashes
}

// maxTenants bounds the tenants whose use is known apart.
const maxTenants = 4096

// New returns a Proxy. The error is about Config.Routes.
func New(cfg Config) (p *Proxy, err error) {
	p = &Proxy{
		cfg: cfg, fleet: cfg.Fleet, seed: maphash.MakeSeed(),
		client: upstream.New(upstream.Config{DialTimeout: cfg.DialTimeout, IdleConns: cfg.IdleConns, IdleTimeout: cfg.KeepAlive, TLS: cfg.TLS,
			Stale: func() { p.obs.stale.Inc() }}),
		selection:  selection.New(selection.Config{Models: cfg.Fleet.Selectable, Named: cfg.Fleet.Meant, Unread: cfg.Unread, MaxBody: int(min(cfg.MaxBody, maxSelection))}),
		limit:      obs.NewLimited(cfg.Log, time.Second, nil),
		queue:      queue{limit: cfg.Queue, order: cfg.QueueOrder, priority: cfg.QueuePriority, age: max(cfg.QueueAge, time.Millisecond)},
		quotas:     quota.NewTable(maxTenants),
		flight:     newFlight(cfg.MaxInflight, cfg.InflightShare),
		budget:     budget{share: cfg.RetryShare, burst: float64(cfg.RetryBurst)},
		texts:      newLRU[textKey, []uint32](cfg.TokenCache, 0),
		tokenizing: tokenizing{settings: cfg.TokenizeBreaker, first: cfg.TokenizeHedge, least: cfg.TokenizeHedgeLeast},
		sessions:   newLRU[sessionKey, route.Session](int64(cfg.MaxSessions), cfg.SessionLife),
		kept:       newLRU[xxh3.Uint128, uint64](int64(cfg.MaxKept), 0),
		turns:      newLRU[xxh3.Uint128, turn](cfg.Responses, cfg.ResponseLife),
	}
	p.spool = spool.New(spool.Config{
		Memory: cfg.BodyMemory, Each: cfg.BodyEach, Files: cfg.BodyFiles, Dir: cfg.BodyDir, Share: cfg.BodyShare,
		Unfiled: func(err error) {
			p.obs.unfiled.Inc()
			p.limit.Warn("file", "no file can be made for long bodies: they take memory; see --body-dir", errAttr(err))
		},
	})
	p.trials.begin()
	p.decoding = make(chan struct{}, 2*runtime.GOMAXPROCS(0))
	p.asking = make(chan struct{}, cfg.MaxAsking)
	p.buffers.New = func() any { return &room{buf: make([]byte, 32<<10)} }
	p.desks.New = func() any { return new(desk) }
	p.hashes.New = func() any { return &[]uint64{} } // of none, too, a prompt is known: not nil
	p.answers.New = func() any { return new(tokenAnswers) }
	tc := cfg.Tokenizers
	tc.Ask, tc.AskText, tc.Software, tc.Log, tc.Metrics = p.engineTokens, p.engineText, p.engineSoftware, cfg.Log, cfg.Metrics
	p.tokens = tokens.NewSource(tc)
	p.meters = newMeters(cfg.Metrics, cfg.MetricLabels)
	p.obs = newObserver(cfg.Metrics, p)
	if p.routes, err = newRoutes(cfg.Routes, cfg.Selection, cfg.PassThrough, p.ownRoutes(), map[string]http.HandlerFunc{pathRetryTokens: p.retryTokens}); err != nil {
		return nil, err
	}
	p.guarded = http.HandlerFunc(p.serve)
	if cfg.Access != nil {
		p.hosts = cfg.Access.Names(cfg.Listen)
		p.guarded = takeKey(cfg.Access.GuardBy(p.routes.needs, p.keepOut, p.guarded))
	}
	if len(cfg.Origins) > 0 {
		p.guarded = p.sharing(p.guarded)
	}
	return p, nil
}

// Close ends trials and closes idle connections to engines.
func (p *Proxy) Close() {
	p.trials.end()
	p.client.Close()
}

// Quotas returns what tenants have used.
func (p *Proxy) Quotas() *quota.Table { return p.quotas }

// InFlight returns how many requests are being answered.
func (p *Proxy) InFlight() int { return p.flight.count() }

// ServeHTTP implements http.Handler.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if p.cfg.AccessLog != nil {
		p.record(w, r)
		return
	}
	p.answerTo(w, r)
}

func (p *Proxy) answerTo(w http.ResponseWriter, r *http.Request) {
	w.Header()[headerRequest] = name(r)
	if p.cfg.Health.Draining() { // the client's next request goes elsewhere
		w.Header().Set("Connection", "close")
	}
	console := p.cfg.Console != nil && passageOf(r) == nil && (r.URL.Path == pathConsole || strings.HasPrefix(r.URL.Path, pathConsole+"/"))
	if !console { // its links hang on the slash, which no other path keeps
		if no := p.front(w, r); no != nil {
			p.refuse(w, r, no)
			return
		}
	}
	if passageOf(r) == nil && !p.hosts.Has(r.Host) {
		if need, _ := p.routes.needs(r); need > secure.Anybody { // probes may come by any name
			p.refuse(w, r, refuse(http.StatusForbidden, "forbidden", secure.RefusedName))
			return
		}
	}
	if console {
		p.cfg.Console.ServeHTTP(w, r)
		return
	}
	p.guarded.ServeHTTP(w, r)
}

// serve answers a request whose caller may make it.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	recordCaller(w, r)
	p.withoutCredentials(r.Header)
	c := p.routes.of(r)
	if passageOf(r) != nil && !c.passes(r.URL.Path) {
		p.refuse(w, r, notBehindGateway())
		return
	}
	switch c {
	case own:
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			p.refuse(w, r, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "use GET on this route"))
			return
		}
		p.routes.own[ownPath(r.URL.Path)](w, r)
	case operating:
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", "POST")
			p.refuse(w, r, refuse(http.StatusMethodNotAllowed, "method_not_allowed", "use POST on this route"))
			return
		}
		p.routes.operates[r.URL.Path](w, r)
	case selecting:
		p.serveSelection(w, r)
	case generating, passing:
		p.serveEngine(w, r, c == generating)
	case keeping:
		p.serveKept(w, r)
	case administration:
		p.serveAdministration(w, r)
	}
}

// ownRoutes returns what the router answers itself, to GET and HEAD.
func (p *Proxy) ownRoutes() map[string]http.HandlerFunc {
	about := edge.About{Health: p.cfg.Health, Metrics: p.cfg.Metrics, OpenAPI: func() string {
		if p.cfg.Selection {
			return api.Router()
		}
		return api.Without(api.Router(), selection.Owns)
	}}
	return map[string]http.HandlerFunc{
		"/livez": about.ServeHTTP, "/health": about.ServeHTTP, "/readyz": about.ServeHTTP, "/version": about.ServeHTTP, "/metrics": about.ServeHTTP,
		"/openapi.yaml": about.ServeHTTP, "/v1/models": p.models, pathModel: p.oneModel, pathDecisions: p.decisions, pathDecision: p.oneDecision, pathTokens: p.tokenizers,
	}
}

// pathConsole is where the console is.
const pathConsole = "/console"

// maxSelection bounds a body of package selection's routes, in bytes: a million tokens.
const maxSelection = 8 << 20

func (p *Proxy) serveSelection(w http.ResponseWriter, r *http.Request) {
	q := new(call)
	defer q.forgetBody()
	if no := p.readBody(w, r, q); no != nil {
		p.refuse(w, r, no)
		return
	}
	ctx := r.Context()
	if p.cfg.Tracer != nil {
		var s spans.Span
		ctx, s = spans.Serve(ctx, p.cfg.Tracer, r.Header.Get(spans.Parent), r.Header.Get(spans.State), "selection", time.Now())
		defer s.End()
	}
	a := p.selection.Serve(ctx, selection.Request{
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, ContentType: r.Header.Get("Content-Type"), Body: q.data,
	})
	if a.Status == http.StatusNotFound && a.Reason == "unknown_model" {
		if no := p.unlessUnknown(nil); no != nil {
			p.refuse(w, r, no)
			return
		}
	}
	if a.Allow != "" {
		w.Header().Set("Allow", a.Allow)
	}
	if a.Reason != "" {
		p.obs.outcome("selection_" + a.Reason).Inc()
	}
	if r.Method == http.MethodDelete {
		p.queue.wake(nil)
	}
	p.giveTime(w)
	writeJSON(w, a.Status, a.Body)
}

// serveEngine reads a request for an engine and passes it on.
func (p *Proxy) serveEngine(w http.ResponseWriter, r *http.Request, routed bool) {
	client, no := p.enter(r)
	if no != nil {
		p.refuse(w, r, no)
		return
	}
	d := p.desks.Get().(*desk) //nolint:forcetypeassert // the pool holds nothing else
	q := &d.call
	*q = call{desk: d, seat: placeOf(w), who: clientAt(w), arrival: time.Now(), id: edge.NewID(), at: place{guest: client}, name: r.Header[headerRequest], header: r.Header, split: routed, passage: passageOf(r)}
	defer p.forget(q)
	defer p.finish(q)
	recordCall(w, q)
	r = p.traced(r, q)
	no = p.read(w, r, q)
	if no == nil && q.keeps != "" && q.refers != "" {
		no = p.beside(r, q)
	}
	if no != nil {
		q.tally.refused(no)
		q.own(w.Header())
		p.refuse(w, r, no)
		return
	}
	if p.ownTokens(w, r, q) {
		return
	}
	p.budget.request()
	if p.askedTokens(w, r, q) {
		return
	}
	p.run(w, r, q)
}

// read reads the request and finds its model.
func (p *Proxy) read(w http.ResponseWriter, r *http.Request, q *call) *refusal {
	if no := p.readBody(w, r, q); no != nil {
		return no
	}
	defer p.look(r, q)()
	routed := q.split
	_, free := p.routes.free[r.URL.Path]
	if routed {
		q.api = apis[r.URL.Path]
	}
	err, no := p.parse(r, q, free)
	switch {
	case no != nil:
		return no
	case err != nil && (routed || !free && len(q.data) > 0):
		return refuse(http.StatusBadRequest, "malformed_json", "the body: "+err.Error())
	case !routed:
		q.tokens, q.text, q.rest = nil, nil, 0 // what such a route makes of them is not known
	case q.model == "" && q.api.choices:
		return refuse(http.StatusBadRequest, "missing_model", "name the model")
	}
	group := ""
	if q.trusted = p.trusted(r); q.trusted {
		if q.options, err = options(r.Header); err != nil {
			return refuse(http.StatusBadRequest, "invalid_option", err.Error())
		}
		group = r.Header.Get(headerGroup)
	}
	if q.payer, no = p.payerOf(r, q.trusted); no != nil {
		return no
	}
	tenant := tenantOf(r)
	if tenant != nil {
		group = *tenant
	}
	q.options.MostOutput = q.output
	if q.passage != nil {
		q.options.Client = maphash.Comparable(p.seed, clientOf(r))
	}
	p.recognise(r, q)
	name := q.model
	if name == "" && !routed {
		name = r.Header.Get(headerModel) // of what has no place for it
	}
	if all := p.fleet.Models(); name == "" && len(all) == 1 {
		q.m = all[0]
	} else {
		q.m, q.lora = p.fleet.Lookup(name, group)
	}
	if q.m == nil || tenant != nil && q.m.Group != *tenant {
		return p.notServed(name)
	}
	if q.lora != "" {
		selection.Allow(&q.options, q.m.LoraWorkers(q.lora))
	} else if q.model != "" {
		selection.Allow(&q.options, q.m.NameWorkers(q.model))
	}
	switch q.keeps, _ = keptPath(r.URL.Path); q.keeps { // elsewhere the names mean nothing
	case "responses":
		q.refers = q.before
	case "batches":
		q.refers = q.file
	}
	if routed {
		q.place(p.cfg.MaxPrompt)
	}
	p.within(q)
	q.generates, q.wants = q.api.choices, routed || q.object && !free && r.Method == http.MethodPost
	if no := p.withoutTransfers(r, q); no != nil {
		return no
	}
	return p.charge(r, q)
}

// notServed refuses a request for a model that is not there, or that it does not name
// where there are several.
func (p *Proxy) notServed(model string) *refusal {
	if model == "" {
		return p.unlessUnknown(refuse(http.StatusBadRequest, "missing_model", "name the model: in the body, or in "+headerModel))
	}
	return p.unlessUnknown(refuse(http.StatusNotFound, "model_not_found", "the model "+shorten(model)+" is not served here"))
}

// unlessUnknown returns the refusal for what nobody has, unless who the workers are is not
// known yet: then it is one of those that clients take for passing.
func (p *Proxy) unlessUnknown(no *refusal) *refusal {
	if why := p.unknown(); why != "" {
		return refuse(http.StatusServiceUnavailable, "workers_unknown", "the router does not know its workers yet: "+why)
	}
	return no
}

// unknown says why the workers are not known yet; "" if they are.
func (p *Proxy) unknown() string {
	if p.cfg.Unknown == nil {
		return ""
	}
	return p.cfg.Unknown()
}

func shorten(name string) string {
	if len(name) > 64 {
		name = strings.ToValidUTF8(name[:64], "") + "…"
	}
	return `"` + name + `"`
}
