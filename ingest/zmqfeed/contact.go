package zmqfeed

import (
	"log/slog"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// contactEvery is how often the log says that an engine is away.
const contactEvery = 10 * time.Second

// contactLines is how many ranks have lines of their own: as many as a machine mostly has.
const contactLines = 8

// Contacts says in a log whether an engine's ranks are in contact: that one is away at once, then every ten
// seconds for how long, and when it is back. Ranks mostly go together, and there may be a thousand: those
// beyond contactLines share their lines, which say how many were left out. It is safe for concurrent use.
type Contacts struct{ log *obs.Limited }

// NewContacts returns the Contacts of one engine, which the log names.
func NewContacts(log *slog.Logger) *Contacts {
	return &Contacts{obs.NewLimited(log, contactEvery, nil)}
}

// Rank returns the Contact of one of the ranks.
func (c *Contacts) Rank(dpRank uint32) *Contact {
	line := strconv.Itoa(int(dpRank % contactLines))
	return &Contact{log: c.log, rank: slog.Any("dp_rank", dpRank), gone: "gone " + line, back: "back " + line}
}

// Contact is whether one rank is in contact. It belongs to the Handler's goroutine.
type Contact struct {
	log        *obs.Limited
	rank       slog.Attr
	gone, back string    // its lines
	since      time.Time // when it went away; zero: it is there
}

// State takes what the Handler is told.
func (c *Contact) State(st State) {
	now := time.Now()
	switch {
	case st.Err != nil:
		if c.since.IsZero() {
			c.since = now
		}
		c.log.Warn(c.gone, "the engine's stream is interrupted, trying again: see that the engine runs, publishes KV events there, and can be reached",
			c.rank, slog.Duration("for", now.Sub(c.since).Round(time.Second)), slog.Any("error", st.Err))
	case st.Phase == Live && !c.since.IsZero():
		c.log.Log(slog.LevelInfo, c.back, "the engine's stream goes on", c.rank, slog.Duration("interrupted_for", now.Sub(c.since).Round(time.Second)))
		c.since = time.Time{}
	}
}
