package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/route"
)

// What a gateway's clients have in flight at a sick engine is lost: the gateway has the requests, and nobody can
// send them again. So an engine that was left out and may be well again, or of which nothing is known yet,
// is tried with a small request of the router's own, on the route of the client's that asks
// for it, and clients' requests go to others until it was answered. The first ones wait for that, but
// not for longer than GatewayConfig.Trial. Trials are made as requests come: without any there are none.

// trials are those under way. Each is a goroutine, which the Proxy's end ends.
type trials struct {
	mu    sync.Mutex
	live  int
	ended map[*fleet.Model]chan struct{} // closed when one of the model's is over
	well  map[trialOf]bool               // whether one was answered well
	// Workers that refused it, while none had answered: who is wrong will be known when one does.
	refused map[trialOf]map[uint64]bool
	over    bool

	within context.Context //nolint:containedctx // the Proxy's life
	stop   context.CancelFunc
	all    sync.WaitGroup
}

// trialOf is what the same trial is made of.
type trialOf struct {
	*fleet.Model
	chat  bool
	whole bool // no stream
}

// trial is what an engine is asked with.
type trial struct {
	trialOf
	name string // of the model
}

// trial returns one of the request's kind.
func (q *call) trial() trial {
	of := trial{trialOf{q.m, q.api.chat, !q.stream}, q.m.Space.Model}
	if q.lora == "" && q.options.Allowed == nil {
		of.name = cmp.Or(q.model, of.name)
	}
	return of
}

// How a trial ends.
const (
	trialWell    = "well"
	trialFailed  = "failed"
	trialFull    = "full"
	trialRefused = "refused"
	trialUnsent  = "unsent"
	trialSilent  = "silent" // and one to another engine was not
)

const (
	// maxTrials is how many are under way at once.
	maxTrials = 16
	// trialLasts is the time of one where engines may be silent for ever (--overdue-after 0): one that hangs for so long is
	// one failure, as any other.
	trialLasts = 20 * time.Second
)

func (t *trials) begin() {
	t.ended, t.well, t.refused = make(map[*fleet.Model]chan struct{}), make(map[trialOf]bool), make(map[trialOf]map[uint64]bool)
	t.within, t.stop = context.WithCancel(context.Background())
}

func (t *trials) end() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.stop()
	t.all.Wait()
}

// tryEngines tries the engines that are to be tried before the request is sent to one, and waits where there
// is no other. It returns what the choice is told of it, route.Options.Trial.
func (p *Proxy) tryEngines(ctx context.Context, q *call) time.Duration {
	within := p.cfg.Gateway.Trial
	if q.passage == nil || !q.generates || q.options.Worker != nil || within <= 0 {
		return 0
	}
	for left := within - time.Since(q.arrival); ; left = within - time.Since(q.arrival) {
		ended := p.startTrials(q)
		if ended == nil || left <= 0 {
			return within
		}
		late := time.NewTimer(left)
		select {
		case <-ended:
		case <-late.C:
		case <-ctx.Done():
		}
		if late.Stop(); ctx.Err() != nil {
			return within
		}
	}
}

// startTrials starts what is due. It returns what is closed when one is over, if the request is to wait for that.
func (p *Proxy) startTrials(q *call) (ended chan struct{}) {
	t := &p.trials
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return nil
	}
	list, wait := q.m.Router.Trials(p.cfg.Gateway.Trial, maxTrials-t.live)
	if len(list) == 0 && !wait {
		return nil
	}
	of := q.trial()
	of.whole = false // a stream says more
	for _, id := range list {
		t.live++
		delete(t.refused[of.trialOf], id)
		t.all.Go(func() { p.try(of, id) })
	}
	if !wait {
		return nil
	}
	if ended = t.ended[q.m]; ended == nil {
		ended = make(chan struct{})
		t.ended[q.m] = ended
	}
	return ended
}

// try makes one trial.
func (p *Proxy) try(of trial, id uint64) {
	t, router, silent := &p.trials, of.Router, time.Duration(0)
	ctx, cancel := context.WithCancel(t.within)
	defer cancel()
	a, e, booking := bookTrial(ctx, of, route.Options{Worker: &id})
	if e != nil {
		late := time.AfterFunc(cmp.Or(a.Overdue, trialLasts), cancel)
		result, against := p.askTrial(ctx, e, a.DPRank, of)
		late.Stop()
		defer p.obs.trials[result].Inc() // once the router knows
		switch others := t.judge(of.trialOf, id, result); {
		case t.within.Err() != nil: // and nothing is told
		case result == trialWell:
			router.Succeeded(booking, route.Whole)
			router.Succeeded(booking, route.Whole)
		case result == trialUnsent, result == trialRefused && !others: // clients' requests may be another matter
			silent = p.cfg.Gateway.Trial
		default:
			router.Failed(booking, route.Whole, against)
		}
	}
	router.Free(booking)
	router.Tried(id, silent)
	p.queue.wake(of.Model)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.live--
	if ended := t.ended[of.Model]; ended != nil {
		close(ended)
		delete(t.ended, of.Model)
	}
}

// bookTrial books a trial at a worker, which is to be freed. The engine is nil if there is none for it.
func bookTrial(ctx context.Context, of trial, o route.Options) (a route.Answer, e *fleet.Engine, booking string) {
	booking = edge.NewID()
	o.RequestID, o.Name, o.Watched = booking, "trial", true
	a, err := of.Router.BestWorker(ctx, route.Prompt{Length: 1, Guessed: true}, o)
	if err == nil {
		e = of.Engine(a.Worker)
	}
	return a, e, booking
}

// judge notes how a trial ended, and reports whether any was answered well: then those who refuse it are at fault,
// and they are tried again.
func (t *trials) judge(of trialOf, id uint64, result string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case result == trialWell:
		t.well[of] = true
		for other := range t.refused[of] {
			of.Router.Tried(other, 0)
		}
		delete(t.refused, of)
	case result == trialRefused && !t.well[of]:
		if t.refused[of] == nil {
			t.refused[of] = make(map[uint64]bool)
		}
		t.refused[of][id] = true
	}
	return t.well[of]
}

// askTrial sends an engine a trial, and says what comes of it.
func (p *Proxy) askTrial(ctx context.Context, e *fleet.Engine, rank uint32, of trial) (string, route.Failure) {
	path, prompt := "/v1/completions", `,"prompt":"."}`
	if of.chat {
		path, prompt = chats.PathChat, `,"messages":[{"role":"user","content":"."}]}`
	}
	body := append(appendJSON(fmt.Appendf(nil, `{"max_tokens":4,"stream":%v,"model":`, !of.whole), of.name), prompt...)
	u := *e.Base
	u.Path, u.RawPath = e.Base.Path+path, ""
	if len(p.cfg.Gateway.Ports) > 0 {
		u.Host = p.endpoint(e, rank)
	}
	req := upstream.NewRequest(ctx, http.MethodPost, u, upstream.Payload{Pieces: [][]byte{body}})
	req.Header["Content-Type"] = jsonType
	if e.Ranks() > 1 && len(p.cfg.Gateway.Ports) == 0 {
		req.Header.Set(headerEngineRank, strconv.FormatUint(uint64(rank), 10))
	}
	e.Show(req.Header)
	resp, err := p.client.RoundTrip(req)
	if at := (*net.OpError)(nil); errors.As(err, &at) && at.Op == "dial" {
		return trialUnsent, route.Failure{}
	}
	if err != nil {
		return trialFailed, route.Failure{}
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	against, why := judgeStatus(resp.StatusCode, resp.Header, time.Now())
	switch {
	case against.Full:
		return trialFull, against
	case resp.StatusCode >= 500 && why != whyRefused:
		return trialFailed, against
	case resp.StatusCode >= http.StatusMultipleChoices:
		return trialRefused, against
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxGiven))
	j := newJudge(&call{wants: true, generates: true}, resp)
	j.see(text)
	if err != nil || j.end() != good || j.events && !endsWell(text) {
		return trialFailed, against
	}
	return trialWell, against
}
