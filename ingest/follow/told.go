package follow

import (
	"slices"
	"time"
)

// This file is what a rank does with what is said of it beside its messages.

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
	if c.incarnation != incarnation && !c.overdue {
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
	if r.gone || r.rivals.contested || slices.Contains(r.ended, incarnation) || (same || !r.heard) && last == 0 || same && r.has(last) {
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

// passedBy takes the word of the rank's publisher, which came without a stream, that its
// stream does not take what it has sent up to an event: it is asked for that. The stream
// brings it one day, so nothing of it is lost.
func (r *Rank) passedBy(s *Step, last uint64) {
	r.claim = claim{incarnation: r.incarnation, last: last, since: s.Now, overdue: true}
	r.lacks = max(r.lacks, last)
	r.ask(s, Behind)
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
		told, run, spoke := *c, r.incarnation, r.others
		r.others = others{}
		r.restart(s, run, new(Message))
		r.heard, r.claim = false, told
		if r.others = spoke; len(spoke.list) > 0 {
			r.ahead = unsure
			defer r.decide(s)
		}
	}
	if c.reached(r); c.last == 0 {
		*c = claim{}
		return
	}
	c.overdue = true
	r.lacks = max(r.lacks, c.last)
	r.ask(s, Behind)
}
