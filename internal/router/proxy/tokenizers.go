package proxy

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/route/breaker"
)

// tokenizing is what all models' tokenizers go by.
type tokenizing struct {
	settings breaker.Config // of each engine's
	// first is when another engine is asked as long as answers are too few to tell,
	// and least the least; 0 is never.
	first, least time.Duration
	hedges       hedges

	mu sync.Mutex
	of map[*fleet.Model]*tokenizers // a fleet bounds its models
}

// model returns the tokenizers of a model.
func (a *tokenizing) model(m *fleet.Model) *tokenizers {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.of[m]
	if t == nil {
		if a.of == nil {
			a.of = make(map[*fleet.Model]*tokenizers)
		}
		t = &tokenizers{tokenizing: a, of: make(map[*fleet.Engine]*tokenizer)}
		a.of[m] = t
	}
	return t
}

// tokenizers is a model's engines as those who are asked for tokens: whoever should answer
// soonest is asked, by what it has to answer and how long it took of late, and another
// one beside it if it takes longer than nearly all answers do. What an engine does here
// says nothing of how it generates, so each has a breaker of its own; and what one model's
// take says nothing of another's.
type tokenizers struct {
	*tokenizing

	mu    sync.Mutex
	of    map[*fleet.Engine]*tokenizer
	mean  float64   // ms, of all
	times []float64 // of the last answers, in a ring
	asked int
	late  time.Duration // the 99th part of times is longer; 0 is not known
}

// tokenizer is one engine.
type tokenizer struct {
	breaker breaker.Breaker
	live    int
	mean    float64 // ms; 0 is not known
	last    int     // tokenizers.asked when it answered
}

const (
	tokenizeTimes = 256
	// tokenizeForget is after how many answers of each of the others an engine counts as
	// fast as they.
	tokenizeForget = 64
)

// pick returns the engine to ask but for one, and its ticket; nil if there is none.
func (t *tokenizers) pick(engines map[uint64]*fleet.Engine, but *fleet.Engine, now time.Time) (best *fleet.Engine, k breaker.Ticket) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.of) > 2*len(engines)+16 { // of which some are no more
		maps.DeleteFunc(t.of, func(e *fleet.Engine, _ *tokenizer) bool { return e.Gone() })
	}
	least, ties := math.Inf(1), 0
	for _, e := range engines {
		if e == but || e.URL == "" || !e.Healthy() {
			continue
		}
		s := t.of[e]
		if s == nil {
			s = &tokenizer{breaker: breaker.Breaker{Seed: e.ID}}
			t.of[e] = s
		}
		cost := t.cost(s)
		if !s.breaker.Admits(&t.settings, now) {
			cost += 1e12 // better than nobody
		}
		switch {
		case cost < least:
			best, least, ties = e, cost, 1
		case cost == least:
			if ties++; rand.IntN(ties) == 0 {
				best = e
			}
		}
	}
	if best != nil {
		s := t.of[best]
		s.live++
		k = s.breaker.Sent(now)
	}
	return best, k
}

// cost is how long an engine should take: the times of engines that are alike count as
// one, so that chance does not make one of them the only one.
func (t *tokenizers) cost(s *tokenizer) float64 {
	mean := t.mean
	if s.mean > 0 {
		mean = s.mean + (t.mean-s.mean)*t.age(s)
	}
	return float64(s.live+1) * math.Exp2(math.Round(math.Log2(max(mean, 1))))
}

// age is what part of what is known of an engine counts no more.
func (t *tokenizers) age(s *tokenizer) float64 {
	return min(1, float64(t.asked-s.last)/float64(tokenizeForget*max(len(t.of), 1)))
}

// ended notes what became of asking an engine, and returns the ticket by which that can be withdrawn.
func (t *tokenizers) ended(e *fleet.Engine, k breaker.Ticket, o breaker.Outcome, took time.Duration, now time.Time) breaker.Ticket {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.of[e]; s != nil {
		t.note(s, &k, o, took, now)
	}
	return k
}

// withdraw takes an engine's failure back: another one fails at the same.
func (t *tokenizers) withdraw(a *tokenAnswer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.of[a.engine]; s != nil {
		s.breaker.Withdraw(a.ticket)
	}
}

func (t *tokenizers) note(s *tokenizer, k *breaker.Ticket, o breaker.Outcome, took time.Duration, now time.Time) {
	s.live = max(s.live-1, 0)
	s.breaker.Ended(&t.settings, k, o, 0, now, func() bool { return true })
	if o == breaker.Neutral {
		return
	}
	ms := took.Seconds() * 1000
	learn := func(mean *float64, weight float64) {
		if *mean == 0 {
			*mean = ms
		}
		*mean += (ms - *mean) * weight
	}
	learn(&s.mean, max(1.0/8, t.age(s)))
	s.last = t.asked
	if o != breaker.Succeeded {
		return
	}
	learn(&t.mean, 1.0/64)
	if t.asked++; len(t.times) < tokenizeTimes {
		t.times = append(t.times, ms)
	} else {
		t.times[t.asked%tokenizeTimes] = ms
	}
	if n := len(t.times); n >= 32 && t.asked%max(32, n/2) == 0 { // to sort them takes a while, which others wait
		sorted := slices.Clone(t.times)
		slices.Sort(sorted)
		t.late = max(t.least, time.Duration(sorted[min(n-1, n*99/100)]*float64(time.Millisecond)))
	}
}

// hedge returns after what time another engine is asked.
func (t *tokenizers) hedge() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.first == 0:
		return math.MaxInt64
	case t.late == 0:
		return t.first
	}
	return t.late
}

// statusError is an answer of /tokenize that has no tokens.
type statusError int

func (s statusError) Error() string { return fmt.Sprintf("/tokenize answers %d", int(s)) }

// tokenAnswer is what an engine says.
type tokenAnswer struct {
	engine *fleet.Engine // nil: none was asked
	ticket breaker.Ticket
	tokens []uint32
	given  *given // all of the answer, for a client whose question it is
	err    error
}

// failed reports whether the engine answered, and failed: so may another one, by the request's fault.
func (a *tokenAnswer) failed() bool {
	var status statusError
	return errors.As(a.err, &status) && status >= 500
}

// others reports whether another engine may say something else than what came of it.
func (a *tokenAnswer) others() bool {
	var status statusError
	return !errors.As(a.err, &status) || status >= 500 || status == http.StatusTooManyRequests || refusesOnly(int(status))
}

// question asks an engine.
type question func(ctx context.Context, e *fleet.Engine) tokenAnswer

// asking is a text whose tokens engines are asked for, or tokens whose text: first one, and
// another if that fails or is late.
type asking struct {
	proxy   *Proxy
	ctx     context.Context //nolint:containedctx // of who wants them
	until   time.Time
	all     *tokenizers
	engines map[uint64]*fleet.Engine
	first   *fleet.Engine
	ask     question
	giveUp  func()      // the first one
	beaten  atomic.Bool // it is given up because it is late

	due   time.Time        // the hedges', as what follows
	place int              // below 0: it is not there any more
	other chan tokenAnswer // made when the first is late

	mu     sync.Mutex
	cancel context.CancelFunc // ends the other
	over   bool
}

// askEngines asks an engine for the tokens of a text, and another if that fails or is
// late.
func (p *Proxy) askEngines(ctx context.Context, m *fleet.Model, ask upstream.Payload, q *call) ([]uint32, error) {
	a := p.askSoonest(ctx, m, m.Engines(), q.seat, p.cfg.TokenizeTimeout, func(ctx context.Context, e *fleet.Engine) (a tokenAnswer) {
		a.tokens, a.err = p.askTokens(ctx, e, ask, first(q.header["Authorization"]), pathTokenize)
		return a
	})
	return a.tokens, a.err
}

// askSoonest asks that one of the engines which should answer soonest, and another if that fails or is
// late. They have the given time; 0 is no bound.
func (p *Proxy) askSoonest(ctx context.Context, m *fleet.Model, engines map[uint64]*fleet.Engine, seat *any, within time.Duration, ask question) tokenAnswer {
	begun := time.Now()
	if within == 0 {
		within = math.MaxInt64
	}
	x := &asking{proxy: p, ctx: ctx, until: begun.Add(within), all: p.tokenizing.model(m), engines: engines, ask: ask}
	var k breaker.Ticket
	if x.first, k = x.all.pick(x.engines, nil, begun); x.first == nil {
		return tokenAnswer{err: errNoEngine}
	}
	alone, giveUp, left := exchangeOf(ctx, seat)
	x.giveUp = giveUp
	x.all.hedges.add(x, begun.Add(min(x.all.hedge(), within)))
	a := x.askOne(alone, x.first, k, &x.beaten)
	inTime := x.all.hedges.remove(x)
	if a.err == nil && inTime && left != nil {
		left.leave()
		return a
	}
	defer giveUp()
	defer x.end()
	var b tokenAnswer
	switch {
	case a.err == nil:
		if x.end(); !inTime {
			<-x.other // it reads the request, which goes with our caller
		}
		return a
	case !inTime:
		b = <-x.other
	case ctx.Err() == nil && a.others():
		b = x.second(x.bounded())
	default:
		return a
	}
	switch {
	case b.engine != nil && (b.err == nil || !b.others()):
		return b
	case a.failed() && b.failed():
		x.all.withdraw(&a)
		x.all.withdraw(&b)
	case x.beaten.Load():
		a.err = errTokensLate
	}
	return a
}

var errTokensLate = errors.New("no engine says them within --tokenize-timeout")

// bounded returns the context for the other one. It ends with that of who asks, with end, or when the
// time is over, and then the first one is given up, too.
func (x *asking) bounded() context.Context {
	ctx, cancel := context.WithDeadline(x.ctx, x.until)
	context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			x.beat()
		}
	})
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.cancel = cancel; x.over {
		cancel()
	}
	return ctx
}

// late is called once, when the first one is.
func (x *asking) late() {
	ctx := x.bounded()
	a := tokenAnswer{err: ctx.Err()}
	if a.err == nil {
		x.proxy.obs.tokenizeHedged.Inc()
		if a = x.second(ctx); a.err == nil {
			x.beat()
		}
	}
	x.other <- a
}

// beat gives the first one up.
func (x *asking) beat() {
	x.beaten.Store(true)
	x.giveUp()
}

// second asks another one.
func (x *asking) second(ctx context.Context) tokenAnswer {
	e, k := x.all.pick(x.engines, x.first, time.Now())
	if e == nil {
		return tokenAnswer{err: errNoEngine}
	}
	return x.askOne(ctx, e, k, nil)
}

// end gives the other one up.
func (x *asking) end() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.over = true
	if x.cancel != nil {
		x.cancel()
	}
}

// askOne asks an engine; beaten is set if it is given up for another's answer.
func (x *asking) askOne(ctx context.Context, e *fleet.Engine, k breaker.Ticket, beaten *atomic.Bool) tokenAnswer {
	begun := time.Now()
	a := x.ask(ctx, e)
	o := breaker.Succeeded
	var status statusError
	switch {
	case a.err == nil:
	case errors.As(a.err, &status) && status < 500, errors.Is(ctx.Err(), context.Canceled) && (beaten == nil || !beaten.Load()):
		o = breaker.Neutral
	default:
		o = breaker.Failed
	}
	now := time.Now()
	a.engine, a.ticket = e, x.all.ended(e, k, o, now.Sub(begun), now)
	return a
}
