package breaker

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
)

// State is what a worker may be sent.
type State uint8

// The states.
const (
	Closed   State = iota // anything
	HalfOpen              // a few requests, which decide
	Open                  // nothing: it fails
	Full                  // nothing: it says that it has no room
)

// String returns the state's name in metrics.
func (s State) String() string {
	return [...]string{"closed", "half_open", "open", "full", "unknown"}[min(s, Full+1)]
}

// Outcome is what became of a request.
type Outcome uint8

// The outcomes.
const (
	Neutral   Outcome = iota // nothing that speaks for or against the worker
	Succeeded                // it began to answer
	Failed                   // it did not, or broke off
	Refused                  // it said that it has no room
)

// Config says when a Breaker opens and for how long. The zero value never opens it
// but for want of room.
type Config struct {
	// Failures in a row open it; 0 is never.
	Failures int
	// Share is the part of the requests of Window that, failed, opens it, once there
	// were Least of them; 0 is never.
	Share  float64
	Window time.Duration
	Least  int
	// Wait is how long it stays open the first time, and MaxWait the most; 0 is a
	// second and 30.
	Wait, MaxWait time.Duration
	// Probes are the requests that a half-open one admits at once, and those that
	// must succeed to close it; 0 is 1.
	Probes int
}

// Default returns the settings that nobody has tuned.
func Default() Config {
	return Config{Failures: 3, Share: 0.5, Window: 10 * time.Second, Least: 10, Wait: time.Second, MaxWait: 30 * time.Second, Probes: 2}
}

// Longest returns MaxWait, or what 0 is.
func (c *Config) Longest() time.Duration { return cmp.Or(c.MaxWait, 30*time.Second) }

// Check says which setting is out of range.
func (c *Config) Check() error {
	switch {
	case c.Failures < 0 || c.Least < 0 || c.Probes < 0:
		return fmt.Errorf("a breaker's number is below 0: %d failures, %d requests, %d probes", c.Failures, c.Least, c.Probes)
	case !(c.Share >= 0 && c.Share <= 1):
		return fmt.Errorf("a breaker's share of failures is %v, give a part from 0 to 1", c.Share)
	case c.Window < 0 || c.Wait < 0 || c.MaxWait < 0:
		return fmt.Errorf("a breaker's time is below 0: window %v, wait %v, at most %v", c.Window, c.Wait, c.MaxWait)
	}
	return nil
}

// Ticket is a request's part in a Breaker: the state that it was sent in and, once it has
// succeeded, what to go back to if it fails after all.
type Ticket struct {
	epoch uint64
	began bool
	nth   int // of the successes that stand
	inRow int // failures that its success has ended
}

// Breaker is one worker's. The zero value is closed.
type Breaker struct {
	// Seed tells its waits from those of others; it must not change.
	Seed uint64

	state State
	epoch uint64    // of the state
	until time.Time // of Open and Full
	pace  pace.Pace
	inRow int // failures, of Closed
	stand int // successes that did not become failures
	// Of HalfOpen.
	live, passed int
	doubted      bool // for somebody else's word only
	// Of Closed: this and the last half of a window.
	now, last counts
	from      time.Time
	// Of Open: what it was before, how many failures led to it, and how many it needs.
	before       State
	blamed, need int
}

type counts struct{ all, bad int }

// State returns the state at the time.
func (b *Breaker) State(now time.Time) State {
	if b.state >= Open && !now.Before(b.until) {
		b.become(HalfOpen)
		b.live, b.passed = 0, 0
	}
	return b.state
}

// Well reports whether it is closed, and the last that counted has not failed.
func (b *Breaker) Well() bool { return b.state == Closed && b.inRow == 0 }

// Closed reports whether it is closed, at whatever time.
func (b *Breaker) Closed() bool { return b.state == Closed }

func (b *Breaker) become(s State) {
	b.state, b.doubted = s, false
	b.epoch++
}

// Admits reports whether the worker may be sent a request.
func (b *Breaker) Admits(c *Config, now time.Time) bool {
	switch b.State(now) {
	case Closed:
		return true
	case HalfOpen:
		return b.live < max(c.Probes, 1)
	}
	return false
}

// Sent notes that the worker was sent a request.
func (b *Breaker) Sent(now time.Time) Ticket {
	if b.State(now) == HalfOpen {
		b.live++
	}
	return Ticket{epoch: b.epoch}
}

// Ended notes what became of a request, once for each ticket, but for a failure after
// a success, which then is none: an answer that begins well and breaks off. It reports
// whether the worker is out for it that was not before, but for the caller's word: may
// is asked then, and without it the state stays. One that is doubted opens, or fills, by that word only, too; without
// it, it is closed again.
func (b *Breaker) Ended(c *Config, t *Ticket, o Outcome, retryAfter time.Duration, now time.Time, may func() bool) (out bool) {
	b.State(now)
	if t.epoch != b.epoch && !b.closedBy(t) {
		return false
	}
	switch b.state {
	case HalfOpen:
		b.live = max(b.live-1, 0)
		if b.doubted && (o == Failed || o == Refused) && !may() {
			b.close()
			return false
		}
		switch o {
		case Succeeded:
			t.began = true
			if b.passed++; b.passed >= max(c.Probes, 1) {
				b.close()
			}
		case Failed:
			b.open(c, now, 1, 1)
		case Refused:
			b.fill(c, retryAfter, now)
		}
	case Closed:
		b.roll(c, now)
		switch o {
		case Succeeded:
			b.stand++
			t.began, t.nth, t.inRow = true, b.stand, b.inRow
			b.inRow = 0
			b.now.all++
		case Failed:
			b.count(t)
			blamed, need := b.guilt(c)
			if out = blamed >= need && may(); out {
				b.open(c, now, blamed, need)
			}
		case Refused:
			if out = may(); out {
				b.fill(c, retryAfter, now)
			}
		}
	}
	return out
}

// closedBy reports whether the request was one of the probes that closed it.
func (b *Breaker) closedBy(t *Ticket) bool {
	return t.began && b.state == Closed && t.epoch == b.epoch-1
}

// count counts a failure. The row that the request's own success has ended goes on,
// unless others have succeeded since.
func (b *Breaker) count(t *Ticket) {
	switch {
	case !t.began:
		b.now.all++
	case t.nth > 0:
		if t.nth == b.stand {
			b.inRow = max(b.inRow, t.inRow)
		}
		b.stand--
	}
	b.inRow++
	b.now.bad++
}

// guilt returns how many failures count, and how many open.
func (b *Breaker) guilt(c *Config) (blamed, need int) {
	need = math.MaxInt
	if c.Failures > 0 {
		blamed, need = b.inRow, c.Failures
	}
	all, bad := b.now.all+b.last.all, b.now.bad+b.last.bad
	if c.Share > 0 && all >= c.Least && float64(bad) >= c.Share*float64(all) && blamed < need {
		blamed, need = bad, int(math.Ceil(c.Share*float64(all)))
	}
	return blamed, need
}

// roll lets the window go on.
func (b *Breaker) roll(c *Config, now time.Time) {
	switch past, half := now.Sub(b.from), c.Window/2; {
	case past < half:
		return
	case past < 2*half:
		b.last = b.now
	default:
		b.last = counts{}
	}
	b.now, b.from = counts{}, now
}

func (b *Breaker) open(c *Config, now time.Time, blamed, need int) {
	b.before, b.blamed, b.need = b.state, blamed, need
	b.become(Open)
	b.until = now.Add(b.later(c, now))
}

func (b *Breaker) later(c *Config, now time.Time) time.Duration {
	least := cmp.Or(c.Wait, time.Second)
	return b.pace.Later(now, now, least, max(c.Longest(), least), b.Seed)
}

// fill is for a worker that says when to come again: as long as it asks for, but not
// longer than a failing one is left alone.
func (b *Breaker) fill(c *Config, retryAfter time.Duration, now time.Time) {
	wait := b.later(c, now)
	if retryAfter > 0 {
		wait = min(retryAfter, c.Longest())
	}
	b.become(Full)
	b.until = now.Add(wait)
}

func (b *Breaker) close() {
	b.become(Closed)
	b.pace.Progress()
	b.inRow, b.now, b.last = 0, counts{}, counts{}
}

// Withdraw takes a failure back that was noted for the ticket: the request fails
// everywhere. If the breaker would not have opened without it, it is as before.
func (b *Breaker) Withdraw(t Ticket) {
	switch {
	case b.state == Closed && t.epoch == b.epoch:
		b.inRow = max(b.inRow-1, 0)
		b.now.bad = max(b.now.bad-1, 0)
	case b.state == Open && t.epoch == b.epoch-1:
		if b.blamed--; b.blamed >= b.need {
			return
		}
		b.state, b.until = b.before, time.Time{}
		b.epoch++
		b.pace.Progress()
		b.inRow, b.live = max(b.inRow-1, 0), 0
		b.now.bad = max(b.now.bad-1, 0)
	}
}

// Trip opens it whatever the counts say.
func (b *Breaker) Trip(c *Config, now time.Time) {
	if b.State(now) != Open {
		b.open(c, now, 1, 1)
	}
}

// Doubt makes a closed one half open: somebody else has found that it fails.
func (b *Breaker) Doubt() {
	if b.state == Closed {
		b.become(HalfOpen)
		b.live, b.passed, b.doubted = 0, 0, true
	}
}

// Doubted reports whether it is half open for Doubt alone: no request has failed.
func (b *Breaker) Doubted() bool { return b.doubted }

// Trust takes Doubt back.
func (b *Breaker) Trust() {
	if b.doubted {
		b.close()
	}
}

// Rest returns how long it stays Open or Full.
func (b *Breaker) Rest(now time.Time) time.Duration {
	if b.State(now) < Open {
		return 0
	}
	return b.until.Sub(now)
}

// Renew lets an open one be tried at once: there is a reason to think that the worker
// is well again.
func (b *Breaker) Renew(now time.Time) {
	if b.State(now) == Open {
		b.until = now
		b.State(now)
	}
}
