package ingest

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrSilent is wrapped by why what is known is of before: NATS has not been heard for
// Config.StaleAfter.
var ErrSilent = errors.New("nothing has been heard of NATS")

// contact is when the server last told how its streams are, or brought a message. Without it
// nobody knows what has been published since. It is safe for concurrent use. It goes by
// the process's own clock: with that of the day set back, silence would not be noticed.
type contact struct {
	began time.Time
	after atomic.Int64 // ns
}

func (c *contact) heard(now time.Time) { c.after.Store(int64(now.Sub(c.began))) }

func (c *contact) last() time.Time { return c.began.Add(time.Duration(c.after.Load())) }

// silent returns an error if it was that long ago; nil for a contact that nobody keeps.
func (c *contact) silent(now time.Time, cfg *Config) error {
	if c == nil || now.Sub(c.last()) < cfg.StaleAfter {
		return nil
	}
	return fmt.Errorf("%w for %v: what has been published since is not known", ErrSilent, now.Sub(c.last()).Round(time.Second))
}

// Silent returns why what is known is of before; nil as long as NATS was heard of late.
func (in *Ingest) Silent() error { return in.contact.silent(time.Now(), &in.cfg) }

func (in *Ingest) exposeContact() {
	const name = "kvatlas_ingest_contact_seconds"
	in.cfg.Metrics.UnregisterMetric(name) // of an earlier Ingest on the same Set
	in.cfg.Metrics.NewGauge(name, func() float64 { return time.Since(in.contact.last()).Seconds() })
}
