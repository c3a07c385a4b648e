package proxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/spool"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/route"
)

// call is one request on its way.
type call struct {
	body
	data    []byte
	spooled *spool.Body // keeps data; nil without a body
	header  http.Header
	m       *fleet.Model
	lora    string
	id      string // of its booking
	arrival time.Time
	options route.Options
	// session is the hash of what the client calls it: names may be long.
	session   xxh3.Uint128
	inSession bool

	prompt route.Prompt
	known  bool // the prompt's tokens are known and looked up
	split  bool // a prefill worker may do its part
	// refusedBefore: the prefill engine calls the request wrong. Whether it is, is for
	// the decode engine to say, too: the router has added to what the first one got.
	refusedBefore bool
}

type sessionKey struct {
	model   *fleet.Model
	session xxh3.Uint128
}

// budget lets retries be a share of all requests. A few are always possible, so
// that a quiet router retries too.
type budget struct {
	share float64
	mu    sync.Mutex
	left  float64
	begun bool
}

// burst is how many retries may come at once.
const burst = 10

func (b *budget) request() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.begun {
		b.begun = true
		if b.share > 0 {
			b.left = burst
		}
	}
	b.left = math.Min(burst, b.left+b.share)
}

func (b *budget) take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// failure is why an attempt gave no answer that was passed on.
type failure struct {
	*refusal
	retry bool // another worker may do better
	whole bool // a decode worker alone may do better
}

// run chooses a worker and passes the request on, again if that fails in time.
func (p *Proxy) run(w http.ResponseWriter, r *http.Request, q *call) {
	ctx := r.Context()
	q.prompt, q.known = p.prompt(ctx, q.m, q)
	var last *refusal
	for attempt := 0; ; {
		best, err := p.choose(ctx, q)
		if err != nil {
			if ctx.Err() != nil {
				p.obs.outcome("client_gone").Inc()
				return
			}
			if last == nil || errors.Is(err, route.ErrOverloaded) {
				last = p.refusedBy(err)
			}
			p.refuse(w, last)
			return
		}
		f := p.attempt(w, r, q, &best)
		if f == nil {
			return
		}
		last = f.refusal
		if f.whole {
			q.split = false
			p.obs.decodeOnly.Inc()
			continue
		}
		if !f.retry || attempt >= p.cfg.Retries || q.options.Worker != nil {
			p.refuse(w, last)
			return
		}
		if !p.budget.take() {
			p.obs.retriesDenied.Inc()
			p.refuse(w, last)
			return
		}
		attempt++
		p.obs.retries.Inc()
		q.options.Excluded = append(q.options.Excluded[:len(q.options.Excluded):len(q.options.Excluded)], best.Decode.Worker)
	}
}

// queuePoll is how often the first in the queue tries without being woken.
const queuePoll = 50 * time.Millisecond

// choose books a worker, and waits for one if all are busy and there is a queue.
func (p *Proxy) choose(ctx context.Context, q *call) (best route.Pair, err error) {
	if p.queue.limit == 0 {
		return p.chooseNow(ctx, q)
	}
	tokens := max(len(q.prompt.Tokens), q.prompt.Length)
	key := p.queue.key(q.arrival, tokens)
	waiting, cancel := context.WithDeadline(ctx, q.arrival.Add(p.cfg.QueueTimeout))
	defer cancel()
	for first := true; ; first = false {
		err = route.ErrOverloaded // behind others
		if !first || !p.queue.busy() {
			best, err = p.chooseNow(ctx, q)
		}
		if !errors.Is(err, route.ErrOverloaded) {
			if !first {
				p.queue.wake() // there may be room for the next one, too
			}
			return best, err
		}
		switch werr := p.queue.wait(waiting, key, queuePoll); {
		case ctx.Err() != nil:
			return best, ctx.Err()
		case errors.Is(werr, errQueueFull):
			return best, fmt.Errorf("%w, and %w", err, errQueueFull)
		case werr != nil:
			return best, fmt.Errorf("%w for longer than %v", err, p.cfg.QueueTimeout)
		}
	}
}

func (p *Proxy) chooseNow(ctx context.Context, q *call) (route.Pair, error) {
	o := q.options
	o.RequestID = q.id
	key := sessionKey{q.m, q.session}
	if q.inSession && o.Worker == nil {
		if at, ok := p.sessions.get(key, time.Now()); ok {
			o.Worker, o.DPRank = &at.Worker, &at.DPRank
			best, err := p.best(ctx, q, o)
			if !errors.Is(err, route.ErrOverloaded) && !errors.Is(err, route.ErrNoWorker) {
				p.sessions.put(key, at, 1, time.Now())
				return best, err
			}
			o.Worker, o.DPRank = q.options.Worker, q.options.DPRank // soft: it may go elsewhere
		}
	}
	best, err := p.best(ctx, q, o)
	if err == nil && q.inSession {
		p.sessions.put(key, best.Decode.RankID, 1, time.Now())
	}
	return best, err
}

// best books a worker for all of the request, or one for each of its parts.
func (p *Proxy) best(ctx context.Context, q *call, o route.Options) (best route.Pair, err error) {
	if q.split && q.m.Split() {
		best, err = q.m.Router.BestPair(ctx, q.prompt, o)
		if err == nil && best.Prefill == nil {
			p.obs.decodeOnly.Inc()
		}
		return best, err
	}
	best.Decode, err = q.m.Router.BestWorker(ctx, q.prompt, o)
	return best, err
}

// attempt passes the request to the chosen worker, whose booking ends with it.
func (p *Proxy) attempt(w http.ResponseWriter, r *http.Request, q *call, pair *route.Pair) *failure {
	defer func() {
		q.m.Router.Free(q.id)
		p.queue.wake()
	}()
	e := q.m.Engine(pair.Decode.Worker)
	if e == nil {
		return &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the worker has just left"), retry: true}
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel() // frees the connection, and stops the engine if the answer is not whole
	part := &prefill{data: q.pieces([][]byte{q.data})}
	if pair.Prefill != nil {
		var err error
		if part, err = p.prefillFirst(ctx, r, q, pair.Prefill, cancel); err != nil {
			return p.notPrefilled(r, q, err)
		}
		defer part.end()
	}
	resp, err := p.client.RoundTrip(p.engineRequest(ctx, r, part.data, e, pair.Decode.DPRank))
	if err != nil {
		if part.failed.Load() {
			return p.notPrefilled(r, q, part.why)
		}
		return p.unreached(r, e, err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if part.failed.Load() && resp.StatusCode >= 500 {
		return p.notPrefilled(r, q, part.why)
	}
	switch resp.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		if q.options.Worker == nil {
			p.obs.engineErrors.Inc()
			return &failure{refusal: refuse(resp.StatusCode, "engine_unavailable", "the engine answers "+strconv.Itoa(resp.StatusCode)), retry: true}
		}
	}
	e.Succeeded()
	p.answer(w, r, q, pair, resp, cancel)
	return nil
}

// notPrefilled makes the request go to a decode worker alone, unless its client
// is gone.
func (p *Proxy) notPrefilled(r *http.Request, q *call, err error) *failure {
	if r.Context().Err() != nil {
		return &failure{refusal: refuse(499, "client_gone", "the client is gone")}
	}
	if q.refusedBefore = errors.Is(err, errRefused); !q.refusedBefore {
		p.prefillFailed(err)
	}
	return &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the prefill worker failed"), whole: true}
}

func (p *Proxy) prefillFailed(err error) {
	p.obs.prefillFailed.Inc()
	p.limit.Warn("prefill", "a prefill worker failed; a decode worker does all of it", errAttr(err))
}

func (p *Proxy) unreached(r *http.Request, e *fleet.Engine, err error) *failure {
	if r.Context().Err() != nil {
		return &failure{refusal: refuse(499, "client_gone", "the client is gone")}
	}
	p.obs.engineErrors.Inc()
	p.limit.Warn("engine", "an engine did not answer", errAttr(err))
	if p.late(err) {
		// It may be at work on the request: not for another worker to repeat.
		e.Failed()
		return &failure{refusal: refuse(http.StatusGatewayTimeout, "engine_timeout", "the engine did not begin to answer in time")}
	}
	e.Failed()
	return &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the engine cannot be reached"), retry: true}
}

// late reports whether an engine has the request and does not begin to answer.
func (p *Proxy) late(err error) bool {
	var timeout interface{ Timeout() bool }
	var op *net.OpError
	connecting := errors.As(err, &op) && op.Op == "dial"
	return p.cfg.FirstByte > 0 && !connecting && (errors.Is(err, upstream.ErrNoAnswer) || errors.As(err, &timeout) && timeout.Timeout())
}

// engineRequest makes what is sent to a rank of the engine.
func (p *Proxy) engineRequest(ctx context.Context, r *http.Request, data upstream.Payload, e *fleet.Engine, rank uint32) *http.Request {
	req := p.toEngine(ctx, r, data, e)
	if e.Ranks() > 1 {
		req.Header.Set(headerEngineRank, strconv.FormatUint(uint64(rank), 10))
	}
	return req
}

// toEngine makes what is sent to the engine.
func (p *Proxy) toEngine(ctx context.Context, r *http.Request, data upstream.Payload, e *fleet.Engine) *http.Request {
	base := e.Base
	u := &url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path + r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.URL.RawPath != "" {
		u.RawPath = base.EscapedPath() + r.URL.RawPath
	}
	req := (&http.Request{
		Method: r.Method, URL: u, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: make(http.Header, len(r.Header)+2), Host: base.Host, ContentLength: int64(data.Len()),
	}).WithContext(ctx)
	if req.ContentLength > 0 {
		req.Body = data.Body()
	}
	copyHeaders(req.Header, r.Header)
	req.Header.Del("Expect")
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil // none, not Go's
	}
	if p.cfg.ForwardClient {
		forwardClient(req.Header, r)
	}
	req.Header.Del(headerEngineRank)
	if p.cfg.Access != nil && p.cfg.Access.Guarded() {
		for _, name := range clientKeys {
			req.Header.Del(name) // the guard has taken it for the router's
		}
	}
	e.Show(req.Header)
	return req
}
