package proxy

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// idleWatch calls a function when a wait takes longer than it may, and before that has it held against
// the worker as long as it lasts. Its timer runs on between waits, as to stop and start it for
// each costs more than to look at a clock.
type idleWatch struct {
	// since is when the present wait began, in ns since began; 0: there is none, as a
	// slow client is no slow engine; below 0: there will be none.
	since atomic.Int64
	began time.Time
	timer *time.Timer
	cut   bool  // the function is called, or about to be
	from  int64 // since, as it was when the present or last wait began
	past  int64 // of the waits that only comments ended, in ns
	// held is what the worker is blamed for as long as nothing comes; nil: nothing.
	held atomic.Pointer[route.Blame]
	idler
}

// idler is what a watch's timer goes by. It does not change.
type idler struct {
	soon, limit time.Duration // soon: 0 is never
	router      *route.Router
	id          string
	stage       route.Stage
	late        func()
}

// idleLate is since once the function is to be called.
const idleLate = -2

// set is for who waits.
func (i *idleWatch) set(since int64) {
	if i.since.Swap(since) == idleLate {
		i.cut = true
	}
}

// waits notes that what came is no progress: the next wait goes on with this one.
func (i *idleWatch) waits() { i.past = int64(time.Since(i.began)) + 1 - i.from }

// came notes that something came.
func (i *idleWatch) came() {
	i.past = 0
	i.wentOn()
}

// wentOn takes back what the worker was blamed for.
func (i *idleWatch) wentOn() {
	if held := i.held.Load(); held != nil && i.held.CompareAndSwap(held, nil) {
		i.router.WentOn(i.id, i.stage, *held)
	}
}

// look is the timer's.
func (i *idleWatch) look() {
	for {
		since := i.since.Load()
		var past time.Duration
		if since > 0 {
			past = time.Since(i.began) - time.Duration(since)
		}
		switch rest := i.limit - past; {
		case since < 0:
		case i.soon > 0 && past >= i.soon && i.held.Load() == nil:
			blame := i.router.Stalled(i.id, i.stage)
			if i.held.Store(&blame); i.since.Load() != since {
				i.wentOn() // in the meantime
			}
			continue
		case rest > 0:
			if i.soon > past {
				rest = min(rest, i.soon-past)
			}
			i.timer.Reset(rest)
		case !i.since.CompareAndSwap(since, idleLate):
			continue // another wait has begun
		default:
			i.late()
		}
		return
	}
}

func (i *idleWatch) begin(s *stream, late func()) {
	if i.timer == nil {
		i.began = time.Now()
		i.from = 1
		i.since.Store(1)
		i.idler = idler{soon: s.overdue, limit: s.proxy.cfg.EngineIdle, router: s.call.m.Router, id: s.call.id, stage: s.stage, late: late}
		i.timer = time.AfterFunc(math.MaxInt64, i.look)
		first := i.limit
		if i.soon > 0 {
			first = min(first, i.soon)
		}
		i.timer.Reset(first) // which reads i.timer
		return
	}
	i.from = int64(time.Since(i.began)) + 1 - i.past
	i.set(i.from)
}

func (i *idleWatch) pause() { i.set(0) }

func (i *idleWatch) stop() {
	if i.timer != nil {
		i.set(-1) // it may be about to go on
		i.timer.Stop()
	}
}
