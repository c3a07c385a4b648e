package proxy

import (
	"context"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// wait bounds the time to an answer's first byte: by Config.FirstByte, and for a
// stream by what its worker was given, once that is left out for giving nothing to
// anybody. A whole answer may well take longer than any prediction.
type wait struct {
	proxy  *Proxy
	call   *call
	stage  route.Stage
	cancel context.CancelFunc
	begun  time.Time
	look   time.Duration // between looks at the worker; 0 for none

	mu    sync.Mutex
	timer *time.Timer
	ended string // "", or why the request was cancelled
	over  bool
}

// Why a wait has ended.
const (
	waitLate    = "late"
	waitOverdue = "overdue"
)

// await begins a wait. stop must be called.
func (p *Proxy) await(q *call, stage route.Stage, overdue time.Duration, cancel context.CancelFunc) *wait {
	t := &wait{proxy: p, call: q, stage: stage, cancel: cancel, begun: time.Now()}
	if (q.stream || stage == route.PrefillStage) && !q.final() { // whose answer is one token
		t.look = overdue
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d := t.next(0); d > 0 {
		t.timer = time.AfterFunc(d, t.due)
	}
	return t
}

// next returns when to look next, after so long; 0 for never.
func (t *wait) next(past time.Duration) (d time.Duration) {
	if left := t.proxy.cfg.FirstByte - past; t.proxy.cfg.FirstByte > 0 {
		d = max(left, 1)
	}
	if t.look > 0 && (d == 0 || t.look < d) {
		d = t.look
	}
	return d
}

func (t *wait) due() {
	past := time.Since(t.begun)
	why := ""
	switch {
	case t.proxy.cfg.FirstByte > 0 && past >= t.proxy.cfg.FirstByte:
		why = waitLate
	case t.look > 0 && t.call.m.Router.Overdue(t.call.id, t.stage):
		why = waitOverdue
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		return
	}
	if t.ended = why; why != "" {
		t.over = true
		t.cancel()
		return
	}
	t.timer.Reset(t.next(past))
}

// stop ends the wait and returns why the request was cancelled; "" if it was not.
func (t *wait) stop() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.timer != nil {
		t.timer.Stop()
	}
	return t.ended
}
