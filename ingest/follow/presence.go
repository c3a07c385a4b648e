package follow

import (
	"slices"
	"time"
)

// This file is what a rank does whose worker leaves, returns, or is told of by
// others.

// Departure says when a worker, or one of its ranks, left.
type Departure struct {
	// At is when that was stored, by the server's clock. It tells the departures
	// of a rank from each other.
	At time.Time
	// Seq is the last message that the space's stream had by then, and Created
	// when that stream was made: what was published up to there is void. Without
	// Created, At decides.
	Seq     uint64
	Created time.Time
	// Silent says that nobody told of it: nothing was heard of the worker any
	// more. Then a heartbeat is enough of a sign that it is back.
	Silent bool
}

// Gone reports whether the rank left and is not back.
func (r *Rank) Gone() bool { return r.gone }

// Departure returns the rank's last one; with a zero At there was none.
func (r *Rank) Departure() Departure { return r.left }

// Leave says that the rank left: the caller has the index hold nothing of it. If
// something of after it was read already, it is back.
func (r *Rank) Leave(s *Step, d Departure) {
	r.cancel(s)
	r.discard(s, WorkerLeft)
	r.lack, r.spoilt, r.claim = nothing, not, claim{}
	r.left, r.gone = d, true
	if r.seq > d.Seq && d.Created.Equal(s.Created) {
		r.Return(s)
	}
}

// Return says that the rank is there again. What it holds is asked for.
func (r *Rank) Return(s *Step) {
	if r.gone {
		r.gone = false
		r.lose(errBack)
		r.ask(s, Returned)
	}
}

// before reports whether the rank left after the message.
func (r *Rank) before(s *Step, m *Message) bool {
	switch d := &r.left; {
	case m.Live:
		return false // it is of this moment
	case d.Created.IsZero():
		return !m.Stored.IsZero() && !m.Stored.After(d.At)
	default:
		return s.Created.Before(d.Created) || s.Created.Equal(d.Created) && m.Seq <= d.Seq
	}
}

// voids reports whether a message is void because its rank left after it. It
// follows the ids of such, so that the stream goes on after it without a hole.
func (r *Rank) voids(s *Step, m *Message) bool {
	if !r.gone || !r.before(s, m) {
		return false
	}
	if r.adopt(s, m.Incarnation, m.Ref) && !r.has(m.to()) {
		r.take(m.to())
	}
	return true
}

// returns handles the first sign, of the rank's present incarnation, from after
// it left: what follows the event from. What lies before that is not missing: it
// is void, or in the dump that is asked for; of an incarnation that begins there
// is none.
func (r *Rank) returns(s *Step, from uint64, begins bool) {
	if !r.gone {
		return
	}
	if begins {
		r.gone = false
		return
	}
	if from > 0 && !r.has(from) {
		r.take(from)
	}
	r.Return(s)
}

// idles reports whether a heartbeat, up to an event, says of a rank that left
// nothing but that its publisher is still there. met says that the rank was known
// before.
func (r *Rank) idles(s *Step, m *Message, last uint64, met bool) bool {
	switch old := r.before(s, m); {
	case !r.gone || r.left.Silent && !old:
		return false
	case last == 0 || r.has(last):
		return true
	case met && !old:
		return false // it has published something since
	}
	r.take(last)
	return true
}

// claim is what was said of the rank beside its messages: by since, its publisher
// had come so far. It is not in order with them, so it is given time to come true.
type claim struct {
	incarnation, last uint64
	since             time.Time // zero: there is none
	end               uint64    // of the stream, a while after; 0: not looked at yet
	overdue           bool      // it has not come true in time
}

func (c *claim) pending() bool { return !c.since.IsZero() && !c.overdue }

// spoke notes a message or heartbeat of the incarnation: it is not over.
func (c *claim) spoke(incarnation uint64) {
	if c.incarnation != incarnation {
		*c = claim{}
	}
}

// reached forgets a claim that has come true.
func (c *claim) reached(r *Rank) {
	if !c.since.IsZero() && c.incarnation == r.incarnation && (c.last == 0 || r.has(c.last)) {
		*c = claim{}
	}
}

// Told takes what a registration says of the rank: its publisher's incarnation,
// 0 if that is not said, and last event.
//
// Incarnations are random; their order is that of who speaks last. One that was
// seen to end never returns by a registration. One that is not known, of a process
// that has sent nothing yet or of a registration that comes late, is a question:
// the publisher is asked, and what the present one held goes unless that speaks
// once more within GapWait.
func (r *Rank) Told(s *Step, incarnation, last uint64) {
	if incarnation == 0 {
		incarnation = r.incarnation
	}
	same := r.heard && incarnation == r.incarnation
	if r.gone || slices.Contains(r.ended, incarnation) || same && (last == 0 || r.has(last)) {
		return
	}
	if !r.claim.since.IsZero() && r.claim.incarnation == incarnation {
		return // the first one is not true yet
	}
	r.claim = claim{incarnation: incarnation, last: last, since: s.Now}
	if r.heard && !same && r.mayAsk(s, OtherRun) {
		r.why = errWhichRun
		r.ask(s, OtherRun)
	}
}

// overdue looks whether what was told has come true in time: the stream has been
// read as far as it came a while after that.
func (r *Rank) overdue(s *Step) {
	c := &r.claim
	waited := s.Now.Sub(c.since)
	if !c.pending() || waited < s.GapWait/2 {
		return
	}
	if c.end == 0 {
		c.end = max(s.End, 1)
	}
	if waited < s.GapWait || s.Read < c.end && s.End > 0 {
		return
	}
	if r.heard && c.incarnation != r.incarnation {
		// What the run before held goes. Which one speaks next is the present one.
		told, ended := *c, r.ended
		r.restart(s, 0, nil)
		r.heard, r.ended, r.claim = false, ended, told
	}
	if c.reached(r); c.last == 0 {
		*c = claim{}
		return
	}
	c.overdue = true
	r.lacks = max(r.lacks, c.last)
	r.ask(s, Behind)
}
