package follow

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// Limits are the bounds and waits of following; those of all ranks are the same.
type Limits struct {
	HoldMessages, HoldBytes int // held back for a rank while a predecessor is missing
	RecoverMessages         int // held back while it recovers; HoldBytes bounds it too
	// GapAsk is after how long of waiting the publisher is asked; after GapWait
	// nothing is waited for any more.
	GapAsk, GapWait        time.Duration
	RecoverMin, RecoverMax time.Duration // the waits after recoveries in vain
	DumpMin, DumpMax       time.Duration // the waits between dumps
	Lease                  time.Duration // silent for so long, one of two processes of a rank is gone; 0: they are not told apart
	Source                 Source
	// Snapshots says that an engine can be asked for all that it holds, too.
	Snapshots bool
}

// Source says who sends the rank's events, and what can be had of it besides.
type Source uint8

// The sources. What an engine itself has lost is lost for good: see engine.go.
const (
	Publisher Source = iota // it keeps what the rank holds: it is asked for events, and for dumps
	Mute                    // a publisher that nobody can ask
	Engine                  // it keeps nothing of what it sends
	Replay                  // an engine that keeps the last of it, and is asked for that
)

// forgets reports whether nobody knows what the rank held before.
func (s Source) forgets() bool { return s >= Engine }

// Step is the surroundings of one input, and what follows from it. A Rank keeps
// nothing of it.
type Step struct {
	*Limits
	Now     time.Time
	Created time.Time // when the stream was made that is read; zero: none is
	// Looks counts the looks at streams that found the one that is read to be there, and
	// LookEnd is where it ended at the last of them.
	Looks, LookEnd uint64
	Full           bool   // held messages keep the reader from going on
	Read           uint64 // up to where the stream was read
	End            uint64 // where it ends, as far as known; 0: none is read
	// Answered says that the publisher has answered the recovery that is under way.
	Answered bool
	Effects  []Effect // to be carried out in their order
}

func (s *Step) add(e Effect) { s.Effects = append(s.Effects, e) }

func (s *Step) done(m *Message) { s.add(Effect{Kind: Done, Ref: m.Ref}) }

func (s *Step) drop(why Reason, n int) {
	if n > 0 {
		s.add(Effect{Kind: Drop, Reason: why, N: n})
	}
}

// Kind says what is to be done.
type Kind uint8

// The kinds of effect.
const (
	Apply   Kind = iota + 1 // give Events, of the message Ref, to the index
	Clear                   // have the index hold nothing of the rank, as part of the message Ref
	Done                    // nothing more follows from the message Ref
	Drop                    // N events are not applied, for a Reason
	Skip                    // the wire left out the events From to To
	Gap                     // the events From to To are lost, as far as is known
	Restart                 // a new incarnation followed another one; an engine's showed by a Sign
	Want                    // the publisher should be asked, for a Cause
	Ask                     // ask it: begin the recovery Number
	Cancel                  // end the recovery that is under way
	Commit                  // make the dump or snapshot that was offered what the index has; of another process by its Sign
	numKinds
)

// String returns the kind's name.
func (k Kind) String() string {
	return [...]string{"?", "apply", "clear", "done", "drop", "skip", "gap", "restart", "want", "ask", "cancel", "commit", "?"}[min(k, numKinds)]
}

// Reason says why events are not applied.
type Reason uint8

// The reasons.
const (
	Duplicate    Reason = iota // they came before
	EndedRun                   // of an incarnation that is over
	WorkerLeft                 // from before the worker left
	Overflow                   // no room while recovering, or the wire broke: they are asked for once more
	OtherProcess               // two processes publish as the rank
	NumReasons
)

// String returns the reason's name in metrics.
func (r Reason) String() string {
	return [...]string{"duplicate", "ended_incarnation", "worker_left", "overflow", "two_processes", "?"}[min(r, NumReasons)]
}

// Effect is one thing to do.
type Effect struct {
	Kind     Kind
	Reason   Reason
	Cause    Cause
	Sign     Sign
	N        int
	From, To uint64
	Number   uint64
	Era      uint64 // of the rank, for Apply and Clear
	Events   []event.Event
	Ref      any
	Ask      Question
}
