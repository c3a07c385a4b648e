package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/spool"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/route"
)

// call is one request on its way.
type call struct {
	body
	api      dialect
	chats    []byte // the request as one to /v1/chat/completions, where it is none
	data     []byte
	spooled  *spool.Body // keeps data; nil without a body
	at       place       // among those that are being answered
	header   http.Header
	m        *fleet.Model
	lora     string
	id       string   // of its booking
	name     []string // the request's id, as in a header: what a client gives may come twice
	http2    bool     // its deadline for writing holds while nothing is written, too
	trusted  bool     // its caller may override choices, and see what they went by
	recalled bool     // what a response adds to its conversation is to be kept
	refers   string   // what an engine keeps and the request goes on with
	keeps    string   // of what kind the answer is that an engine keeps; "" for none
	payer    payer
	size     int64 // of the body
	tally    tally
	span     spans.Span // of the request
	arrival  time.Time
	options  route.Options
	// session is the hash of what the client calls it, as names may be long, or of its messages: then
	// follows is where those that it goes on with went; nil: nobody knows.
	session            xxh3.Uint128
	inSession, unnamed bool
	follows            *route.Session

	prompt route.Prompt
	ids    *tokens.IDs // those of prompt, if they were made here; nil else
	hashes *[]uint64   // room for those of prompt, to be given back; nil without
	known  bool        // the prompt's tokens are known and looked up
	split  bool        // a prefill worker may do its part
	// generates: completions and chats are asked for. wants: an answer without a byte is none.
	generates, wants bool
	passage          *Passage // nil: the router itself asks the engine
	// opened: comments of an engine have gone to the client, and nothing else; another one goes on.
	opened bool
	// doubted: an engine calls it wrong that calls all requests so. What the next one says tells.
	doubted bool
	seat    *any // of the client's connection; see exchangeOf
	who     client
	desk    *desk // what it is in
	clean   bool  // it went to one engine, whose answer was read to its end: nobody else has it
	left    int   // how often it may go to another worker
	stalled bool  // it was given up behind its first token
	// lost is the pair of which the decode worker failed: if one does all of it well, the prompt did not come.
	lost *lostPair
	// refusedBefore: the prefill engine calls the request wrong. Whether it is, is for
	// the decode engine to say, too: the router has added to what the first one got.
	refusedBefore bool
}

// run chooses a worker and passes the request on, again if that fails in time.
//
// Nothing of an answer may have gone to the client when another worker is tried, but for comments
// of a stream: an attempt returns a failure only before that, and nil once it has begun to answer, also
// where the answer then breaks off. So the client never sees two halves. What is given
// back in the end is the last failure; why nobody could be chosen is said only if nobody
// was asked before, or if no engine had an answer and all are busy by now.
func (p *Proxy) run(w http.ResponseWriter, r *http.Request, q *call) {
	ctx := r.Context()
	if q.gone() {
		p.left(q)
		return
	}
	q.prompt, q.known = p.tracedPrompt(ctx, q)
	p.extended(q)
	var last *failure
	for t := (retries{}); ; {
		q.left = p.cfg.Retries - t.n
		best, err := p.choose(ctx, q)
		if err != nil && ctx.Err() == nil && q.unavoid() {
			continue // no other one takes it
		}
		if err != nil {
			if ctx.Err() != nil {
				p.left(q)
				return
			}
			q.pardon(last)
			if last == nil || last.given == nil && errors.Is(err, route.ErrOverloaded) {
				last = &failure{refusal: p.refusedBy(err)}
			}
			p.giveBack(w, r, q, last)
			return
		}
		q.tally.attempted(&best)
		q.traceChoice(&best)
		if last = p.attempt(w, r, q, &best); last == nil {
			return
		}
		if last.whole {
			// The prefill worker's fault: this one was not asked in vain, so it counts as
			// no attempt, and no worker is left out.
			q.split = false
			if last.fault {
				q.fault(&t, last) // what the decode worker says next tells whose fault it is
			}
			p.obs.decodeOnly.Inc()
			if last.other {
				q.lost.avoided = true
				q.exclude(best.Decode.Worker)
			}
			continue
		}
		if !p.again(ctx, q, &t, last) {
			p.giveBack(w, r, q, last)
			return
		}
		p.meters.retried(q, best.Decode.RankID)
		q.exclude(best.Decode.Worker)
	}
}

// left notes that the client is gone.
func (p *Proxy) left(q *call) {
	q.tally.outcome = "client_gone"
	p.obs.outcome("client_gone").Inc()
}

// exclude leaves a worker out of what is still tried. Each attempt's list is its own.
func (q *call) exclude(worker uint64) {
	q.options.Excluded = append(slices.Clip(q.options.Excluded), worker)
}

// queuePoll is how often the first in the queue tries without being woken.
const queuePoll = 50 * time.Millisecond

// choose books a worker. With a queue it waits for one if all are busy, or if to wait is better:
// shorter prompts then go first, and it takes whichever worker has done its part soonest.
func (p *Proxy) choose(ctx context.Context, q *call) (best route.Pair, err error) {
	if p.queue.limit == 0 {
		return p.chooseNow(ctx, q, hasty)
	}
	defer func() {
		if err != nil {
			q.m.Router.Forgo(q.id)
		}
	}()
	// Who has just come takes no free worker from those who wait: it would be served
	// before them for as long as there are always new ones.
	others := p.queue.busy(q.m)
	switch {
	case !q.passage.sheddable():
	case others:
		return best, fmt.Errorf("%w, others wait, and the request is of those that do not", route.ErrOverloaded)
	default:
		return p.chooseNow(ctx, q, hasty)
	}
	tokens := q.prompt.Size()
	if !others {
		if best, err = p.chooseNow(ctx, q, patient); best.Decode.Settle > 0 {
			best, err = p.hearOthers(ctx, q, &best)
		}
		if !waits(err) {
			return best, err
		}
		if errors.Is(err, route.ErrLater) {
			tokens = best.Decode.NewTokens
		}
	} else if p.queue.order == OrderShortest {
		// No choice: one that nothing comes of would take somebody's turn.
		if all, err := q.m.Router.PotentialLoads(ctx, q.prompt, q.options); err == nil {
			for i := range all {
				tokens = min(tokens, all[i].NewTokens)
			}
		}
	}
	waiting, cancel := context.WithDeadline(ctx, q.arrival.Add(p.cfg.QueueTimeout))
	defer cancel()
	began := time.Now()
	defer func() {
		q.tally.queue += time.Since(began)
		q.span.Past("queue", began, time.Now())
	}()
	w := p.queue.enter(q, tokens)
	if others {
		p.queue.wake(q.m) // what suits none of them may suit this one
	}
	for {
		switch err := p.queue.wait(waiting, w, queuePoll); {
		case ctx.Err() != nil, q.gone():
			if err == nil {
				p.queue.leave(w)
			}
			return best, context.Canceled
		case errors.Is(err, errQueueFull):
			return p.chooseLast(ctx, q, errQueueFull)
		case err != nil:
			return p.chooseLast(ctx, q, fmt.Errorf("for longer than %v", p.cfg.QueueTimeout))
		}
		if best, err = p.chooseNow(ctx, q, patient); best.Decode.Settle > 0 {
			p.queue.wake(q.m) // the next ones need not wait for that
			best, err = p.hearOthers(ctx, q, &best)
		}
		switch {
		case errors.Is(err, route.ErrLater), w.Only != "" && errors.Is(err, route.ErrOverloaded):
			p.queue.pass(w)
		case errors.Is(err, route.ErrOverloaded):
			p.queue.back(w)
		default:
			p.queue.leave(w)
			return best, err
		}
	}
}

func (p *Proxy) chooseNow(ctx context.Context, q *call, how manner) (route.Pair, error) {
	if q.ids != nil && !q.ids.Stand() { // an engine was found to make others, while the request waited or was tried
		q.ids = nil
		q.prompt, q.known = p.tracedPrompt(ctx, q)
	}
	o := q.options
	o.RequestID, o.Watched, o.Whole, o.Waited = q.id, true, !q.stream, time.Since(q.arrival)
	// What a trusted caller says of transfers stays. A gateway that has others to try tells all of them
	// the same, also the one that is the source.
	o.Pull = !q.transfer && (q.passage == nil || p.cfg.Gateway.Fallbacks == 0)
	o.Explain = q.passage != nil && p.cfg.Gateway.Scores
	if o.Patient, o.Settled = how != hasty, how == settled; o.Patient {
		o.Waiting = p.queue.waiting(q.m)
	}
	if len(q.name) > 0 {
		o.Name = q.name[0]
	}
	o.Trial = p.tryEngines(ctx, q)
	key := sessionKey{q.m, q.payer.name, q.session}
	switch {
	case !q.inSession || o.Worker != nil:
	case q.unnamed:
		o.Session = q.follows
	default:
		if at, ok := p.sessions.get(key, time.Now()); ok {
			o.Session = &at
		}
	}
	best, err := p.best(ctx, q, o)
	// Noted before the engine answers: the session's next request may come before the end
	// of this one, and what is cached by then is there.
	if err == nil && q.inSession {
		p.sessions.putFor(q.payer.name, key, route.Session{Rank: best.Decode.RankID, Tokens: q.prompt.Size()}, 1, time.Now())
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
func (p *Proxy) attempt(w http.ResponseWriter, r *http.Request, q *call, pair *route.Pair) (no *failure) {
	stage := route.Whole
	defer func() {
		if r.Context().Err() != nil && q.passage != nil && q.generates && q.options.Worker == nil {
			q.m.Router.Cut(q.id, stage) // or its engine broke off: gateways do not say
		}
		q.m.Router.Free(q.id)
		p.queue.wake(q.m)
	}()
	e := q.m.Engine(pair.Decode.Worker)
	if e == nil {
		return &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the worker has just left"), retry: whyGone}
	}
	ctx, cancel, left := exchangeOf(r.Context(), q.seat)
	clean := false // all of the answer is there, and nobody else has anything of the exchange
	defer func() {
		if clean && left != nil {
			left.leave()
			return
		}
		cancel() // frees the connection, and stops the engine if the answer is not whole
	}()
	// Where both parts run at once, the decode engine fails for want of the prefill's: so
	// each of its failures is looked at for that first, and it is not blamed.
	var part *prefill
	var err error
	refused := false // in an answer with status 200
	peer := q.sourceOf(&pair.Decode)
	switch {
	case pair.Prefill == nil:
		part = &prefill{data: p.bodyWith(q, e, peer.params())}
	case q.passage != nil: // who is before the decode worker asks the prefill worker, and tells it where to fetch from
		peer = q.sourceOf(pair.Prefill)
		part, stage = &prefill{data: p.body(q, e)}, route.DecodeStage
	default:
		if part, err = p.prefillFirst(ctx, r, q, pair.Prefill, e, cancel); err != nil {
			return p.notPrefilled(r, q, err)
		}
		defer func() {
			part.end()
			said := (*prefillStatus)(nil)
			switch {
			case !errors.As(part.last, &said):
			case no == nil && (refused || clientsFault(q.tally.status)): // both say so
				q.m.Router.Withdraw(said.blame)
			case no != nil && (!no.whole || no.other):
				no.prefill = said.blame
			}
		}()
		stage = route.DecodeStage
	}
	t := &q.desk.wait
	p.await(t, q, stage, &pair.Decode, cancel)
	defer t.stop()
	if p.queue.limit > 0 && !q.stream && (p.queue.others.Load() || p.queue.busy(q.m)) {
		// Nobody sees its prompt end, which makes room for those that wait, here and at others;
		// those who come yet to wait here look for it (see queue.expect).
		m := q.m // the call may be another request's, by then
		room := time.AfterFunc(pair.Decode.First, func() {
			m.Router.Expire()
			p.queue.wake(m)
		})
		defer room.Stop()
	}
	ctx, asked := askEngine(ctx, stage, &pair.Decode)
	defer func() { asked.end(q, no) }()
	req := p.engineRequest(ctx, r, part.data, e, pair.Decode.DPRank)
	peer.show(req.Header)
	resp, err := p.exchange(w, q, pair, stage, req)
	if err != nil {
		if part.failed() {
			return p.notPrefilled(r, q, part.why)
		}
		return p.unanswered(r, q, stage, whyUnreachable, t.stop(), err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if part.failed() && resp.StatusCode >= 500 {
		return p.notPrefilled(r, q, part.why)
	}
	if f := p.failed(q, stage, resp, cancel); f != nil {
		return q.asPair(pair, f)
	}
	s := p.newStream(q, resp, stage)
	if s.part = part; part.from != nil {
		s.tail = s.tail || s.follow
	}
	defer s.free()
	if err := s.first(resp.Body); err != nil {
		if part.failed() {
			return p.notPrefilled(r, q, part.why)
		}
		return p.unanswered(r, q, stage, whyBrokeOff, t.stop(), err)
	}
	if s.judge.said == fails {
		if part.failed() {
			return p.notPrefilled(r, q, part.why)
		}
		if f := p.saysNothing(q, s, resp, cancel); f != nil {
			return q.asPair(pair, f)
		}
	}
	if s.judge.said == refuses {
		if f := p.calledWrong(q, stage); f != nil {
			p.keep(f, s, resp, cancel)
			return f
		}
		s.follow, s.ends, refused = false, ending{}, true // as with status 400
	}
	if (!s.judge.on || s.judge.said != unsaid) && !part.begin() {
		return p.notPrefilled(r, q, part.why)
	}
	s.wait, s.overdue = t, pair.Decode.Overdue
	if ended := s.cutBy(); ended != "" {
		return p.unanswered(r, q, stage, whyBrokeOff, ended, context.Canceled)
	}
	if late, err := s.whole(resp, cancel, &pair.Decode); err != nil {
		if part.failed() {
			return p.notPrefilled(r, q, part.why)
		}
		return p.brokeOff(r, q, stage, err, late, ctx.Err() != nil)
	}
	if s.cut() { // and nobody has seen anything of it
		if part.failed() {
			return p.notPrefilled(r, q, part.why)
		}
		if f := p.saysNothing(q, s, resp, cancel); f != nil {
			return q.asPair(pair, f)
		}
	}
	no = p.answer(ctx, w, r, s, pair, resp, cancel)
	clean = no == nil && q.tally.outcome == "ok" && !s.idle.cut && pair.Prefill == nil && q.passage == nil
	q.clean = clean
	return no
}

// final reports whether the request may go to no other worker, whatever becomes of it.
func (q *call) final() bool { return q.options.Worker != nil || q.passage != nil }

func clientGone() *failure {
	return &failure{refusal: refuse(499, "client_gone", "the client is gone")}
}

// unanswered is for an attempt that ended before the first byte of an answer; ended
// says why it was cancelled, if it was.
func (p *Proxy) unanswered(r *http.Request, q *call, stage route.Stage, why, ended string, err error) *failure {
	if r.Context().Err() != nil {
		return clientGone()
	}
	p.obs.engineErrors.Inc()
	p.limit.Warn("engine", "an engine did not answer", errAttr(err), q.attr())
	q.m.Router.Failed(q.id, stage, route.Failure{})
	switch ended {
	case waitLate:
		// It may be at work on the request: not for another worker to repeat.
		return &failure{refusal: refuse(http.StatusGatewayTimeout, "engine_timeout", "the engine did not begin to answer in time")}
	case waitOverdue:
		return &failure{refusal: refuse(http.StatusGatewayTimeout, "engine_timeout", "the engine gives nothing"), retry: whyOverdue}
	}
	return &failure{refusal: refuse(http.StatusBadGateway, "engine_unreachable", "the engine cannot be reached"), retry: why}
}

// brokeOff is for an attempt whose answer broke off before its client saw any of it: another worker
// may do all of it anew, unless this one was given up, and may be at work on it still. It is late if it was
// given up as what is overdue is.
func (p *Proxy) brokeOff(r *http.Request, q *call, stage route.Stage, err error, late, givenUp bool) *failure {
	if r.Context().Err() != nil {
		return clientGone()
	}
	p.obs.engineErrors.Inc()
	p.limit.Warn("engine", "an engine's answer broke off", errAttr(err), q.attr())
	q.m.Router.Failed(q.id, stage, route.Failure{})
	f := &failure{refusal: refuse(http.StatusBadGateway, "engine_broke_off", "the engine's answer broke off"), retry: whyBrokeOff}
	switch {
	case late:
		f.retry = whyOverdue
	case givenUp:
		f.retry = ""
	}
	return f
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
	// The client's path is passed on as it was escaped: %2F in a model's name is no slash.
	base := e.Base
	u := url.URL{Scheme: base.Scheme, Host: base.Host, Path: base.Path + r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.URL.RawPath != "" {
		u.RawPath = base.EscapedPath() + r.URL.RawPath
	}
	req := upstream.NewRequest(ctx, r.Method, u, data)
	copyHeaders(req.Header, r.Header)
	req.Header.Del("Expect")
	spans.Inject(ctx, req.Header)
	if _, ok := req.Header["User-Agent"]; !ok {
		req.Header["User-Agent"] = nil // none, not Go's
	}
	if p.cfg.ForwardClient && passageOf(r) == nil { // a gateway does
		forwardClient(req.Header, r)
	}
	req.Header.Del(headerEngineRank)
	e.Show(req.Header)
	return req
}
