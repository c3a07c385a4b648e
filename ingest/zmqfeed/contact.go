package zmqfeed

import (
	"log/slog"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// contactEvery is how often the log says that an engine is away.
const contactEvery = 10 * time.Second

// Contact says in a log whether an engine is in contact: that it is away at once, then every ten
// seconds for how long, and when it is back. It belongs to the Handler's goroutine.
type Contact struct {
	log  *obs.Limited
	gone time.Time // since when it is away; zero: it is not
}

// NewContact returns the Contact of one engine, which the log names.
func NewContact(log *slog.Logger) *Contact {
	return &Contact{log: obs.NewLimited(log, contactEvery, nil)}
}

// State takes what the Handler is told.
func (c *Contact) State(st State) {
	now := time.Now()
	switch {
	case st.Err != nil:
		if c.gone.IsZero() {
			c.gone = now
		}
		c.log.Warn("gone", "the engine's stream is interrupted, trying again: see that the engine runs, publishes KV events there, and can be reached",
			slog.Duration("for", now.Sub(c.gone).Round(time.Second)), slog.Any("error", st.Err))
	case st.Phase == Live && !c.gone.IsZero():
		c.log.Log(slog.LevelInfo, "back", "the engine's stream goes on", slog.Duration("interrupted_for", now.Sub(c.gone).Round(time.Second)))
		c.gone = time.Time{}
	}
}
