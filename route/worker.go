package route

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// Role says which part of requests a worker does.
type Role uint8

// The roles.
const (
	Aggregated Role = iota // prefill and decode
	Prefill                // prefill only: it hands what it computed to a decode worker
	Decode                 // decode, and prefill too where no prefill worker can
)

// Worker describes an engine process.
type Worker struct {
	ID uint64
	// FirstRank and Ranks are its data-parallel ranks: Ranks of them, at least
	// one.
	FirstRank, Ranks uint32
	Role             Role
	// CPU is set for a worker without accelerator; see device-aware-weighted.
	CPU bool
	// Pooled is set for a worker that reads from a pool which it shares with others: what is
	// in external storage earns Settings.PoolCredit there.
	Pooled bool
	// TotalBlocks is the cache of a rank in blocks, MaxBatchedTokens the most
	// tokens that a step of its engine takes; 0 where unknown.
	TotalBlocks, MaxBatchedTokens int
	// Peer is set for a worker whose engine fetches prefixes from others that have it set, and
	// gives them its own.
	Peer bool
	// Draining workers get no new requests, nor do those whose engine does not answer
	// or has no address to be reached at.
	Draining, Dead, Addressless bool
}

// absent returns why the worker gets no new requests, whatever they are.
func (w *Worker) absent() Reason {
	switch {
	case w.Addressless:
		return Addressless
	case w.Dead:
		return Dead
	case w.Draining:
		return Draining
	}
	return Eligible
}

// Report is a rank's load as its engine says.
type Report struct {
	ActiveBlocks  int // blocks in use
	PrefillTokens int // prompt tokens waiting or being computed
	// CacheUsage is the part of the cache in use, 0 to 1, for engines that say
	// only that.
	CacheUsage float64
}

// member is a worker's rank that may be chosen.
type member struct {
	shard.RankID
	slot   uint32
	worker *workerState
	others bool // another router takes it first; see assign
	shared bool // it is a rank of this router's, but another one's, too

	stale   bool         // the index does not know what it holds; see Router.SetStale
	belief  belief       // of what the index has
	pulls   pulls        // what came of it when others fetched
	held    int          // blocks, where shares say it; see Router.SetHeld
	indexed shard.Member // what the index calls it, if it held anything of a prompt

	report   Report
	reported time.Time

	prompt, found uint64 // tokens of requests whose engines said what they found, and that
}

// contested reports whether another router may take the rank at the moment in which this one does.
func (m *member) contested() bool { return m.others || m.shared }

type workerState struct {
	Worker
	health
	mark uint64 // the choice that names it; see Router.mark
	list uint8  // as allowed or excluded
}

// SetWorker adds the worker or changes what is known about it. Bookings on
// ranks that it still has stay.
func (r *Router) SetWorker(w Worker) error {
	w.Ranks = max(w.Ranks, 1)
	if w.Ranks > maxRanks || w.FirstRank > maxRanks {
		return fmt.Errorf("%w: worker %d has ranks from %d, %d of them, give less than %d", ErrSettings, w.ID, w.FirstRank, w.Ranks, maxRanks)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.workers[w.ID]
	if st == nil {
		st = &workerState{health: health{breaker: breaker.Breaker{Seed: w.ID}}}
		r.workers[w.ID], r.allProven = st, false
	}
	r.countPeer(st.Peer, -1)
	r.countPeer(w.Peer, 1)
	st.Worker, r.assigned, r.usual = w, false, r.usual[:0]
	r.members = slices.DeleteFunc(r.members, func(m *member) bool {
		gone := m.RankID.Worker == w.ID && (m.DPRank < w.FirstRank || m.DPRank-w.FirstRank >= w.Ranks)
		if gone {
			r.leave(m)
		}
		return gone
	})
	for i := range w.Ranks {
		r.join(st, shard.RankID{Worker: w.ID, DPRank: w.FirstRank + i})
	}
	slices.SortFunc(r.members, func(a, b *member) int { return cmp.Compare(a.slot, b.slot) })
	return nil
}

// maxRanks bounds a worker's ranks and their numbers.
const maxRanks = 1 << 16

// join makes the rank a member if it is none. The caller sorts members.
func (r *Router) join(w *workerState, id shard.RankID) {
	slot := r.table.Keep(id)
	if int(slot) < len(r.bySlot) && r.bySlot[slot] != nil {
		return
	}
	m := &member{RankID: id, slot: slot, worker: w}
	for int(slot) >= len(r.bySlot) {
		r.bySlot = append(r.bySlot, nil)
	}
	r.bySlot[slot] = m
	r.members = append(r.members, m)
	r.numbers = r.numbers[:0] // the index may know a rank that had no slot
}

// SetStale says of which ranks the index does not have what they hold, as far as that is
// known: their depths count for Settings.StaleCredit of what they are.
func (r *Router) SetStale(stale map[shard.RankID]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		m.stale = stale[m.RankID]
	}
}

// SetHeld says how many blocks each rank holds in all, where Config.Shares are asked.
func (r *Router) SetHeld(held map[shard.RankID]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.members {
		m.held = held[m.RankID]
	}
}

// discount leaves of a stale rank's depths the leading part: what was missed is removals,
// mostly, and engines let go of a prompt from its end.
func discount(depth *[event.NumTiers]uint32, part float64) {
	for t := range depth {
		depth[t] = uint32(float64(depth[t]) * part)
	}
}

// leave ends a member and this router's bookings there. Those of others end by these routers' word, as all do: who has not
// heard of it yet, or knows that the rank is there again, has some that go on.
func (r *Router) leave(m *member) {
	r.bySlot[m.slot] = nil
	r.numbers = r.numbers[:0]
	r.table.Drop(m.RankID, r.cfg.ID, r.dropped)
}

// dropped is called for each booking that ends without its request's word.
func (r *Router) dropped(k load.Key) {
	r.stats.Dropped++
	r.ended(k, math.MaxUint32, 0)
	r.record(load.Change{Kind: load.Freed, Key: k})
}

// RemoveWorker forgets the worker and ends this router's bookings there. It reports whether the worker was known.
// What Config.Index has of it is for who feeds that to take out; Config.Guesses forget it.
func (r *Router) RemoveWorker(id uint64) bool {
	if !r.removeWorker(id) {
		return false
	}
	if r.cfg.Guesses != nil {
		r.cfg.Guesses.RemoveWorker(id)
	}
	return true
}

func (r *Router) removeWorker(id uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.workers[id]
	if st == nil {
		return false
	}
	r.countPeer(st.Peer, -1)
	r.members = slices.DeleteFunc(r.members, func(m *member) bool {
		if m.RankID.Worker == id {
			r.leave(m)
			return true
		}
		return false
	})
	delete(r.workers, id)
	r.assigned, r.usual = false, r.usual[:0]
	return true
}

func (r *Router) countPeer(is bool, by int) {
	if is {
		r.peers += by
	}
}

// Drain makes the worker get no new requests, or get them again. The error
// wraps ErrUnknownWorker.
func (r *Router) Drain(id uint64, drain bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[id]
	if w == nil {
		return fmt.Errorf("draining worker %d: %w", id, ErrUnknownWorker)
	}
	w.Draining, r.usual = drain, r.usual[:0]
	return nil
}

// SetDead notes whether the worker's engine answers. The error wraps ErrUnknownWorker.
func (r *Router) SetDead(id uint64, dead bool) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.workers[id]
	if w == nil {
		return fmt.Errorf("worker %d: %w", id, ErrUnknownWorker)
	}
	w.Dead, r.usual = dead, r.usual[:0]
	return nil
}

// Workers returns the workers, sorted by id.
func (r *Router) Workers() []Worker {
	r.mu.Lock()
	defer r.mu.Unlock()
	var ws []Worker
	for _, w := range r.workers {
		ws = append(ws, w.Worker)
	}
	slices.SortFunc(ws, func(a, b Worker) int { return cmp.Compare(a.ID, b.ID) })
	return ws
}

// ReportLoad records what a rank's engine says about its load; it counts for
// Settings.ReportLifetime, beside what the router counts itself. The error
// wraps ErrUnknownWorker.
func (r *Router) ReportLoad(id shard.RankID, report Report) error {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.member(id)
	if m == nil {
		return fmt.Errorf("load of worker %d rank %d: %w", id.Worker, id.DPRank, ErrUnknownWorker)
	}
	m.report, m.reported = report, now
	return nil
}

// Thresholds returns the busy thresholds in force.
func (r *Router) Thresholds() Thresholds {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Thresholds{}.Merge(r.settings.Busy)
}

// SetThresholds changes those thresholds that change sets and returns all. The
// error wraps ErrSettings; then nothing is changed.
func (r *Router) SetThresholds(change Thresholds) (Thresholds, error) {
	if err := change.Check(); err != nil {
		return Thresholds{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.settings.Busy = r.settings.Busy.Merge(change)
	return Thresholds{}.Merge(r.settings.Busy), nil
}

// busy says whether a rank's load is beyond a threshold: what the router
// counts, or what the engine reported of late.
func (r *Router) busy(m *member, l *load.Load, now time.Time) Reason {
	blocks, tokens, usage := l.DecodeBlocks, l.PrefillTokens, 0.0
	if !m.reported.IsZero() && now.Sub(m.reported) <= r.settings.ReportLifetime {
		blocks = max(blocks, float64(m.report.ActiveBlocks))
		tokens = max(tokens, m.report.PrefillTokens)
		usage = m.report.CacheUsage
	}
	t, w := &r.settings.Busy, &m.worker.Worker
	switch {
	case t.DecodeFraction != nil && usage > *t.DecodeFraction,
		t.DecodeFraction != nil && w.TotalBlocks > 0 && blocks > *t.DecodeFraction*float64(w.TotalBlocks):
		return BusyDecodeBlocks
	case t.PrefillTokens != nil && tokens > *t.PrefillTokens,
		t.PrefillFraction != nil && w.MaxBatchedTokens > 0 && float64(tokens) > *t.PrefillFraction*float64(w.MaxBatchedTokens):
		return BusyPrefillTokens
	}
	return Eligible
}
