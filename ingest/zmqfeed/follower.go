package zmqfeed

import (
	"errors"
	"iter"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// Handler is told what becomes of an engine's stream, on one goroutine. It may
// block: the engine is then held back, see the package's comment.
type Handler interface {
	// Batch gives the batch with the number. It has neither space nor worker. It lives
	// until Batch returns. Its events say whether the stream lacks something at them.
	// The answer says whether it has blocks whose parent nobody knows, and blocks for
	// which there is no room: something is missing then.
	Batch(number uint64, b *event.Batch) (unknownParent, refused bool)
	// Restart says that the engine's process is another one: everything that
	// the stream said before is void, and the next number is 0.
	Restart(sign follow.Sign)
	// Snapshot gives all that the engine holds after the batch with the number (the largest
	// there is: before its first), as batches that begin with nothing: what the stream said before is
	// void, and the next number is the one after it. Each lives until the next. The answer says
	// whether it has blocks without a place, and blocks for which there is no room.
	Snapshot(number uint64, parts iter.Seq[*event.Batch]) (unplaced, refused bool)
	// Gap says that batches are missing for good; the next number is To + 1.
	Gap(g Gap)
	// State says how the stream fares, for logs and readiness.
	State(s State)
}

// Gap is a run of batches that will not come.
type Gap struct {
	From, To uint64 // both included
	Why      Reason
}

// Unusable reports whether the batches came, and cannot be used. What was stored before
// them is still there then; after any other gap nothing says what is.
func (g Gap) Unusable() bool { return g.Why == Undecodable || g.Why == Oversize }

// Content is what a batch brings: a follow.Batch's Ref.
type Content interface {
	// Read gives it, once everything before it was read; or why nobody can.
	Read() (*event.Batch, Reason, error)
	// Done says that the content is not needed any more.
	Done()
}

var errUnreadable = errors.New("an event of a batch cannot be read")

// Follower drives the following of one engine's batches (see [follow.Rank]), and tells
// its Handler. Its methods but Status belong to one goroutine.
type Follower struct {
	rank  follow.Rank
	steps follow.Step
	h     Handler
	shown atomic.Pointer[follow.Status]
	told  follow.State // last

	lost      func(n uint64) Reason // why batches are, that do not come
	restarted func(follow.Sign)     // called before the Handler
	other     func(*follow.Effect)  // carries out the rest
}

// NewFollower returns a Follower of batches whose engine cannot be asked for any again.
func NewFollower(h Handler) *Follower {
	f := new(Follower)
	f.begin(h, &follow.Limits{Source: follow.Engine}, 0)
	f.lost = func(uint64) Reason { return Retention }
	f.restarted, f.other = func(follow.Sign) {}, func(*follow.Effect) {}
	return f
}

func (f *Follower) begin(h Handler, l *follow.Limits, seed uint64) {
	f.rank, f.h, f.steps.Limits = follow.New(seed), h, l
	f.shown.Store(new(follow.Status))
}

// Resume goes on where a follower was: before the batch with the number.
func (f *Follower) Resume(next uint64, incomplete bool) {
	if next == 0 {
		f.Anew()
	} else {
		f.Step(func(k *follow.Rank, s *follow.Step) {
			k.Resume(s, &follow.Position{Incarnation: 1, LastID: next, Incomplete: incomplete})
		})
	}
}

// Next returns the number of the batch that continues the stream.
func (f *Follower) Next() uint64 { return f.rank.Next() }

// Status returns how the following stands. Anyone may call it.
func (f *Follower) Status() follow.Status { return *f.shown.Load() }

// Step gives the rank an input, and does what follows from it.
func (f *Follower) Step(input func(k *follow.Rank, s *follow.Step)) {
	s := &f.steps
	s.Now, s.Effects = time.Now(), s.Effects[:0]
	input(&f.rank, s)
	var opened *follow.Contents
	parent, refused := false, false
	for i := range s.Effects {
		switch e := &s.Effects[i]; e.Kind {
		case follow.Apply:
			opened = new(follow.Contents)
			*opened, parent, refused = f.apply(e)
		case follow.Done:
			e.Ref.(Content).Done()
		case follow.Gap:
			f.h.Gap(Gap{From: e.From - 1, To: e.To - 1, Why: f.lost(e.To - e.From + 1)})
		case follow.Restart:
			f.restarted(e.Sign)
			f.h.Restart(e.Sign)
		default:
			f.other(e)
		}
	}
	clear(s.Effects)
	if opened != nil {
		f.Step(func(k *follow.Rank, s *follow.Step) { k.Opened(s, *opened) })
		if parent || refused {
			f.Step(func(k *follow.Rank, s *follow.Step) { k.Noted(s, parent, refused) })
		}
		return
	}
	if st := f.rank.Status(); *f.shown.Load() != st {
		f.shown.Store(&st)
		f.tell(st.State, nil)
	}
}

// tell tells the handler of another state, or why it lasts.
func (f *Follower) tell(st follow.State, why error) {
	if st != f.told || why != nil {
		f.told = st
		f.h.State(State{Phase: PhaseOf(st), Err: why})
	}
}

// Sent takes the next batch of the present process, where that is known.
func (f *Follower) Sent(number uint64, c Content) {
	b := &follow.Batch{Number: number, Ref: c}
	f.Step(func(k *follow.Rank, s *follow.Step) { k.Sent(s, b) })
}

// Anew says that who sends is another process, by its own word.
func (f *Follower) Anew() {
	f.Step(func(k *follow.Rank, s *follow.Step) { k.Anew(s, follow.Named) })
}

// apply reads a batch and gives it to the handler.
func (f *Follower) apply(e *follow.Effect) (c follow.Contents, unknownParent, refused bool) {
	number := e.Events[0].ID - 1
	b, why, err := e.Ref.(Content).Read()
	if err != nil {
		f.h.Gap(Gap{From: number, To: number, Why: why})
		return follow.Contents{Lost: err}, false, false
	}
	if b.Lost > 0 { // wherever in the batch
		c.Lost = errUnreadable
	}
	incomplete := e.Events[0].Incomplete || b.Lost > 0
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind == event.Cleared && ev.AllTiers {
			c.Cleared, incomplete = true, b.Lost > 0 // what is missing is cleared
		}
		ev.Incomplete = incomplete
	}
	unknownParent, refused = f.h.Batch(number, b)
	return c, unknownParent, refused
}

// Phase is what the following of an engine is doing.
type Phase uint8

// The phases.
const (
	Connecting Phase = iota // or waiting to connect again; Err says why
	CatchingUp              // connected, replaying what it missed
	Live                    // up to date as far as it knows
)

// PhaseOf returns the phase in which a rank in the state is.
func PhaseOf(s follow.State) Phase {
	switch s {
	case follow.Away:
		return Connecting
	case follow.Recovering:
		return CatchingUp
	}
	return Live
}

// String returns the phase as a metric's label.
func (p Phase) String() string {
	switch p {
	case CatchingUp:
		return "catching_up"
	case Live:
		return "live"
	}
	return "connecting"
}

// State is a stream's phase, and the error that led to it, if one did.
type State struct {
	Phase Phase
	Err   error
}
