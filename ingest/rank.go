package ingest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/core"
)

// maxEnded bounds the incarnations of a rank that are remembered as ended. A
// worker would have to restart more often within the stream's retention for a
// message of a forgotten one to be taken for a new incarnation.
const maxEnded = 64

// rank follows one (worker, dp_rank) stream. Its partition owns it, but for stat.
type rank struct {
	id RankID

	hasIncarnation bool // the incarnation is that of a message
	incarnation    uint64
	hasPosition    bool     // an event was seen, or a position resumed
	begun          uint64   // id of the first event of the incarnation
	last           uint64   // id of the last event handed to the index
	ended          []uint64 // incarnations that are over, oldest first
	era            uint64   // counts the times that the index began anew with the rank

	seq      uint64    // of the last message of the stream that was not void
	left     Departure // the last one that was carried out; zero At: none
	departed bool      // it left and is not back: what the index has of it is nothing

	held      []*part // by first id, each beyond last+1
	heldBytes int

	recoveryState

	stat struct { // guarded by its mutex
		sync.Mutex
		RankStatus
	}
}

// RankStatus describes one publisher stream.
type RankStatus struct {
	RankID
	Incarnation    uint64
	LastID         uint64 // of the last event handed to the index
	Events         uint64 // handed to the index
	Gaps           uint64 // holes in the ids
	Missed         uint64 // events in those holes
	Duplicates     uint64 // events ignored because they came before
	UnknownParents uint64 // blocks not stored because their parent is unknown
	Restarts       uint64 // new incarnations after the first
	Malformed      uint64 // messages of the worker skipped, counted on every rank of it
	Held           int    // messages held back for a missing predecessor
	Stored         uint64 // events handed to the index, by kind
	Removed        uint64
	Cleared        uint64
	Blocks         core.Outcome // what the index did with them
	Recovering     bool
	Awaited        bool   // it recovers for the first time: nothing of it is known
	Recoveries     uint64 // that ended well
	// RecoveriesFailed counts those that did not: nobody answered, mostly. Those
	// in vain were answered, but with nothing that was missing.
	RecoveriesFailed, RecoveriesInVain uint64
	Requests                           uint64    // that recoveries sent to the publisher
	AskNext                            time.Time // no recovery begins before; zero: at once
	Dumps                              uint64    // times that a dump replaced the rank's state
	// Truncated says that the memory budget refused blocks of the rank.
	Truncated bool
	// Incomplete says that something is missing since the last full clear:
	// the index may show less or more than the rank holds.
	Incomplete bool
	Departed   bool // its worker left, and nothing was heard of it since
	LastError  string
	FirstSeen  time.Time
	LastSeen   time.Time // last message or heartbeat
	LastEvent  time.Time // last time that events were applied

	era         uint64    // rank.era
	ended       []uint64  // rank.ended
	unconfirmed bool      // recoveryState.unconfirmed
	left        time.Time // rank.left.At
}

// resume takes the rank up where a snapshot left it.
func (r *rank) resume(pos RankPosition) {
	r.hasIncarnation, r.incarnation = true, pos.Incarnation
	r.hasPosition, r.last, r.needsDump = true, pos.LastID, pos.Incomplete
	if r.begun = 0; r.last == 1 {
		r.begun = 1 // see positions
	}
	r.ended = slices.Clone(pos.Ended[max(0, len(pos.Ended)-maxEnded):])
	r.setUnconfirmed(pos.Unconfirmed)
	r.left, r.departed = Departure{At: pos.Left}, pos.Departed
	r.note(func(s *RankStatus) {
		s.ended, s.left, s.Departed = r.ended, pos.Left, pos.Departed
		s.Incarnation, s.LastID, s.Incomplete = pos.Incarnation, pos.LastID, pos.Incomplete
	})
}

func newRank(id RankID) *rank {
	r := &rank{id: id}
	r.stat.RankID, r.stat.FirstSeen = id, time.Now()
	return r
}

// next returns the id that continues the stream. Streams begin at 1, or at 0:
// then 0 is below next and taken as the beginning all the same.
func (r *rank) next() uint64 {
	if !r.hasPosition {
		return 1
	}
	return r.last + 1
}

// restarts reports whether, on a wire without incarnations, the id begins a
// new one: it falls back to 0 or 1. After one single event, a second one with
// the same id may be a copy; beginning again is right in both cases.
func (r *rank) restarts(id uint64) bool {
	return r.incarnation == 0 && r.hasPosition && id <= 1 && (id < r.last || id == r.last && id == r.begun)
}

// begins is restarts, also of a rank of which only the end of a run is known, which
// is held back.
func (r *rank) begins(id uint64) bool {
	return r.restarts(id) || r.incarnation == 0 && !r.hasPosition && id <= 1 && len(r.held) > 0
}

// isDuplicate reports whether the event came before.
func (r *rank) isDuplicate(id uint64) bool { return r.hasPosition && id <= r.last }

// follows reports whether an event with the id need not wait for others. After
// the largest id there is no next: everything is a duplicate then.
func (r *rank) follows(id uint64) bool { return r.isDuplicate(id) || id <= r.next() }

// reset begins an incarnation. It reports false for one that has ended.
func (r *rank) reset(incarnation uint64) bool {
	if slices.Contains(r.ended, incarnation) {
		return false
	}
	if r.hasIncarnation && r.incarnation != 0 {
		// A new slice: the status has the old one.
		r.ended = append(slices.Clone(r.ended[max(0, len(r.ended)+1-maxEnded):]), r.incarnation)
	}
	r.hasIncarnation = true
	r.incarnation, r.hasPosition, r.begun, r.last = incarnation, false, 0, 0
	r.needsDump, r.publisherIncomplete, r.partial, r.overflow, r.missingTo, r.missedTo, r.unconfirmed = false, false, false, 0, 0, 0, false
	r.note(func(s *RankStatus) { s.Incarnation, s.LastID, s.ended, s.unconfirmed = incarnation, 0, r.ended, false })
	return true
}

// advance notes that the event is handed to the index.
func (r *rank) advance(id uint64) {
	if !r.hasPosition {
		r.hasPosition, r.begun = true, id
	}
	r.last = id
}

// hold keeps the part until its predecessor comes. It reports false for a copy
// of a part that is held already.
func (r *rank) hold(p *part) bool {
	at, found := slices.BinarySearchFunc(r.held, p.first(), func(q *part, id uint64) int { return cmp.Compare(q.first(), id) })
	if found && len(r.held[at].batch.Events) >= len(p.batch.Events) {
		return false
	}
	if at == 0 && len(r.held) > 0 {
		p.held = r.held[0].held // those behind it have waited since
	}
	r.held = slices.Insert(r.held, at, p)
	r.heldBytes += p.bytes()
	return true
}

// pop takes the first held part out.
func (r *rank) pop() *part {
	p := r.held[0]
	r.held[0] = nil
	r.held = r.held[1:]
	r.heldBytes -= p.bytes()
	return p
}

// note changes the status.
func (r *rank) note(f func(s *RankStatus)) {
	r.stat.Lock()
	defer r.stat.Unlock()
	f(&r.stat.RankStatus)
}

func (r *rank) status() RankStatus {
	r.stat.Lock()
	defer r.stat.Unlock()
	return r.stat.RankStatus
}

// anew notes that what the index has of the rank does not go back to what it was
// given before: what it says of that is of no account any more.
func (r *rank) anew() {
	r.era++
	r.note(func(s *RankStatus) { s.era = r.era })
}

// applied notes what the index did with a part of an era. It is called by the
// index. It reports whether the era is the present one.
func (r *rank) applied(out core.Outcome, era uint64, now time.Time) (counts bool) {
	r.stat.Lock()
	defer r.stat.Unlock()
	r.stat.LastEvent = now
	r.stat.Blocks.Add(out)
	r.stat.UnknownParents += uint64(out.UnknownParent)
	if counts = era == r.stat.era; counts && out.UnknownParent > 0 {
		r.stat.Incomplete = true
		r.stat.LastError = "the parent of a stored block is unknown"
	}
	return counts
}
