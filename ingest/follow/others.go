package follow

import "slices"

// This file is what a rank does with messages of other runs of its engine, while it is only by
// its publisher's word that the one which is followed is the present one: after the position
// in the stream was void, say. They may be older, or of an engine that has begun anew since. The
// publisher is asked; until it answers they are held back, as one that has ended in the
// meantime has said all that it ever will.

// others are such messages, in the order in which they came.
type others struct {
	list  []Message
	bytes int
}

// which asks the publisher which run is the present one, if that is allowed now.
func (r *Rank) which(s *Step) {
	if r.rec.number == 0 && r.mayAsk(s, OtherRun) {
		r.ask(s, OtherRun)
	}
}

// puzzles holds a message back that was refused, if it may be of the present run, and reports
// whether it has.
func (r *Rank) puzzles(s *Step, m Message) bool {
	if r.ahead != sure || r.rivals.contested || s.Source.forgets() || slices.Contains(r.ended, m.Incarnation) {
		return false
	}
	m.since = s.Now
	r.others.list = append(r.others.list, m)
	if r.others.bytes += m.size(); len(r.others.list) > s.RecoverMessages || r.others.bytes > s.HoldBytes {
		r.goByStream(s)
	}
	return true
}

// wonder lets time pass for what is held back.
func (r *Rank) wonder(s *Step) {
	if len(r.others.list) == 0 {
		return
	}
	if s.Full || !s.Answered && s.Now.Sub(r.others.list[0].since) >= s.GapWait { // an answer that is on its way says more
		r.goByStream(s)
		return
	}
	r.which(s)
}

// goByStream takes the stream's word where the publisher has given none.
func (r *Rank) goByStream(s *Step) {
	r.ahead = min(r.ahead, unsure)
	r.decide(s)
}

// decide ends the wait: with the publisher's word other runs are over; without it they are
// what the stream says, in its order.
func (r *Rank) decide(s *Step) {
	list, told := r.others.list, r.ahead != unsure
	r.others = others{}
	for i := range list {
		if m := &list[i]; told && m.Incarnation != r.incarnation {
			r.end(m.Incarnation)
			s.drop(EndedRun, len(m.Events))
			s.done(m)
		} else {
			r.Message(s, *m)
		}
	}
}

// over drops what is held back.
func (r *Rank) over(s *Step) {
	for i := range r.others.list {
		s.drop(EndedRun, len(r.others.list[i].Events))
		s.done(&r.others.list[i])
	}
	r.others = others{}
}
