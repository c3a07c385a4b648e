package follow

import (
	"slices"
	"time"
)

// Position is how far a rank is applied, as a snapshot keeps it: the names are those of
// its file (docs/stored-format.md).
type Position struct {
	Incarnation uint64 `json:"incarnation,string"`
	LastID      uint64 `json:"last_id"`
	Incomplete  bool   `json:"incomplete,omitempty"` // something before LastID is missing
	// Unconfirmed says that the incarnation was learnt from the publisher, and that
	// the stream may still bring older ones.
	Unconfirmed bool `json:"ahead,omitempty"`
	// Print is of an engine's batch LastID, to know it again; 0: not known. No snapshot
	// has it: an engine that is read without NATS is in none.
	Print uint64 `json:"-"`
	// Process is the engine's process, where its wire names it; 0: not known. Likewise.
	Process uint64 `json:"-"`
	// Ended holds the incarnations before, oldest first: their messages are
	// not to be taken for a new one.
	Ended []uint64 `json:"ended,omitempty"`
	// Left is the Departure.At of the last departure that is accounted for; zero:
	// none. Departed says that the rank is not back since: it holds nothing.
	Left     time.Time `json:"left,omitzero"`
	Departed bool      `json:"departed,omitempty"`
}

// Position returns the rank's; false if there is nothing to go on from.
func (r *Rank) Position() (Position, bool) {
	// It does not say whether it began with 0 or 1, which tells a copy from a restart.
	vague := r.incarnation == 0 && r.last == 1 && r.first == 0
	return Position{
		Incarnation: r.incarnation, LastID: r.last, Incomplete: vague || r.Status().Incomplete,
		Ended: r.ended, Unconfirmed: r.ahead != inStep, Print: r.wire.print, Process: r.wire.process, Left: r.left.At, Departed: r.gone,
	}, r.heard && r.known
}

// Resume takes a rank of which nothing is known up where a snapshot left it. It
// reports false if the rank has left since: then what the snapshot has of it goes,
// and its position says nothing of when it left.
func (r *Rank) Resume(s *Step, p *Position) bool {
	if r.heard {
		return true
	}
	left, gone := r.left, r.gone
	if gone && !left.At.Equal(p.Left) {
		return false
	}
	r.goOn(s, p)
	r.left, r.gone = Departure{At: p.Left, Created: s.Created}, p.Departed // what is read is from after it
	switch {
	case gone:
		r.left = left // it says more
	default:
		r.Return(s) // it is registered again
	}
	return true
}

// goOn sets how far the rank is.
func (r *Rank) goOn(s *Step, p *Position) {
	r.heard, r.incarnation, r.ahead = true, p.Incarnation, inStep
	if p.Unconfirmed {
		r.ahead = sure
	}
	r.known, r.first, r.last = true, 0, p.LastID
	if r.last == 1 {
		r.first = 1 // see Position
	}
	r.wire.print, r.wire.process = p.Print, p.Process
	r.era++
	for _, e := range p.Ended {
		if e != p.Incarnation {
			r.end(e)
		}
	}
	if r.lack = nothing; p.Incomplete {
		r.lose(s, errResumed)
	}
}

// Lags reports whether a snapshot of a later position in the stream, up to seq, has
// more of the rank than is applied. What came otherwise than through the stream, from
// the publisher itself, is newer: so are ranks whose worker has left since, that
// recover, or that the publisher gave a dump of.
func (r *Rank) Lags(s *Step, p *Position, seq uint64) bool {
	switch {
	case r.gone || r.rivals.contested || r.rec.number != 0 || r.lack == room:
		return false
	case !r.left.At.IsZero() && !r.left.At.Equal(p.Left) && !r.after(s, seq):
		return false
	case !r.heard:
		return true
	case r.incarnation == p.Incarnation && r.incarnation != 0:
		return !r.known || r.last < p.LastID || r.last == p.LastID && p.Departed
	}
	// Without incarnations ids begin anew at any time: what is later in the
	// stream is right. A snapshot that did not know itself is none to go by.
	return r.ahead == inStep && (r.lack != nothing || !p.Incomplete) && !slices.Contains(r.ended, p.Incarnation)
}

// TakeUp makes what a snapshot has the rank's state, with the effect Commit, if
// the rank still Lags.
func (r *Rank) TakeUp(s *Step, p *Position, seq uint64) bool {
	if !r.Lags(s, p, seq) {
		return false
	}
	if !r.heard || r.incarnation != p.Incarnation {
		if r.heard {
			s.add(Effect{Kind: Restart})
		}
		r.begin(p.Incarnation)
		r.discard(s, EndedRun, all)
	}
	s.add(Effect{Kind: Commit})
	r.goOn(s, p)
	r.left = Departure{At: p.Left, Created: s.Created}
	r.claim.reached(r)
	r.drain(s)
	return true
}

// TakeDeparture takes over from a snapshot, if the rank still Lags, that the rank
// has left: d says where the snapshot ends. The caller has the index hold nothing
// of it. present says that it is registered.
func (r *Rank) TakeDeparture(s *Step, p *Position, d Departure, present bool) {
	r.cancel(s)
	r.discard(s, WorkerLeft, all)
	r.goOn(s, p)
	r.gone, r.left, r.lack = true, d, nothing
	if present {
		r.Return(s)
	}
}
