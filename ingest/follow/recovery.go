package follow

import (
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// Cause says why a rank's state is not what its worker holds.
type Cause uint8

// The causes for a recovery.
const (
	Hole          Cause = iota // events are missing
	UnknownParent              // a stored block's parent is not known
	Returned                   // the worker had left and is back: a full dump is needed
	Discovery                  // a worker without a stream is heard of for the first time
	Void                       // the position in the stream means nothing any more
	Room                       // the memory budget refused blocks and has room again
	Retry                      // a recovery before did not suffice
	Unusable                   // a message that may have been the rank's cannot be used
	Behind                     // the publisher has sent what the stream does not bring
	OtherRun                   // which run of the engine is the present one
	Contest                    // two processes published as the rank, and one is left
	Connected                  // what an engine has sent since the wire was there last
	Silence                    // whether it has sent what the wire does not bring
	Fell                       // whether an engine whose numbers fell is another process
	Contradicted               // the engine finds other blocks than the index has
	NumCauses
)

// String returns the cause's name in metrics and logs.
func (c Cause) String() string {
	return [...]string{"gap", "unknown_parent", "departed", "discovery", "void", "room", "retry", "unusable", "behind", "other_run", "two_processes",
		"connected", "silence", "fell", "contradicted", "unknown"}[min(c, NumCauses)]
}

// Question is what a recovery asks the publisher first.
type Question struct {
	From        uint64 // the first event to ask for; 0: a dump; of an engine, the last known one
	Incarnation uint64 // of the rank, if Known
	Known       bool   // the rank has a state
	NoDump      time.Time
	NotBefore   time.Time
}

// recovery is the one under way; its number is 0 if there is none.
type recovery struct {
	number uint64
	cause  Cause
	began  time.Time
	was    uint64 // the rank's incarnation then
	had    uint64 // its last event then
	need   uint64 // event up to which the rank was known to lack something then; 0: none
	got    bool   // something came that the rank did not have
	dumped bool   // a dump did
	answer bool   // of an engine: a batch of the present answer came
}

// Recovery returns the number of the recovery that is under way; 0: there is
// none. What others post is not to be brought in.
func (r *Rank) Recovery() uint64 { return r.rec.number }

// recovers reports whether something is known to be missing, or may be. Of a wire
// that is silent nothing is.
func (r *Rank) recovers() bool {
	return r.rec.number != 0 && r.rec.cause != Silence || !r.wire.joins.IsZero()
}

// mayAsk reports whether asking for the rank is possible and allowed now.
func (r *Rank) mayAsk(s *Step, cause Cause) bool {
	return (s.Source == Publisher || s.Source == Replay || s.Snapshots) && r.lack != room && !r.rivals.contested && r.isTime(s, cause)
}

// isTime reports whether a recovery was not in vain, or long enough ago.
func (r *Rank) isTime(s *Step, cause Cause) bool {
	return r.retry.Ready(s.Now) && (!r.needsDump(s, cause) || r.dumps.Ready(s.Now))
}

// needsDump reports whether events alone cannot bring the rank up to date.
func (r *Rank) needsDump(s *Step, cause Cause) bool {
	if s.Source.forgets() {
		return false // what it has it is asked for besides
	}
	return r.lack >= dump || !r.heard && cause == Behind || !slices.Contains([]Cause{Hole, Retry, Unusable, Behind, OtherRun}, cause)
}

// ask begins the rank's recovery, if there is none under way, and reports whether
// there is one now. What cannot be recovered now is tried again at heartbeats.
func (r *Rank) ask(s *Step, cause Cause) bool {
	if r.gone {
		return false // nothing is wanted of it before it is back
	}
	s.add(Effect{Kind: Want, Cause: cause})
	if r.rec.number != 0 || !r.mayAsk(s, cause) {
		return r.rec.number != 0
	}
	need := max(r.lacks, r.overflow)
	if len(r.held) > 0 {
		need = max(need, r.held[0].from()-1)
	}
	q := r.question(s, cause)
	r.asks++
	r.rec = recovery{number: r.asks, cause: cause, began: s.Now, was: r.incarnation, had: r.last, need: need}
	r.overflow, r.lacks, r.spoilt = 0, 0, not
	s.add(Effect{Kind: Ask, Cause: cause, Number: r.asks, Ask: q})
	return true
}

// question returns what is asked for.
func (r *Rank) question(s *Step, cause Cause) Question {
	q := Question{From: r.next(), Incarnation: r.incarnation, Known: r.known, NoDump: r.dumps.Next()}
	switch {
	case r.needsDump(s, cause):
		q.From = 0
	case cause == Fell:
		q.NotBefore = r.wire.verify.Next()
	}
	if s.Source.forgets() && r.known {
		q.From = r.last
	}
	return q
}

// awaits reports whether the recovery that is under way brings what is not there
// yet, or tells what is.
func (r *Rank) awaits() bool {
	return r.rec.number != 0 && (r.Held() > 0 || r.overflow > r.last || r.rec.need > r.last)
}

// cancel ends the recovery that is under way, and what waits for its answer.
func (r *Rank) cancel(s *Step) {
	r.over(s)
	r.withdraw(s)
}

// withdraw ends the recovery that is under way.
func (r *Rank) withdraw(s *Step) {
	if r.rec.number != 0 {
		r.rec = recovery{}
		s.add(Effect{Kind: Cancel})
	}
}

// putOffDumps puts the rank's next dump off.
func (r *Rank) putOffDumps(s *Step) {
	r.dumps.Later(s.Now, s.Now, s.DumpMin, s.DumpMax, r.seed)
}

// putOff puts the rank's next recovery off, after one that began at began.
func (r *Rank) putOff(s *Step, began time.Time, least time.Duration) {
	r.retry.Later(began, s.Now, least, max(least, s.RecoverMax), r.seed)
}

// NoDump returns the time before which no dump of the rank is to be taken.
func (r *Rank) NoDump() time.Time { return r.dumps.Next() }

// Recovered takes a page of the events that the recovery asked for; they follow
// each other.
func (r *Rank) Recovered(s *Step, events []event.Event, ref any) {
	r.rec.got = r.rec.got || !r.has(events[len(events)-1].ID)
	r.apply(s, Message{Incarnation: r.incarnation, Events: events, Ref: ref}, false)
	r.drain(s)
}

// Dump is what a recovery got in the place of events.
type Dump struct {
	Incarnation uint64
	Last        uint64 // id of the last event that is in it
	Lossy       bool   // of a stream that lacks something for good
	Partial     bool   // its publisher does not know what the rank held before it
}

// Dump takes a dump, with the effect Commit: of whichever run of the engine it is, that
// is the present one, by the publisher's own word.
func (r *Rank) Dump(s *Step, d Dump) {
	if !r.heard || r.incarnation != d.Incarnation {
		r.succeed(s, d.Incarnation)
	}
	s.add(Effect{Kind: Commit})
	r.known, r.first, r.last = true, 0, d.Last
	r.lack, r.claim.overdue = nothing, false
	r.claim.spoke(d.Incarnation)
	switch {
	case d.Partial:
		r.lack = partial
	case d.Lossy:
		r.lack = lossy
	}
	r.era++
	r.rec.got, r.rec.dumped = true, true
	r.putOffDumps(s)
	r.claim.reached(r)
	r.drain(s)
}

// succeed makes the incarnation the rank's, as adopt does, on the publisher's own
// word: it has not ended, whatever was thought.
func (r *Rank) succeed(s *Step, incarnation uint64) {
	fresh := !r.heard
	r.ended = slices.DeleteFunc(slices.Clone(r.ended), func(e uint64) bool { return e == incarnation })
	r.begin(incarnation)
	r.discard(s, EndedRun, all)
	r.ahead = sure
	if !fresh {
		s.add(Effect{Kind: Restart})
	}
}

// Result is how a recovery ended.
type Result struct {
	Err      error // nil: well
	Refused  bool  // the index had no room for some of the dump
	Unplaced bool  // nobody knows the place of some blocks of a lossy stream
}

// Ended takes the end of the recovery that is under way.
func (r *Rank) Ended(s *Step, res Result) (vain bool) {
	vain = r.ends(s, res)
	r.decide(s)
	return vain
}

func (r *Rank) ends(s *Step, res Result) (vain bool) {
	v := r.rec
	r.rec = recovery{}
	again := len(r.held) > 0 || r.overflow > r.last && r.known
	reached := r.last >= v.need || r.incarnation != v.was
	vain = res.Err != nil || !reached || !v.got && v.need == 0 && s.Source == Publisher
	switch {
	case !vain:
		r.retry.Progress()
	case res.Err == nil || s.Source == Publisher:
		r.putOff(s, v.began, 4*s.RecoverMin) // it was tried several times already
	default:
		r.putOff(s, v.began, s.RecoverMax)
	}
	if s.Source.forgets() {
		if res.Refused || res.Unplaced {
			why := errUnplaced
			if res.Refused {
				why = errRefused
			}
			r.lose(s, why)
			r.wire.given = true // the engine has no more
		}
		r.judge(s, res.Err == nil)
		return vain
	}
	switch {
	case res.Err != nil:
		switch {
		case v.cause == Contradicted && reached && !again && !v.dumped && r.lack < dump: // as before
		case !reached || again || v.dumped || r.needsDump(s, v.cause) || v.cause == Retry:
			r.lose(s, res.Err)
		case v.cause == Unusable && r.last == v.had && r.incarnation == v.was:
			r.spoilt, r.why = doubtful, res.Err // as before
		}
		if !v.got {
			r.ahead = min(r.ahead, unsure)
		}
		if len(r.held) > 0 && (r.spoilt != not || r.held[0].Live) { // else it may be late, see Tick
			r.letGo(s)
		}
		return vain
	case res.Refused:
		r.refuse(s)
		return vain
	case res.Unplaced:
		r.lose(s, errUnplaced) // perhaps another worker that knows the place comes yet
	}
	if again && vain {
		r.lose(s, missing{r.next(), v.need}) // the publisher does not have what it sent
		r.letGo(s)
		again = false
	}
	if r.lack < dump && !again {
		return vain
	}
	// Not all was waited for, or more was missed meanwhile.
	if !again && (res.Unplaced || vain) {
		return vain
	}
	if !r.ask(s, Retry) { // not now
		r.lose(s, missing{r.next(), v.need})
		r.letGo(s)
	}
	return vain
}

// Noted takes what the index noted of blocks that it was given: of some the
// parent is unknown, or it has no room.
func (r *Rank) Noted(s *Step, unknownParent, refused bool) {
	if r.gone {
		return
	}
	switch {
	case refused && s.Source.forgets():
		r.lose(s, errRefused)
	case refused:
		r.refuse(s)
	}
	if !unknownParent || r.lack == lossy || r.lack == partial || r.lack == room {
		return // of a lossy stream the publisher has no more
	}
	if r.lose(s, errParent); s.Source.forgets() {
		return
	}
	if r.rec.number == 0 && r.isTime(s, UnknownParent) && !r.ask(s, UnknownParent) {
		r.putOffDumps(s) // there is nobody to ask
	}
}

// refuse notes that blocks were refused. Refusing must not cause requests: the
// rank is brought up to date when there is room again.
func (r *Rank) refuse(s *Step) {
	r.cancel(s)
	r.lack = room
	r.letGo(s)
}

// Room says that the index has room again. It reports whether the rank waited
// for that.
func (r *Rank) Room(s *Step) bool {
	if r.lack != room || r.gone || !r.isTime(s, Room) {
		return false
	}
	r.lack, r.why = dump, errRefused
	r.ask(s, Room)
	return true
}

// Voided says that the position in the stream means nothing any more, whose last
// message is at last. What of the rank was read may not be in it, or come again.
func (r *Rank) Voided(s *Step, last uint64) {
	r.seq, r.rivals.seq = 0, min(r.rivals.seq, last) // what is read once more is in no order with that
	for i := range r.others.list {
		r.others.list[i].Seq = 0
	}
	if r.gone {
		r.left.Seq = min(r.left.Seq, last)        // what it has is from before the rank left, the rest is not
		r.leftLooks = min(r.leftLooks, s.Looks+2) // another stream was looked at as often as that
		return
	}
	r.lose(s, errVoid)
	switch {
	case s.Source == Mute && r.heard:
		r.ahead = unsure
	case r.heard:
		r.ahead = sure
	}
	r.withdraw(s) // what was asked before does not say who is there since
	r.ask(s, Void)
}

// Contradict asks for all that the rank holds, as its engine finds other blocks than the index has
// although nothing is known to be missing. What there is stays as good as it was meanwhile, and
// where there is no answer.
func (r *Rank) Contradict(s *Step) {
	if r.known && r.rec.number == 0 && r.lack == nothing && len(r.held) == 0 && s.Source == Publisher && r.mayAsk(s, Contradicted) {
		r.ask(s, Contradicted)
	}
}

// Expect asks for the state of a rank of which nothing is known.
func (r *Rank) Expect(s *Step) {
	if !r.heard && !r.known && !r.gone {
		r.ask(s, Discovery)
	}
}
