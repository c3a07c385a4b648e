package ingest

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// rank is one rank with what its effects reach. Its partition owns it, but for the
// notes and stat.
type rank struct {
	id       RankID
	extra    bool // its worker is registered, and not with it
	follow   follow.Rank
	ticks    bool          // it is among those that the partition looks at now and then
	recovery *rankRecovery // that is under way; nil: none is
	offered  *dump         // for the effect Commit
	counts   Counts
	heard    time.Time // last

	era   uint64       // as others see it
	notes atomic.Int32 // of the index, that the partition has not read

	stat struct { // guarded by its mutex
		sync.Mutex
		RankStatus
		era uint64 // rank.era
	}
}

// Counts is what was counted of a rank's stream.
type Counts struct {
	Events                   uint64 // handed to the index
	Stored, Removed, Cleared uint64 // the same by kind
	Gaps                     uint64 // holes in the ids
	Missed                   uint64 // events in those holes
	Duplicates               uint64 // events ignored because they came before
	Restarts                 uint64 // new incarnations after the first
	Malformed                uint64 // messages of the worker skipped, counted on every rank of it
	Recoveries               uint64 // that ended well
	// RecoveriesFailed counts those that did not: nobody answered, mostly. Those
	// in vain were answered, but with nothing that was missing.
	RecoveriesFailed, RecoveriesInVain uint64
	Dumps                              uint64 // times that a dump replaced the rank's state
}

// RankStatus describes one publisher stream.
type RankStatus struct {
	RankID
	follow.Status
	Counts
	UnknownParents uint64       // blocks not stored because their parent is unknown
	Blocks         core.Outcome // what the index did with the events' blocks
	Requests       uint64       // that recoveries sent to the publisher
	FirstSeen      time.Time
	LastSeen       time.Time // last message or heartbeat
	LastEvent      time.Time // last time that events were applied
}

// compare orders by space, worker and rank.
func (s *RankStatus) compare(o *RankStatus) int {
	return cmp.Or(
		cmp.Compare(s.Space.Model, o.Space.Model),
		cmp.Compare(s.Space.BlockSize, o.Space.BlockSize),
		cmp.Compare(s.Space.Group, o.Space.Group),
		cmp.Compare(s.Worker, o.Worker),
		cmp.Compare(s.DPRank, o.DPRank))
}

// Is reports whether the rank is in the state.
func (s *RankStatus) Is(state follow.State) bool { return s.State == state }

// LastError says what is not as it should be; "" if nothing is.
func (s *RankStatus) LastError() string {
	if s.Why == nil {
		return ""
	}
	return obs.Plain(s.Why).Error()
}

func (r *rank) status() RankStatus {
	r.stat.Lock()
	defer r.stat.Unlock()
	s := r.stat.RankStatus
	if !s.Is(follow.Departed) && r.notes.Load() > 0 {
		s.Incomplete = true // the partition has not heard of it yet
	}
	return s
}

// asked notes that its publisher was. It is called by its recovery.
func (r *rank) asked() {
	r.stat.Lock()
	defer r.stat.Unlock()
	r.stat.Requests++
}

// show has others see the rank as it is now.
func (r *rank) show() {
	st := r.follow.Status()
	r.stat.Lock()
	defer r.stat.Unlock()
	r.stat.Status, r.stat.Counts, r.stat.LastSeen = st, r.counts, r.heard
}

// setEra has others see the era, before the index is given something of it.
func (r *rank) setEra(era uint64) {
	if r.era != era {
		r.stat.Lock()
		defer r.stat.Unlock()
		r.era, r.stat.era = era, era
	}
}

// applied notes what the index did with a part of an era. It is called by the
// index. It reports whether the era is the present one.
func (r *rank) applied(out core.Outcome, era uint64, now time.Time) (counts bool) {
	r.stat.Lock()
	defer r.stat.Unlock()
	r.stat.LastEvent = now
	r.stat.Blocks.Add(out)
	r.stat.UnknownParents += uint64(out.UnknownParent)
	return era == r.stat.era
}

// count counts events that are handed to the index.
func (c *Counts) count(evs []event.Event) (kinds [event.Cleared + 1]int) {
	for i := range evs {
		kinds[evs[i].Kind]++
	}
	c.Events += uint64(len(evs))
	c.Stored += uint64(kinds[event.Stored])
	c.Removed += uint64(kinds[event.Removed])
	c.Cleared += uint64(kinds[event.Cleared])
	return kinds
}
