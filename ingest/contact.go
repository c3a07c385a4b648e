package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// ErrSilent is wrapped by why what is known is of before: NATS has not been heard for
// Config.StaleAfter.
var ErrSilent = errors.New("nothing has been heard of NATS")

// contact is when the server last told how its streams are, or brought a message; after a silence, only
// once what is missing is applied. Without it nobody knows what has been published since. It is safe for
// concurrent use. It goes by the process's own clock, or by that of the day where more has passed by it: set back,
// that one does not tell a silence, and the own one stands still while the machine sleeps, or its VM is halted.
type contact struct {
	began time.Time
	after atomic.Int64 // ns, by the own clock
	day   atomic.Int64 // the same by the clock of the day
}

// heard notes a word of the server. It does not end a silence: that is over once what the
// streams got meanwhile is applied, see Ingest.looked.
func (c *contact) heard(now time.Time, cfg *Config) {
	if c.silent(now, cfg) == nil {
		c.known(now)
	}
}

// known notes that what was published until then is known, but for what is on its way.
func (c *contact) known(at time.Time) {
	after := int64(at.Sub(c.began))
	for {
		is := c.after.Load()
		if is >= after {
			return
		}
		if c.after.CompareAndSwap(is, after) {
			c.day.Store(int64(at.Round(0).Sub(c.began.Round(0))))
			return
		}
	}
}

func (c *contact) last() time.Time { return c.began.Add(time.Duration(c.after.Load())) }

// past returns how long ago it was.
func (c *contact) past(now time.Time) time.Duration {
	return max(now.Sub(c.last()), now.Round(0).Sub(c.began.Round(0))-time.Duration(c.day.Load()))
}

// silent returns an error if it was that long ago; nil for a contact that nobody keeps.
func (c *contact) silent(now time.Time, cfg *Config) error {
	if c == nil || c.past(now) < cfg.StaleAfter {
		return nil
	}
	return fmt.Errorf("%w for %v: what has been published since is not known", ErrSilent, c.past(now).Round(time.Second))
}

// Silent returns why what is known is of before; nil as long as NATS was heard of late.
func (in *Ingest) Silent() error { return in.contact.silent(time.Now(), &in.cfg) }

// looked notes that the server, asked at that time, told where its streams end. After a silence
// what is known is of before until it is applied as far as they ended when that was first told:
// a replica that wakes up, or is connected again, has all of it ahead. Of the discovering goroutine only.
func (in *Ingest) looked(ctx context.Context, asked time.Time) {
	if in.contact.silent(time.Now(), &in.cfg) == nil {
		in.missed = nil
		in.contact.known(asked)
		return
	}
	again := asked.Sub(in.missedAt) >= in.cfg.StaleAfter // what was missed before that silence is not all
	if in.missedAt = asked; in.missed == nil || again {
		in.missed = make(map[string]uint64)
		for _, s := range in.Streams() {
			in.missed[s.Stream] = s.Last
		}
	}
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for until := time.Now().Add(in.cfg.Discover); !in.caughtUp(); {
		select {
		case now := <-poll.C:
			if now.After(until) { // where streams end is to be looked at again
				return
			}
		case <-ctx.Done():
			return
		}
	}
	in.missed = nil
	in.contact.known(asked)
}

// caughtUp reports whether everything of missed is applied that is still there, and can be read.
func (in *Ingest) caughtUp() bool {
	now := time.Now()
	for _, r := range in.readers() {
		if s := r.status(now); s.Position < min(in.missed[s.Stream], s.Last) && s.Stalled == nil && !r.gone(s.Err) {
			return false
		}
	}
	return true
}

// gone reports whether the server does not have the stream, or has nobody who could tell of it.
func (r *reader) gone(err error) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.mu.absent.IsZero() || errors.Is(err, jetstream.ErrStreamNotFound)
}

func (in *Ingest) exposeContact() {
	const name = "kvatlas_ingest_contact_seconds"
	in.cfg.Metrics.UnregisterMetric(name) // of an earlier Ingest on the same Set
	in.cfg.Metrics.NewGauge(name, func() float64 { return in.contact.past(time.Now()).Seconds() })
}
