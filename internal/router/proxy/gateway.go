package proxy

import (
	"context"
	"log/slog"
	"math"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// Where a gateway has the request and asks only where it is to go, the router does with it all
// that it does with its own but to send it: it hands on what an engine is to get, and reads of
// the answer what comes by. A request is handed on once: whom it goes to next if that engine
// does not take it is for the gateway to try, in the order that it was told.

// GatewayConfig says how endpoints are told to gateways.
type GatewayConfig struct {
	// Ports are those of an engine's data-parallel ranks, the first one's first, where each
	// listens on its own; none: all are behind one, and a header says which is meant.
	Ports     []string
	Fallbacks int  // further endpoints for each request
	Scores    bool // say what the choice made of all of them
	// Trial is for how long a request waits at most for what the router's own tell of engines; see trials.go. 0: there are none.
	Trial time.Duration
}

// Declare adds the settings to the set.
func (c *GatewayConfig) Declare(set *conf.Set) {
	set.List(&c.Ports, "picker-rank-ports", nil, `Ports of an engine's data-parallel ranks, the first one's first, where each listens
		on its own, as in a pool with several target ports. Without them all are behind the engine's address, and X-Data-Parallel-Rank says which is meant.`)
	set.Int(&c.Fallbacks, "picker-fallbacks", 0, `Further endpoints that a gateway is told for each request, in the order in which it should
		try them. Each is one more choice. Give some only where the gateway takes lists: Envoy's ORIGINAL_DST cluster takes one.`, conf.Between(0, 16))
	set.Duration(&c.Trial, "picker-trial", time.Second, `How long a request of a gateway's may wait, and an engine of which nothing is known is left to others,
		until a small request of the router's own (one prompt of one character, four tokens) was answered there. Engines that failed
		and may be well again are tried so, too, before clients' requests go there, as what fails behind a gateway is lost. 0 sends none.`, conf.Between(0, time.Minute))
	set.Bool(&c.Scores, "picker-scores", false, `Say in dynamic metadata, as x-gateway-destination-endpoint-scores, what each endpoint costs beside the cheapest: 1
		for that, 0.5 for twice its cost.`)
}

// Score is what a choice made of an endpoint: 1 is the best.
type Score struct {
	Endpoint string
	Score    float64
}

// Picked is where a request is to go.
type Picked struct {
	Endpoints []string // ip:port, to be tried in this order
	Scores    []Score
	// Prefill is who computes the prompt, as ip:port; "" is nobody else.
	Prefill string
	// Header has the router's own headers of the answer.
	Header http.Header
}

// Gateway has a request and sends it to an engine.
type Gateway interface {
	// HandOn tells it where the request goes, and as what. It returns the answer, whose body
	// comes as the client gets it, and the endpoint that gave it, "" if that is not said. The
	// Request's body is closed when it returns.
	HandOn(req *http.Request, to Picked) (resp *http.Response, served string, err error)
}

// Passage is what is known of a request that a gateway has.
type Passage struct {
	Gateway Gateway
	ID      string // no other has it
	// Subset, if not nil, are the endpoints that it may go to: ip:port, or ip for all ports.
	Subset   []string
	Priority int // beside others of its tenant, and before other tenants; below 0 it does not wait
}

type passageKey struct{}

// WithPassage returns a context in which a request is one that a gateway has.
func WithPassage(ctx context.Context, y *Passage) context.Context {
	return context.WithValue(ctx, passageKey{}, y)
}

func passageOf(r *http.Request) *Passage {
	y, _ := r.Context().Value(passageKey{}).(*Passage)
	return y
}

func (y *Passage) sheddable() bool { return y != nil && y.Priority < 0 }

// passes reports whether a gateway's clients may use a route of the class. What is the router's
// own, but for its models, is not theirs to see.
func (c class) passes(path string) bool {
	switch c {
	case own:
		of := ownPath(path)
		return of == "/v1/models" || of == pathModel
	case generating, passing:
		return true
	case administration, operating, selecting, keeping:
	}
	return false
}

func notBehindGateway() *refusal {
	return refuse(http.StatusNotFound, "unknown_route", "no such route behind this gateway")
}

// within leaves the request only the ranks that its gateway names.
func (p *Proxy) within(q *call) {
	if q.passage == nil || q.passage.Subset == nil {
		return
	}
	named := make(map[string]bool, len(q.passage.Subset))
	for _, e := range q.passage.Subset {
		named[e] = true
	}
	q.options.Ranks = make(map[shard.RankID]bool)
	for id, e := range q.m.Engines() {
		for i := range e.Ranks() {
			rank := e.First() + i
			at := p.endpoint(e, rank)
			host, _, _ := net.SplitHostPort(at)
			if named[at] || named[host] {
				q.options.Ranks[shard.RankID{Worker: id, DPRank: rank}] = true
			}
		}
	}
}

// endpoint returns where a rank listens.
func (p *Proxy) endpoint(e *fleet.Engine, rank uint32) string {
	if e.Base.Host == "" {
		return ""
	}
	if i := rank - e.First(); int64(i) < int64(len(p.cfg.Gateway.Ports)) && e.Ranks() > 1 {
		return net.JoinHostPort(e.Base.Hostname(), p.cfg.Gateway.Ports[i])
	}
	port := e.Base.Port()
	if port == "" {
		if port = "80"; e.Base.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(e.Base.Hostname(), port)
}

// exchange sends the request to its engine, or has the gateway do so, and returns the answer.
func (p *Proxy) exchange(w http.ResponseWriter, q *call, pair *route.Pair, stage route.Stage, req *http.Request) (*http.Response, error) {
	if q.passage != nil {
		return p.handOn(w, q, pair, stage, req)
	}
	return p.client.RoundTrip(req)
}

// handOn has the gateway send a request to the chosen worker. If another one answered, the
// booking is its.
func (p *Proxy) handOn(w http.ResponseWriter, q *call, pair *route.Pair, stage route.Stage, req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		defer req.Body.Close() //nolint:errcheck // has none
	}
	e := q.m.Engine(pair.Decode.Worker)
	if e == nil {
		return nil, errNoEngine
	}
	to := Picked{Endpoints: []string{p.endpoint(e, pair.Decode.DPRank)}, Header: w.Header()}
	if len(p.cfg.Gateway.Ports) > 0 {
		req.Header.Del(headerEngineRank) // its port says it
	}
	if pair.Prefill != nil {
		if with := q.m.Engine(pair.Prefill.Worker); with != nil {
			to.Prefill = p.endpoint(with, pair.Prefill.DPRank)
		}
	}
	to.Endpoints = append(to.Endpoints, p.fallbacks(req.Context(), q, pair.Decode.Worker)...)
	to.Scores = p.scores(q, &pair.Decode)
	q.own(to.Header)
	p.nameWorkers(to.Header, q, pair)
	resp, served, err := q.passage.Gateway.HandOn(req, to)
	if err != nil {
		return nil, err
	}
	if served != "" && served != to.Endpoints[0] {
		p.moved(req.Context(), q, pair, stage, served)
	} else if pair.Prefill != nil {
		p.prefilled(q, resp)
	}
	return resp, nil
}

// prefilled ends a prefill worker's part, which is before the answer's head. Whose fault it is that a
// pair fails is not said: both are blamed, and what each does in other pairs tells. That there is no room
// says nothing of it.
func (p *Proxy) prefilled(q *call, resp *http.Response) {
	switch against, why := judgeStatus(resp.StatusCode, resp.Header, time.Now()); {
	case against.Full:
	case why == whyStatus500 || why == whyStatus5xx:
		against.Shared = true
		q.m.Router.Failed(q.id, route.PrefillStage, against)
	default:
		q.m.Router.Succeeded(q.id, route.PrefillStage)
	}
	q.m.Router.FreeStage(q.id, route.PrefillStage)
	p.queue.wake(q.m)
}

// fallbacks returns who else may take the request, in order. Nothing is booked there.
func (p *Proxy) fallbacks(ctx context.Context, q *call, chosen uint64) (list []string) {
	o := q.options
	for range p.cfg.Gateway.Fallbacks {
		o.Excluded = append(slices.Clone(o.Excluded), chosen)
		a, err := q.m.Router.BestWorker(ctx, q.prompt, o)
		if err != nil {
			return list // there are no more
		}
		chosen = a.Worker
		if e := q.m.Engine(chosen); e != nil {
			list = append(list, p.endpoint(e, a.DPRank))
		}
	}
	return list
}

// scores says what the choice made of the endpoints that it could take.
func (p *Proxy) scores(q *call, a *route.Answer) (list []Score) {
	least := math.Inf(1)
	for i := range a.Ranks {
		if a.Ranks[i].Left == route.Eligible {
			least = min(least, a.Ranks[i].Cost)
		}
	}
	at := make(map[string]int)
	for i := range a.Ranks {
		c := &a.Ranks[i]
		e := q.m.Engine(c.Worker)
		if c.Left != route.Eligible || e == nil {
			continue
		}
		s := Score{p.endpoint(e, c.DPRank), 1}
		if c.Cost > least {
			s.Score = max(least, 0) / c.Cost
		}
		if j, known := at[s.Endpoint]; known { // several ranks are behind one
			list[j].Score = max(list[j].Score, s.Score)
			continue
		}
		at[s.Endpoint] = len(list)
		list = append(list, s)
	}
	return list
}

// moved books the request where it was answered, which is not where it was sent first: who did
// not take it has failed.
func (p *Proxy) moved(ctx context.Context, q *call, pair *route.Pair, stage route.Stage, served string) {
	router := q.m.Router
	router.Failed(q.id, stage, route.Failure{})
	router.Free(q.id)
	p.queue.wake(q.m)
	for id, e := range q.m.Engines() {
		for i := range e.Ranks() {
			rank := e.First() + i
			if p.endpoint(e, rank) != served {
				continue
			}
			o := route.Options{RequestID: q.id, Watched: true, Whole: !q.stream, Stage: stage, Client: q.options.Client, ExpectedOutput: q.options.ExpectedOutput, MostOutput: q.options.MostOutput, Worker: &id}
			if len(p.cfg.Gateway.Ports) > 0 || e.Ranks() == 1 {
				o.DPRank = &rank
			}
			if a, err := router.BestWorker(ctx, q.prompt, o); err == nil { // else it has just left
				pair.Decode = a
				q.tally.attempted(pair)
			}
			return
		}
	}
	p.limit.Warn("served", "a gateway had an endpoint answer that is no worker's", q.attr(), slog.String("endpoint", served))
}
