package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// wait bounds the time to an answer's first byte: by Config.FirstByte, and for a
// stream by what its worker was given, once that is left out for giving nothing to
// anybody. A whole answer may well take longer than any prediction: it waits until its worker
// gives nothing to the router either; see silence.go. When it is over it may
// be begun again, for another request.
type wait struct {
	mu    sync.Mutex
	timer *time.Timer // calls due; nil before there is anything to wait for
	ended string      // "", or why the request was cancelled
	over  bool
	bound
}

// bound is what a wait goes by.
type bound struct {
	round  uint64 // how often it was begun
	router *route.Router
	id     string
	stage  route.Stage
	cancel context.CancelFunc
	begun  time.Time
	first  time.Duration // Config.FirstByte
	look   time.Duration // between looks at the worker; 0 for none
	whole  bool          // that its worker is left out says nothing
	asks   *Proxy        // which asks the worker; nil: nobody does
	trial
}

// Why a wait has ended.
const (
	waitLate    = "late"
	waitOverdue = "overdue"
)

// await begins a wait. stop must be called.
func (p *Proxy) await(t *wait, q *call, stage route.Stage, a *route.Answer, cancel context.CancelFunc) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended, t.over = "", false
	t.bound = bound{round: t.round + 1, router: q.m.Router, id: q.id, stage: stage, cancel: cancel, begun: time.Now(), first: p.cfg.FirstByte}
	t.whole = !q.stream && stage != route.PrefillStage // whose answer is one token
	switch {
	case q.final():
	case p.cfg.AskSilent && q.generates && stage != route.PrefillStage && a.Quiet > 0:
		t.look, t.asks, t.trial = a.Quiet, p, q.trial()
	case !t.whole:
		t.look = a.Overdue
	}
	switch d := t.next(0); {
	case d == 0:
	case t.timer == nil:
		t.timer = time.AfterFunc(d, t.due)
	default:
		t.timer.Reset(d)
	}
}

// next returns when to look next, after so long; 0 for never.
func (b *bound) next(past time.Duration) (d time.Duration) {
	if b.first > 0 {
		d = max(b.first-past, 1)
	}
	if look := b.look; look > 0 {
		if past > 0 {
			look = max(look/8, time.Millisecond) // what came in between has put it off
		}
		if d == 0 || look < d {
			d = look
		}
	}
	return d
}

func (t *wait) due() {
	t.mu.Lock()
	b, over := t.bound, t.over
	t.mu.Unlock()
	if over {
		return
	}
	past := time.Since(b.begun)
	why := ""
	switch {
	case b.first > 0 && past >= b.first:
		why = waitLate
	case b.look > 0 && !b.whole && b.router.Overdue(b.id, b.stage), b.asks != nil && b.router.Mute(b.id, b.stage):
		why = waitOverdue
	case b.asks != nil:
		b.asks.askSilent(b.trial, b.id, b.stage)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over || t.round != b.round {
		return
	}
	if t.ended = why; why != "" {
		t.over = true
		t.cancel()
		return
	}
	if d := b.next(past); d > 0 { // else it was due for one before
		t.timer.Reset(d)
	}
}

// stop ends the wait, if there is one, and returns why the request was cancelled; "" if it was not.
func (t *wait) stop() string {
	if t == nil {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.bound = bound{round: t.round}
	return t.ended
}
