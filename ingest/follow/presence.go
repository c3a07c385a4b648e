package follow

import "time"

// This file is what a rank does whose worker leaves or returns.

// Departure says when a worker, or one of its ranks, left.
type Departure struct {
	// At is when that was stored. It tells the departures of a rank from each other,
	// and nothing more: clocks of machines differ, and are set.
	At time.Time
	// Seq is the last message that the space's stream had by then, and Created
	// when that stream was made, zero if there was none: what was published up to
	// there is void.
	Seq     uint64
	Created time.Time
	// Silent says that nobody told of it: nothing was heard of the worker any
	// more. Then a heartbeat is enough of a sign that it is back, and without Created
	// nobody noted where the stream was: Seq is where it is seen to end after that.
	Silent bool
}

// unnoted reports whether nobody noted where the stream was.
func (d *Departure) unnoted() bool { return d.Silent && d.Created.IsZero() }

// Gone reports whether the rank left and is not back.
func (r *Rank) Gone() bool { return r.gone }

// Departure returns the rank's last one; with a zero At there was none.
func (r *Rank) Departure() Departure { return r.left }

// Leave says that the rank left: the caller has the index hold nothing of it. If
// something of after it was read already, it is back.
func (r *Rank) Leave(s *Step, d Departure) {
	r.cancel(s)
	r.discard(s, WorkerLeft, all)
	r.lack, r.spoilt, r.claim, r.rivals = nothing, not, claim{}, rivals{}
	if r.left, r.leftLooks, r.gone = d, s.Looks+2, true; !r.heard && !d.unnoted() {
		r.leftLooks = 1 // it is met only now: it left before
	}
	r.era++
	if r.seq > d.Seq && d.Created.Equal(s.Created) {
		r.Return(s)
	}
}

// Return says that the rank is there again. What it holds is asked for.
func (r *Rank) Return(s *Step) {
	if r.gone {
		r.gone = false
		r.lose(s, errBack)
		r.ask(s, Returned)
	}
}

// before reports whether the rank left after the message. A live one is of this moment.
func (r *Rank) before(s *Step, m *Message) bool {
	return !m.Live && !r.after(s, m.Seq)
}

// after reports whether the sequence of the stream that is read is from after the
// rank's departure. One that is not of that stream is of an older one, unless the
// reader has not heard yet that its own is gone: as long as that is not known, nor
// where the stream ended of which nobody noted it, all is taken as from before. A
// publisher that is there speaks again.
func (r *Rank) after(s *Step, seq uint64) bool {
	d := &r.left
	if unnoted := d.unnoted(); unnoted || !d.Created.Equal(s.Created) {
		if s.Looks < r.leftLooks {
			return false
		}
		d.Seq, d.Created = 0, s.Created
		if unnoted {
			d.Seq = s.LookEnd
		}
	}
	return seq > d.Seq
}

// voids reports whether a message is void because its rank left after it. It
// follows the ids of such, so that the stream goes on after it without a hole.
func (r *Rank) voids(s *Step, m *Message) bool {
	if !r.gone || !r.before(s, m) {
		return false
	}
	if !r.adopt(s, m.Incarnation, m) {
		return true
	}
	for i := range m.Events {
		id := m.Events[i].ID
		if r.restarts(id) {
			r.begin(0)
		}
		if !r.has(id) {
			r.take(id)
		}
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
	if from > 0 && (r.incarnation == 0 || !r.has(from)) { // without incarnations it may be of another run
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
