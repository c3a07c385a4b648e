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

// rank follows one (worker, dp_rank) stream. Its lane owns it, but for stat.
type rank struct {
	id RankID

	adopted     bool // the incarnation is that of a message
	incarnation uint64
	known       bool     // an event was seen, or a position resumed
	begun       uint64   // id of the first event of the incarnation
	last        uint64   // id of the last event handed to the index
	ended       []uint64 // incarnations that are over, oldest first

	leftAt time.Time // when its worker last left; zero: it did not
	void   bool      // it left and nothing was heard since

	held      []*part // by first id, each beyond last+1
	heldBytes int

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
	// Incomplete says that something is missing since the last full clear:
	// the index may show less or more than the rank holds.
	Incomplete bool
	Departed   bool // its worker left, and nothing was heard of it since
	LastError  string
	LastSeen   time.Time // last message or heartbeat
	LastEvent  time.Time // last time that events were applied
}

// resume takes the rank up where a snapshot left it.
func (r *rank) resume(pos RankPosition) {
	r.adopted, r.incarnation = true, pos.Incarnation
	r.known, r.last = true, pos.LastID
	r.note(func(s *RankStatus) { s.Incarnation, s.LastID = pos.Incarnation, pos.LastID })
}

func newRank(id RankID) *rank {
	r := &rank{id: id}
	r.stat.RankID = id
	return r
}

// next returns the id that continues the stream. Streams begin at 1, or at 0:
// then 0 is below next and taken as the beginning all the same.
func (r *rank) next() uint64 {
	if !r.known {
		return 1
	}
	return r.last + 1
}

// restarts reports whether, on a wire without incarnations, the id begins a
// new one: it falls back to 0 or 1. After one single event, a second one with
// the same id may be a copy; beginning again is right in both cases.
func (r *rank) restarts(id uint64) bool {
	return r.incarnation == 0 && r.known && id <= 1 && (id < r.last || id == r.last && id == r.begun)
}

// isDuplicate reports whether the event came before.
func (r *rank) isDuplicate(id uint64) bool { return r.known && id <= r.last }

// follows reports whether an event with the id need not wait for others. After
// the largest id there is no next: everything is a duplicate then.
func (r *rank) follows(id uint64) bool { return r.isDuplicate(id) || id <= r.next() }

// reset begins an incarnation. It reports false for one that has ended.
func (r *rank) reset(incarnation uint64) bool {
	if slices.Contains(r.ended, incarnation) {
		return false
	}
	if r.adopted && r.incarnation != 0 {
		if len(r.ended) == maxEnded {
			r.ended = r.ended[1:]
		}
		r.ended = append(r.ended, r.incarnation)
	}
	r.adopted = true
	r.incarnation, r.known, r.begun, r.last = incarnation, false, 0, 0
	return true
}

// take notes that the event is handed to the index.
func (r *rank) take(id uint64) {
	if !r.known {
		r.known, r.begun = true, id
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

// applied notes what the index did with a part. It is called by the index.
func (r *rank) applied(out core.Outcome, now time.Time) {
	r.stat.Lock()
	defer r.stat.Unlock()
	r.stat.LastEvent = now
	if out.UnknownParent > 0 {
		r.stat.UnknownParents += uint64(out.UnknownParent)
		r.stat.Incomplete = true
		r.stat.LastError = "the parent of a stored block is unknown"
	}
}
