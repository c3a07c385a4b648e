package follow

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
)

// This file is the following of an engine's own wire: numbered batches, from 0 on in
// each process, that mostly do not say which process they are of.
//
// A batch has one number, and is read only once it is its turn: what is in it follows
// from those before it. So it is an event without content here, with the number plus
// one as its id; Opened says what was in it.

// wire is what is known of an engine's wire.
type wire struct {
	broken   bool   // nothing comes
	lost     error  // why nobody knows all that the rank holds
	print    uint64 // of the last batch taken, to know it again; 0: not known
	process  uint64 // who sent that; 0: not known
	unread   bool   // what is in it is not told yet
	proven   bool   // who sends is the process that sent the last batch taken
	answered bool   // a replay of this process has ever brought a batch
	looked   bool   // the connection's first replay is over
	any      bool   // the connection brought a batch
	last     uint64 // the last one's id
	// doubt is a batch whose number fell: it is late, or came twice, or the engine began
	// anew. A replay tells.
	doubt  *Message
	verify pace.Pace // replays because of numbers that fell in vain
	given  bool      // what is missing is in no snapshot of the engine's either
	// joins is when a snapshot was taken that the wire has not reached yet: what lies between is
	// not known; zero: it has.
	joins time.Time
}

// Sign says what showed that an engine's process is another one.
type Sign uint8

// The signs of a Restart.
const (
	NoSign   Sign = iota // its incarnation did
	FellBack             // live numbers fell back
	Shorter              // the replay ends before the last batch taken
	Differs              // the batch with the last number taken has other content
	Unproven             // the replay goes on after the last batch taken, and no longer has it
	Named                // who sends them says so
	NumSigns
)

// String returns the sign's name in metrics and logs.
func (s Sign) String() string {
	return [...]string{"none", "fell_back", "shorter", "differs", "unproven", "named", "unknown"}[min(s, NumSigns)]
}

// Batch is one batch of a wire. The rank keeps it until it is Done.
type Batch struct {
	Number uint64 // below the largest there is
	Print  uint64 // of its content; 0: not known
	// Process is whose it is, on a wire that says so; 0: not known.
	Process uint64
	Ref     any // of the caller, for effects
	place   [1]event.Event
}

func (b *Batch) message(r *Rank) Message {
	b.place[0] = event.Event{ID: b.Number + 1}
	return Message{Incarnation: r.incarnation, Events: b.place[:], Live: true, Print: b.Print, Ref: b.Ref}
}

// Next returns the number of the batch that continues what was taken.
func (r *Rank) Next() uint64 { return r.next() - 1 }

// Connected says that the wire was made anew. Who sends may be another process now.
func (r *Rank) Connected(s *Step) {
	if !r.heard {
		r.begin(1)
	}
	r.Broken(s)
	w := &r.wire
	w.broken, w.proven, w.looked, w.any = false, !r.known, false, false
	r.retry.Progress()
	r.why = nil // who sends is what is asked for
	r.ask(s, Connected)
}

// Broken says that the wire broke. What waits for a replay is replayed later: who
// answers now may be another process than the one that sent it.
func (r *Rank) Broken(s *Step) {
	r.wire.broken = true
	r.cancel(s)
	r.discard(s, Overflow, all)
	r.dismiss(s, Overflow)
}

// Silent says that the wire has brought nothing for a while. It may be one that the
// network forgot.
func (r *Rank) Silent(s *Step) { r.ask(s, Silence) }

// Live takes the wire's next batch. While a recovery is under way it is not called.
func (r *Rank) Live(s *Step, b *Batch) {
	m, w := b.message(r), &r.wire
	id := m.from()
	named := w.process != 0 // who names itself no more is another one, too
	if named && b.Process != w.process {
		r.Anew(s, Named)
	}
	if w.any && id > w.last+1 {
		s.add(Effect{Kind: Skip, From: w.last + 1, To: id - 1})
	}
	if named {
		r.join(s, id)
		r.sent(s, &m)
		if w.process = b.Process; w.print == 0 && id == r.last {
			w.print = b.Print // of a batch that was in a snapshot
		}
		return
	}
	last := r.known && id == r.last && w.print != 0 && b.Print != 0
	same, other := last && w.print == b.Print, last && w.print != b.Print
	switch fell := w.any && id <= w.last || other; {
	case fell && same:
		r.drop(s, &m, Duplicate)
		return
	case fell && r.mayAsk(s, Fell):
		w.doubt = &m
		r.ask(s, Fell)
		return
	case fell, !same && !w.proven && r.has(id):
		r.Anew(s, FellBack) // nothing told that this is still the process of the last batch
	}
	r.sent(s, &m)
	w.process = b.Process
}

// Sent takes the next batch of the present process, where that is known otherwise.
func (r *Rank) Sent(s *Step, b *Batch) {
	m := b.message(r)
	r.sent(s, &m)
}

func (r *Rank) sent(s *Step, m *Message) {
	r.wire.any, r.wire.last = true, m.from()
	if r.has(m.from()) {
		r.wire.proven = true
		r.drop(s, m, Duplicate)
		return
	}
	m.Incarnation = r.incarnation
	r.Message(s, *m)
}

// Replayed takes the next batch of an answer. It reports false if one is missing before
// it: the answer is of no more use then.
func (r *Rank) Replayed(s *Step, b *Batch) bool {
	m, w := b.message(r), &r.wire
	id, first := m.from(), !r.rec.answer
	switch {
	case r.known && id < r.last, !first && r.has(id):
		r.drop(s, &m, Duplicate)
		return true
	case !first && id > r.next():
		s.done(&m)
		return false
	}
	w.answered, r.rec.answer = true, true
	if r.has(id) { // the last one taken
		switch w.proven = true; {
		case w.print != 0 && b.Print != 0 && w.print != b.Print:
			r.Anew(s, Differs)
		case w.print == 0 && w.process != 0: // it is known of a snapshot alone, and replays name nobody
			r.Anew(s, Unproven)
		}
		s.done(&m)
		return true
	}
	if first && r.known && id == r.next() {
		r.Anew(s, Unproven) // by chance another one may be just there
		s.done(&m)
		return true
	}
	// What is missing before the first is no longer kept: the queue of who is answered
	// was empty.
	r.rec.got = true
	r.apply(s, m, true)
	return true
}

// Again returns what is to be asked now for the recovery that is under way: an answer
// broke, or had a hole.
func (r *Rank) Again(s *Step) Question {
	r.rec.answer = false
	return r.question(s, r.rec.cause)
}

// ReplayEnd takes the end of an answer that is whole. An engine keeps at least its newest
// batch, so an answer without any is that of a process that has not come as far as the
// last one taken. But if it keeps none at all every answer is so: then only a new
// connection counts.
func (r *Rank) ReplayEnd(s *Step) {
	if !r.rec.answer && r.known && (r.wire.answered || !r.wire.looked) {
		r.Anew(s, Shorter)
		return
	}
	r.Ended(s, Result{})
}

// judge says what becomes of what waited for a replay: complete says that it came to its end.
func (r *Rank) judge(s *Step, complete bool) {
	w := &r.wire
	w.looked = true
	if m := w.doubt; m != nil {
		w.doubt = nil
		if complete && r.has(m.from()) { // who answers goes on from what was taken
			w.verify.Later(s.Now, s.Now, s.RecoverMin, s.GapWait, r.seed)
			r.drop(s, m, Duplicate)
			return
		}
		r.Anew(s, FellBack)
		r.sent(s, m)
	}
	r.letGo(s)
}

// Anew says that the engine's process is another one: all that it said before is void.
func (r *Rank) Anew(s *Step, sign Sign) {
	r.dismiss(s, EndedRun)
	n := len(s.Effects)
	r.restart(s, r.incarnation+1, new(Message))
	for i := range s.Effects[n:] {
		if e := &s.Effects[n+i]; e.Kind == Restart {
			e.Sign = sign
		}
	}
	// Nothing is left that another process said.
	r.why = nil
	r.wire = wire{proven: true, looked: r.wire.looked, verify: r.wire.verify}
}

// Contents are what was in the batch that was applied.
type Contents struct {
	Cleared bool  // its last part begins anew with nothing
	Lost    error // why it, or an event of it, cannot be read; nil: all can
}

// Opened says what was in the batch that was applied. What cannot be read ends nothing,
// but something is missing from then on.
func (r *Rank) Opened(s *Step, c Contents) {
	r.wire.unread = false
	switch {
	case c.Lost != nil:
		r.lose(s, c.Lost)
	case c.Cleared:
		r.lack = nothing
	}
	r.drain(s)
	if r.rec.number == 0 {
		r.letGo(s)
	}
	if s.Snapshots && r.lack != nothing && !r.wire.given && r.rec.number == 0 {
		r.ask(s, Retry)
	}
}

// drop drops a message.
func (r *Rank) drop(s *Step, m *Message, why Reason) {
	s.drop(why, len(m.Events))
	s.done(m)
}

// dismiss drops the batch in doubt.
func (r *Rank) dismiss(s *Step, why Reason) {
	if m := r.wire.doubt; m != nil {
		r.wire.doubt = nil
		r.drop(s, m, why)
	}
}
