package follow

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/internal/pace"
)

// State says what is known of a rank and what is done about it. What each one
// promises is said in the package's comment.
type State uint8

// The states.
const (
	Unknown State = iota
	Following
	Waiting
	Recovering
	Lossy
	Stale
	Truncated
	Departed
	Contested
	Away
	numStates
)

// String returns the state's name.
func (s State) String() string {
	return [...]string{"unknown", "following", "waiting", "recovering", "lossy", "stale", "truncated", "departed", "contested", "away", "?"}[min(s, numStates)]
}

// lack is what the index lacks of what the rank holds. A greater one includes
// the lesser: what mends it mends those, too.
type lack uint8

const (
	nothing lack = iota
	lossy        // what the publisher itself lacks for good, by its own word
	partial      // what it held before its publisher began: the publisher does not know
	dump         // no longer known: all that the rank holds is to be asked for
	room         // the same, once the index has room for it
)

// spoilt is what a message that cannot be used says of a rank.
type spoilt uint8

const (
	not       spoilt = iota
	explained        // a hole that follows: it is not waited for
	doubtful         // the same, and the rank lacks something already, most likely
)

// ahead says whether the incarnation was learnt beside the messages, from the
// publisher: one of another incarnation is older, most likely.
type ahead uint8

const (
	inStep ahead = iota
	unsure       // it was; but nobody answers any more, so another one may be newer
	sure         // it was: another one is refused, and the publisher asked which it is
)

// maxEnded bounds the incarnations of a rank that are remembered as ended. A
// worker would have to restart more often within the stream's retention for a
// message of a forgotten one to be taken for a new incarnation.
const maxEnded = 64

// Rank is the following of one rank. Make one with New.
type Rank struct {
	seed uint64 // of the chance in its waits

	// How far the index is. An id is known once an event of the incarnation was
	// taken, or its state resumed; before, the rank holds nothing in it.
	heard       bool // the incarnation is one that somebody named
	incarnation uint64
	known       bool
	first, last uint64   // of the incarnation, taken
	era         uint64   // counts the times that the index began anew with the rank
	order       uint64   // of the last message that came
	ended       []uint64 // incarnations that are over, oldest first; shared with Positions
	ahead       ahead

	lack lack
	// spoilt says what follows from a message that cannot be used, and may have been
	// the rank's, until the next one that can.
	spoilt spoilt
	why    error // of the last loss: of what State says only if that is not well
	rec    recovery
	asks   uint64    // recoveries so far
	held   []Message // by first id, each beyond last+1
	bytes  int       // of held
	others others    // of runs of which it is not known whether they are over

	overflow uint64 // the last event that found no room while recovering
	lacks    uint64 // the last event that the next recovery is for
	counted  uint64 // events up to it are counted as missed
	// retry puts off recoveries after one that was in vain, dumps those that need
	// a dump after one. An engine that begins anew changes neither.
	retry, dumps pace.Pace

	gone      bool      // it left and is not back
	left      Departure // the last one
	leftLooks uint64    // with so many Step.Looks, one is sure to have begun after it
	seq       uint64    // of the stream's last message from it since
	claim     claim
	rivals    rivals
	wire      wire
}

// New returns a rank of which nothing is known. The seed tells the chance in its
// waits.
func New(seed uint64) Rank { return Rank{seed: seed} }

// State returns the rank's state: the first that holds of departed, away, contested,
// recovering, truncated, stale, lossy, waiting and following.
func (r *Rank) State() State {
	switch {
	case r.gone:
		return Departed
	case r.wire.broken:
		return Away
	case r.rivals.contested:
		return Contested
	case r.recovers():
		return Recovering
	case r.lack == room:
		return Truncated
	case r.stale():
		return Stale
	case r.lack != nothing:
		return Lossy
	case len(r.held) > 0:
		return Waiting
	case r.heard:
		return Following
	}
	return Unknown
}

// Status is a rank's state for those who look at it.
type Status struct {
	State       State
	Incarnation uint64
	LastID      uint64 // of the last event handed to the index
	Held        int    // messages held back
	// Incomplete says that what the index has is not known to be what the rank held
	// after that event.
	Incomplete bool
	// Stale says that something is missing that is not known, and may be to be had: what
	// the index has may be no longer there.
	Stale   bool
	Awaited bool      // it recovers for the first time: nothing of it is known
	AskNext time.Time // no recovery begins before; zero: at once
	Why     error     // of what is not as it should be; nil: nothing
}

// Status returns the rank's.
func (r *Rank) Status() Status {
	st := r.State()
	s := Status{State: st, Incarnation: r.incarnation, LastID: r.last, Held: r.Held(), AskNext: r.retry.Next(), Why: r.why,
		Stale:      !r.gone && r.stale(),
		Awaited:    st == Recovering && r.rec.cause == Discovery,
		Incomplete: !r.gone && (r.recovers() || r.lack != nothing || r.stale())}
	switch {
	case r.gone:
		s.Why = errLeft
	case r.rivals.contested:
		s.Why = errContested
	case r.lack == room:
		s.Why = errRefused
	case r.lack == dump:
	case r.claim.overdue:
		s.Why = errBehind
	case len(r.others.list) > 0:
		s.Why = errWhichRun
	case r.lack == partial:
		s.Why = cmp.Or(r.wire.lost, errPartial)
	case r.lack == lossy:
		s.Why = errLossy
	case !s.Incomplete && r.spoilt == not:
		s.Why = nil
	}
	return s
}

// stale reports whether something is missing that may be to be had.
func (r *Rank) stale() bool {
	return r.lack == dump || r.spoilt == doubtful || r.claim.overdue || len(r.others.list) > 0
}

// Held returns how many messages are held back.
func (r *Rank) Held() int { return len(r.held) + len(r.others.list) }

// Incarnation returns the run of the engine that is followed; 0: none is known.
func (r *Rank) Incarnation() uint64 { return r.incarnation }

// next returns the id that continues the stream. Streams begin at 1, or at 0:
// then 0 is below next and taken as the beginning all the same.
func (r *Rank) next() uint64 {
	if !r.known {
		return 1
	}
	return r.last + 1
}

// has reports whether the event came before.
func (r *Rank) has(id uint64) bool { return r.known && id <= r.last }

// follows reports whether an event with the id need not wait for others. After
// the largest id there is no next: everything is a duplicate then.
func (r *Rank) follows(id uint64) bool { return r.has(id) || id <= r.next() }

// restarts reports whether, on a wire without incarnations, the id begins a new
// one: it falls back to 0 or 1. After one single event, a second one with the
// same id may be a copy; beginning again is right in both cases.
func (r *Rank) restarts(id uint64) bool {
	return r.incarnation == 0 && r.known && id <= 1 && (id < r.last || id == r.last && id == r.first)
}

// begins is restarts, also of a rank of which only the end of a run is known, which
// is held back.
func (r *Rank) begins(id uint64) bool {
	return r.restarts(id) || r.incarnation == 0 && !r.known && id <= 1 && len(r.held) > 0
}

// Era returns how often the index began anew with the rank: what it says of
// events that it was given before is of no account.
func (r *Rank) Era() uint64 { return r.era }

// take notes that the event is handed to the index, or is void.
func (r *Rank) take(id uint64) {
	if !r.known {
		r.known, r.first = true, id
	}
	r.last = id
}

// begin begins an incarnation: the rank holds nothing in it yet.
func (r *Rank) begin(incarnation uint64) {
	if r.incarnation != 0 && r.incarnation != incarnation {
		r.end(r.incarnation)
	}
	r.heard, r.incarnation, r.known, r.first, r.last, r.ahead = true, incarnation, false, 0, 0, inStep
	r.overflow, r.lacks, r.counted = 0, 0, 0
	r.lack, r.claim = nothing, claim{}
}

// end remembers the incarnation as ended.
func (r *Rank) end(incarnation uint64) {
	if !slices.Contains(r.ended, incarnation) {
		r.ended = append(slices.Clone(r.ended[max(0, len(r.ended)+1-maxEnded):]), incarnation)
	}
}

// adopt makes the incarnation of a message the rank's. A new one ends everything
// that the old one held; a message of one that has ended is refused with false.
func (r *Rank) adopt(s *Step, incarnation uint64, of *Message) bool {
	if !r.hears(s, incarnation, of) {
		return false
	}
	ended := slices.Contains(r.ended, incarnation)
	switch {
	case r.heard && incarnation == r.incarnation:
		if r.claim.spoke(incarnation); !r.claim.overdue {
			r.ahead = inStep
			r.over(s) // they spoke before
		}
		return true
	case ended || r.ahead == sure:
		// Mostly it is late, or older than what the publisher said. But it may have begun
		// anew once more; and who reads a stream once more while nobody answers takes up old
		// incarnations, and the present one as ended with them: the publisher is asked, now
		// and then, which it is.
		r.which(s)
		return false
	}
	older, said := r.ahead == unsure, r.incarnation // than what the publisher said, perhaps
	if r.claim.overdue {
		said = r.claim.incarnation
	}
	if r.restart(s, incarnation, of); !older || incarnation == said {
		return true
	}
	r.lose(s, errWhichRun)
	if s.Source == Publisher { // until that run comes, or the publisher tells: whatever is cleared
		r.ahead, r.claim = unsure, claim{incarnation: said, since: s.Now, overdue: true}
	}
	return true
}

// restart begins an incarnation, which ends everything that was followed before.
// On a wire without any, what came after the message that tells of it stays held.
func (r *Rank) restart(s *Step, incarnation uint64, of *Message) {
	fresh := !r.heard || incarnation == 0 && !r.known
	r.cancel(s)
	r.begin(incarnation)
	r.discard(s, EndedRun, func(m *Message) bool { return incarnation != 0 || m.Live || m.order <= of.order })
	if !fresh {
		s.add(Effect{Kind: Restart})
		r.empty(s, of.Ref)
	}
}

// empty has the index hold nothing of the rank.
func (r *Rank) empty(s *Step, of any) {
	r.era++
	s.add(Effect{Kind: Clear, Ref: of, Era: r.era})
}

// lose notes that what the rank holds is no longer known: of an engine, by nobody.
func (r *Rank) lose(s *Step, why error) {
	if r.why = why; s.Source.forgets() {
		r.wire.lost, r.wire.given = why, false
		r.lack = max(r.lack, partial)
	} else {
		r.lack = max(r.lack, dump)
	}
}

// says notes whether the publisher lacks something for good, by its own word.
func (r *Rank) says(lossyNow bool) {
	switch {
	case r.lack > lossy:
	case lossyNow:
		r.lack = lossy
	default:
		r.lack = nothing
	}
}

var (
	errLossy    = errors.New("its publisher lacks events that nobody has any more")
	errParent   = errors.New("the parent of a stored block is unknown")
	errRefused  = errors.New("the index has no room for its blocks")
	errPartial  = errors.New("its publisher does not know what it held before")
	errUnplaced = errors.New("nobody knows the place of some of its blocks")
	errVoid     = errors.New("the position in its stream means nothing any more")
	errLeft     = errors.New("its worker left")
	errBack     = errors.New("it had left: what it held before is not known")
	errWhichRun = errors.New("which run of its engine is the present one is not known")
	errBehind   = errors.New("its stream lacks what its publisher has sent")
	errJoins    = errors.New("its wire has not come to where its engine's snapshot ends")
	errResumed  = errors.New("it was incomplete when the snapshot was taken")
)

// missing is a run of events that are; it is put into words only for who looks.
type missing struct{ from, to uint64 }

func (m missing) Error() string { return fmt.Sprintf("events %d to %d are missing", m.from, m.to) }

// absent is missing, of an engine in its own numbers.
func (s *Step) absent(from, to uint64) error {
	if s.Source.forgets() {
		return batches{from - 1, to - 1}
	}
	return missing{from, to}
}

type batches missing

func (b batches) Error() string { return fmt.Sprintf("batches %d to %d are missing", b.from, b.to) }
