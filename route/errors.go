package route

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that callers may want to tell apart.
var (
	// ErrOverloaded: workers that could serve the request are there, and all of
	// them are busy. The error is a *NoWorkerError.
	ErrOverloaded = errors.New("all workers are busy")
	// ErrLater: the request is Patient, and there is more to gain than to lose if it
	// asks again once a worker has less to do.
	ErrLater = errors.New("a worker will serve the request better a little later")
	// ErrNoWorker: no worker that the request may go to is there. The error is
	// a *NoWorkerError.
	ErrNoWorker = errors.New("no worker may serve the request")
	// ErrSettings is wrapped by errors about a setting or an option.
	ErrSettings = errors.New("invalid setting")
	// ErrUnknownWorker is wrapped by errors about a worker that is not set.
	ErrUnknownWorker = errors.New("unknown worker")
)

// Reason says why a rank was left out of a choice.
type Reason uint8

// The reasons. Eligible is none.
const (
	Eligible Reason = iota
	BusyDecodeBlocks
	BusyPrefillTokens
	Draining
	Dead        // its engine does not answer
	Addressless // nobody has said where its engine listens
	NotAllowed  // by the request's allowed workers or pin
	Excluded    // by the request
	Failing     // by what became of its requests, or because it says nothing
	Refusing    // it says that it has no room
	OtherRole   // of another pool
	Apart       // no prompt can be handed over between it and the others; see Router.SetApart
	numReasons
)

// String returns the reason's name in metrics and answers.
func (r Reason) String() string {
	return [...]string{
		"eligible", "busy_decode_blocks", "busy_prefill_tokens", "draining", "dead", "without_address", "not_allowed", "excluded",
		"failing", "refusing", "other_role", "apart", "unknown",
	}[min(r, numReasons)]
}

// NoWorkerError says why no rank could be chosen. It is ErrOverloaded if a
// rank was left out for being busy, else ErrNoWorker.
type NoWorkerError struct {
	// Left counts ranks by why they were left out.
	Left [numReasons]int
}

// laterError is ErrLater of a request. Where many wait, most choices give one, of which nobody reads the text.
type laterError string

func (e laterError) Error() string { return fmt.Sprintf("request %q: %v", string(e), ErrLater) }

func (laterError) Unwrap() error { return ErrLater }

// Overloaded reports whether the request could have been served by a worker
// that is less busy.
func (e *NoWorkerError) Overloaded() bool {
	return e.Left[BusyDecodeBlocks]+e.Left[BusyPrefillTokens]+e.Left[Refusing] > 0
}

func (e *NoWorkerError) Error() string {
	var b strings.Builder
	if e.Overloaded() {
		b.WriteString(ErrOverloaded.Error())
	} else {
		b.WriteString(ErrNoWorker.Error())
	}
	sep := ": "
	for r, n := range e.Left {
		if n > 0 {
			fmt.Fprintf(&b, "%s%d %s", sep, n, Reason(r))
			sep = ", "
		}
	}
	if sep == ": " {
		b.WriteString(": none is registered")
	}
	return b.String()
}

// Is makes errors.Is find ErrOverloaded or ErrNoWorker.
func (e *NoWorkerError) Is(target error) bool {
	return target == ErrOverloaded && e.Overloaded() || target == ErrNoWorker && !e.Overloaded()
}
