package registry

import (
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// State says what is known of a worker.
type State uint8

// The states.
const (
	Live    State = iota // registered, and its lease is kept
	Suspect              // silent for half its lease, or not heard since this replica started
	Lost                 // its lease is lost
	Gone                 // it has unregistered
)

// String returns the state's name in answers and metrics.
func (s State) String() string {
	return [...]string{Live: "live", Suspect: "suspect", Lost: "lost", Gone: "gone"}[min(s, Gone)]
}

// Reason says why a worker left.
type Reason uint8

// The reasons.
const (
	Unregistered Reason = iota + 1 // by itself, an HTTP client or an operator
	LeaseLost                      // nothing was heard for a full lease
	Vanished                       // its HTTP registration was not in the bucket any more
)

// String returns the reason's name in metrics and logs.
func (r Reason) String() string {
	return [...]string{"", "unregistered", "lease_lost", "vanished"}[min(r, Vanished)]
}

// Entry is a worker with what is known of it.
type Entry struct {
	Worker
	Key   Key
	State State
	// Drained workers get no new requests and lose nothing.
	Drained      bool
	DrainedSince time.Time
	DrainedBy    string
	// Announced, HTTP and Static say how it is registered. None of them is
	// set for one that left.
	Announced, HTTP, Static bool
	// Lease is how long its announcement holds, and LastSeen when this replica
	// heard it last; before the first time, when the server stored it. Zero
	// for a worker without an announcement.
	Lease    time.Duration
	LastSeen time.Time
	// Last is how far its streams were at its last heartbeat.
	Last []event.Position
	// Mismatch says why its hashes will never match here; "" if they can.
	Mismatch string
	// Conflict says that two processes announce it; "" if not.
	Conflict string
	// Left is when it left, and LeftBy why.
	Left   Departure
	LeftBy Reason
	// Listeners is the state of its sockets' readers, by rank, for a worker
	// whose events come over ZMQ.
	Listeners map[uint32]Listener
}

// Present reports whether the worker is one of the fleet.
func (e *Entry) Present() bool { return e.State.present() }

func (s State) present() bool { return s == Live || s == Suspect }

// Status is the state for people: drained stands for live and suspect.
func (e *Entry) Status() string {
	return statusOf(e.State, e.Drained)
}

func statusOf(s State, drained bool) string {
	if drained && s.present() {
		return "drained"
	}
	return s.String()
}

// Kind says what an Event is about.
type Kind uint8

// The kinds of event.
const (
	Joined   Kind = iota + 1 // a worker that was not known
	Updated                  // its registration, state or drained mark changed
	Returned                 // it had left and is back: see Event.NeedsDump
	Left                     // it is gone or lost: its blocks leave the index; again, if a lost one unregisters
	Resync                   // events were dropped: compare with Snapshot(true)
)

// String returns the kind's name in metrics and logs.
func (k Kind) String() string {
	return [...]string{"", "joined", "updated", "returned", "left", "resync"}[min(int(k), int(Resync))]
}

// Event is one change of the registry.
type Event struct {
	Kind  Kind
	Entry Entry // as it is after the change; empty with Resync
	// NeedsDump: what was applied of its streams is void; ask for a full dump
	// first. Set with Returned.
	NeedsDump bool
	// Restarted: its incarnation is another one than before.
	Restarted bool
	// RemovedRanks are ranks that are no longer registered, while others are, and
	// when they left.
	RemovedRanks map[uint32]Departure
}
