package proxy

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// An engine that gives nothing while requests wait there may be at work on long answers that do not stream. So it is asked
// with a small request of the router's own, of the kind of one that waits. When half of the time for that is over
// another engine is asked the same. If that one answers and the first does not, those that wait at it go to others, and it
// is asked again until it answers. See route.Router.Ask.

// refusedFor is for how long an engine is not asked that does not take what it is asked.
const refusedFor = time.Minute

// askSilent begins to ask the engine at which a request waits, if it is time for that.
func (p *Proxy) askSilent(of trial, requestID string, stage route.Stage) {
	t := &p.trials
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.live >= maxTrials {
		return
	}
	if id, due := of.Router.Ask(requestID, stage); due {
		t.live++
		t.all.Go(func() { p.askOn(of, id) })
	}
}

// askOn asks an engine as long as it is to be asked again.
func (p *Proxy) askOn(of trial, id uint64) {
	t := &p.trials
	for {
		what, unclearFor := p.askOnce(of, id)
		again := of.Router.Asked(id, what, unclearFor)
		p.queue.wake(of.Model)
		t.mu.Lock()
		t.live-- // who waits asks nobody
		t.mu.Unlock()
		if again <= 0 {
			return
		}
		select {
		case <-time.After(again):
		case <-t.within.Done():
			return
		}
		if !of.Router.AskAgain(id) {
			return
		}
		t.mu.Lock()
		t.live++ // beyond maxTrials, maybe, by no more than there are engines
		t.mu.Unlock()
	}
}

// askOnce asks an engine, and another one if it is late. It returns what Asked is told.
func (p *Proxy) askOnce(of trial, id uint64) (what route.Asked, unclearFor time.Duration) {
	ctx, cancel := context.WithCancel(p.trials.within)
	defer cancel()
	a, e, booking := bookTrial(ctx, of, route.Options{Worker: &id, Question: true})
	defer of.Router.Free(booking)
	if e == nil {
		return route.AskUnclear, 0
	}
	other := make(chan bool, 1)
	beside := time.AfterFunc(a.Overdue/2, func() { other <- p.askOther(ctx, of, id) })
	end := time.AfterFunc(a.Overdue, cancel)
	result, against := p.askTrial(ctx, e, a.DPRank, of)
	late := !end.Stop()
	cancel()
	answered := !beside.Stop() && <-other
	switch {
	case p.trials.within.Err() != nil:
		return route.AskUnclear, 0
	case result == trialWell:
		what = route.AskAnswered
	case result == trialRefused || result == trialUnsent:
		unclearFor = refusedFor
	case late && answered:
		what, result = route.AskSilent, trialSilent
	case !late:
		of.Router.Failed(booking, route.Whole, against)
	}
	p.obs.trials[result].Inc()
	return what, unclearFor
}

// askOther asks another engine than that one, and reports whether it answered well.
func (p *Proxy) askOther(ctx context.Context, of trial, id uint64) bool {
	a, e, booking := bookTrial(ctx, of, route.Options{Excluded: []uint64{id}})
	defer of.Router.Free(booking)
	if e == nil {
		return false
	}
	result, against := p.askTrial(ctx, e, a.DPRank, of)
	switch {
	case ctx.Err() != nil:
		return false
	case result == trialWell:
		of.Router.Succeeded(booking, route.Whole)
		of.Router.Succeeded(booking, route.Whole)
	case result == trialFailed || result == trialFull:
		of.Router.Failed(booking, route.Whole, against)
	}
	p.obs.trials[result].Inc()
	return result == trialWell
}
