package follow

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// Message is what one message has for the rank.
type Message struct {
	Incarnation uint64
	Events      []event.Event // at least one, in the order of their ids; used in place
	// Live says that it came without a stream: in order, and not again.
	Live   bool
	Seq    uint64    // in the stream that is read; 0: it came otherwise
	Print  uint64    // of an engine's batch, to know it again; 0: not known
	Stored time.Time // when the stream stored it; zero: not known
	Ref    any       // of the caller, for effects

	since time.Time // when what it waits for was first waited for
	order uint64    // in which it came
}

func (m *Message) from() uint64 { return m.Events[0].ID }
func (m *Message) to() uint64   { return m.Events[len(m.Events)-1].ID }

// size returns about what the message keeps in memory.
func (m *Message) size() int {
	n := 128 * len(m.Events)
	for i := range m.Events {
		n += 16 * len(m.Events[i].Engine)
	}
	return n
}

// Message takes the next message: it is applied, held back or dropped.
func (r *Rank) Message(s *Step, m Message) {
	r.order++
	m.order = r.order
	if r.voids(s, &m) {
		s.drop(WorkerLeft, len(m.Events))
		s.done(&m)
		return
	}
	if !r.adopt(s, m.Incarnation, &m) {
		r.Return(s) // if it left: whichever run it is, it is from after that
		if r.puzzles(s, m) {
			return
		}
		why := EndedRun
		if r.rivals.contested {
			why = OtherProcess
		}
		s.drop(why, len(m.Events))
		s.done(&m)
		return
	}
	from := m.from()
	r.returns(s, max(from, 1)-1, !r.known && from <= 1 || r.restarts(from))
	r.seq = max(r.seq, m.Seq)
	if r.follows(from) {
		r.apply(s, m, false)
	} else {
		r.wait(s, m)
	}
	r.drain(s)
}

// wait holds the message back until its predecessor comes. A live one comes in
// order: what is missing then is lost, as it is where a bad message came.
func (r *Rank) wait(s *Step, m Message) {
	m.since = s.Now
	if !r.hold(m) {
		s.drop(Duplicate, len(m.Events))
		s.done(&m)
		return
	}
	full := len(r.held) > s.HoldMessages || r.bytes > s.HoldBytes
	lost := m.Live || r.spoilt != not // what is missing will not come by itself
	if cause := r.gapCause(m.Live); r.rec.number == 0 && (full || lost) && r.mayAsk(s, cause) {
		r.missing(s, cause, r.held[0].from()-1)
	}
	switch {
	case r.rec.number != 0:
		if len(r.held) > s.RecoverMessages || r.bytes > s.HoldBytes {
			r.spill(s)
		}
	case lost:
		r.letGo(s)
	default:
		for len(r.held) > s.HoldMessages || r.bytes > s.HoldBytes {
			r.giveUp(s)
		}
	}
}

// hold keeps the message. It reports false for a copy of one that is held.
func (r *Rank) hold(m Message) bool {
	at, found := slices.BinarySearchFunc(r.held, m.from(), func(q Message, id uint64) int { return cmp.Compare(q.from(), id) })
	if found && len(r.held[at].Events) >= len(m.Events) {
		return false
	}
	if at == 0 && len(r.held) > 0 {
		m.since = r.held[0].since // those behind it have waited since
	}
	r.held = slices.Insert(r.held, at, m)
	r.bytes += m.size()
	return true
}

// pop takes the first held message out.
func (r *Rank) pop() Message {
	m := r.held[0]
	r.held[0] = Message{}
	r.held = r.held[1:]
	r.bytes -= m.size()
	if len(r.held) == 0 {
		r.held = nil
	}
	return m
}

// drain applies the held messages that continue the stream: of an engine's, once
// it is known what is in the one before.
func (r *Rank) drain(s *Step) {
	for len(r.held) > 0 && !r.wire.unread && r.follows(r.held[0].from()) {
		r.apply(s, r.pop(), false)
	}
}

// giveUp takes what the first held message waits for as lost.
func (r *Rank) giveUp(s *Step) {
	r.apply(s, r.pop(), true)
	r.drain(s)
}

// letGo applies everything that is held, over the gaps.
func (r *Rank) letGo(s *Step) {
	for len(r.held) > 0 && !r.wire.unread {
		r.giveUp(s)
	}
}

// spill drops what a recovering rank holds: the recovery gets it once more. Of a
// publisher that has not answered yet that is not known: then it is applied.
func (r *Rank) spill(s *Step) {
	if !s.Answered {
		r.letGo(s)
		return
	}
	r.overflow = max(r.overflow, r.held[len(r.held)-1].to())
	r.discard(s, Overflow, all)
}

// discard drops what is held, as far as it is over.
func (r *Rank) discard(s *Step, why Reason, over func(m *Message) bool) {
	r.held = slices.DeleteFunc(r.held, func(m Message) bool {
		if !over(&m) {
			return false
		}
		r.bytes -= m.size()
		s.drop(why, len(m.Events))
		s.done(&m)
		return true
	})
}

func all(*Message) bool { return true }

// apply has the index apply the message's events, without those that came
// before. With a gap among them the rest waits for its recovery; over says to go
// on all the same.
func (r *Rank) apply(s *Step, m Message, over bool) {
	events := m.Events
	run := events[:0] // what is left, in place
	var rest []event.Event
	duplicates, taken := 0, 0
	complete, hole, lossyNow := false, false, r.lack == lossy
	for i := range events {
		ev := events[i]
		if r.begins(ev.ID) {
			run = r.flush(s, &m, run, events[i:i])
			r.restart(s, 0, &m)
		}
		if r.has(ev.ID) {
			duplicates++
			continue
		}
		if next := r.next(); ev.ID > next {
			hole = true
			if !over && (r.rec.number != 0 || r.mayAsk(s, Hole)) {
				rest = events[i:]
				break
			}
			r.passOver(s, next, ev.ID-1)
			complete = false
		}
		r.take(ev.ID)
		taken++
		if ev.Kind == event.Cleared && ev.AllTiers {
			run = r.flush(s, &m, run, events[i:i])
			r.era++
			complete = true
		}
		lossyNow = ev.Incomplete
		ev.Incomplete = ev.Incomplete || r.infers(s) && !complete
		run = append(run, ev)
	}
	s.drop(Duplicate, duplicates)
	if taken > 0 && !hole {
		r.spoilt = not // nothing of the rank was in what cannot be used
	}
	if complete && !r.claim.overdue { // whatever was missed before is cleared
		if r.lack = nothing; !r.awaits() {
			r.cancel(s)
		}
	}
	if taken > 0 {
		r.says(lossyNow)
	}
	if r.flush(s, &m, run, nil); s.Source.forgets() && taken > 0 {
		r.wire.unread, r.wire.proven, r.wire.print = true, true, m.Print
	}
	r.claim.reached(r)
	if rest == nil {
		s.done(&m)
		return
	}
	m.Events = rest
	if r.rec.number == 0 {
		r.missing(s, Hole, m.from()-1)
	}
	r.wait(s, m)
}

// flush has the index apply the run of events, and returns an empty one.
func (r *Rank) flush(s *Step, m *Message, run, empty []event.Event) []event.Event {
	if len(run) > 0 {
		s.add(Effect{Kind: Apply, Events: run, Ref: m.Ref, Era: r.era})
	}
	return empty
}

// infers reports whether what the rank stores below unknown parents is looked
// for with other workers: nothing better is to be had at the moment.
func (r *Rank) infers(s *Step) bool {
	return (r.lack == dump || r.lack == partial) && (r.rec.number == 0 || s.Source.forgets())
}
