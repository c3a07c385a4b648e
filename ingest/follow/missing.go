package follow

import "time"

// This file is how a rank learns that events are missing.

// Heartbeat says up to which event everything was published before it.
type Heartbeat struct {
	Incarnation uint64
	Last        uint64
	Incomplete  bool // the publisher lacks something for good
	Live        bool
	Seq         uint64
	Stored      time.Time
	Ref         any
}

// Heartbeat takes a heartbeat that came in order with the messages.
func (r *Rank) Heartbeat(s *Step, h Heartbeat) {
	met := r.heard
	at := Message{Live: h.Live, Seq: h.Seq, Stored: h.Stored, Ref: h.Ref, order: r.order}
	if !r.adopt(s, h.Incarnation, &at) || r.idles(s, &at, h.Last, met) {
		return
	}
	r.returns(s, h.Last, !r.known && h.Last == 0)
	if h.Live && r.seq > 0 && r.rec.number == 0 && h.Last > 0 && !r.has(h.Last) {
		r.passedBy(s, h.Last)
		return
	}
	if r.rec.number != 0 {
		return
	}
	behind := func() bool { return h.Last > 0 && !r.has(h.Last) }
	cause := r.gapCause(h.Live)
	switch {
	case behind() && r.mayAsk(s, cause):
		r.missing(s, cause, r.upTo(h.Last))
	case r.lack >= dump && r.mayAsk(s, Retry):
		r.ask(s, Retry)
	case r.spoilt == doubtful && r.mayAsk(s, Unusable):
		r.ask(s, Unusable)
	}
	for r.rec.number == 0 && behind() {
		lost := r.upTo(h.Last)
		r.passOver(s, r.next(), lost)
		r.take(lost)
		r.drain(s)
	}
	if r.rec.number == 0 && !behind() && r.lack <= lossy && r.spoilt == not {
		r.says(h.Incomplete)
	}
}

// upTo returns the last id that is missing, up to id, before what is held.
func (r *Rank) upTo(id uint64) uint64 {
	if len(r.held) > 0 {
		return min(id, r.held[0].from()-1)
	}
	return id
}

// Tick looks at what waits: it is asked for after a while, and what was waited
// for too long counts as lost, or all of it when the wait keeps the reader from
// going on. A recovery that takes its time hides no event for longer.
func (r *Rank) Tick(s *Step) {
	for len(r.held) > 0 {
		waited := s.Now.Sub(r.held[0].since)
		if r.rec.number == 0 && (s.Full || waited >= min(s.GapAsk, s.GapWait)) && r.mayAsk(s, Hole) {
			r.missing(s, Hole, r.held[0].from()-1)
		}
		if s.Full && r.rec.number != 0 {
			r.spill(s)
			break
		}
		if !s.Full && waited < s.GapWait {
			break
		}
		r.giveUp(s)
	}
	r.wonder(s)
	r.overdue(s)
}

// Ticks reports whether the rank waits for something: then Tick is to be called
// now and then.
func (r *Rank) Ticks() bool { return r.Held() > 0 || r.claim.pending() }

// Unusable takes the word that a message which may have been the rank's cannot be
// used: its event with the id, if that is known (not 0). lost says that it was one
// of the rank's stream, so that something is missing; else a hole after it is
// explained by it, and nothing more.
func (r *Rank) Unusable(s *Step, id uint64, lost bool, why error) {
	if r.gone || id > 0 && (r.has(id) || r.rec.number != 0 && id <= r.rec.need) {
		return // it makes no difference, or is seen to already
	}
	r.spoilt, r.why = max(r.spoilt, explained), why
	if lost {
		r.spoilt = doubtful
	}
	if lost && r.rec.number == 0 && r.isTime(s, Unusable) && !r.ask(s, Unusable) {
		r.putOff(s, s.Now, 4*s.RecoverMin) // there is nobody to ask
	}
	if len(r.held) > 0 && r.rec.number == 0 { // what is waited for is known now
		r.letGo(s)
	}
}

// gapCause says why a rank lacks events.
func (r *Rank) gapCause(live bool) Cause {
	if live && !r.known {
		return Discovery // it began before anybody listened
	}
	return Hole
}

// passOver goes on without the events from … to.
func (r *Rank) passOver(s *Step, from, to uint64) {
	r.gap(s, from, to)
	r.spoilt = not
	r.lose(s, s.absent(from, to))
	if s.Source.forgets() { // nor does anybody know what they have left of the rank
		r.wire.print = 0
		r.empty(s, nil)
		return
	}
	r.ask(s, Hole)
}

// missing begins the recovery of a rank that lacks the events up to an id; the
// caller has asked mayAsk.
func (r *Rank) missing(s *Step, cause Cause, to uint64) {
	if cause == Hole && !s.Source.forgets() { // else only what is not replayed is lost
		r.gap(s, r.next(), to)
	}
	r.why, r.lacks = s.absent(r.next(), to), to
	r.ask(s, cause)
}

// gap notes, once, that the events from … to are lost.
func (r *Rank) gap(s *Step, from, to uint64) {
	if from = max(from, r.counted+1); from <= to {
		r.counted = to
		s.add(Effect{Kind: Gap, From: from, To: to})
	}
}
