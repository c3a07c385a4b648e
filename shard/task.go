package shard

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/race"
)

// task is one entry of the queues of some shards, or all: a batch, a step of a
// replacement, a removal of ranks, or an inspection. What submit prepares is
// read-only afterwards; outs[i] belongs to shard i until it has finished.
type task struct {
	to      []*owner // whose queues it stands in
	reach   []bool   // scratch of Space.reach
	batch   *event.Batch
	members []*member    // the batch's, one an event, nil if unknown; or those to remove
	inspect func(*owner) // run by every owner
	restore *Replacement // what batch is for, with copies; no batch: finish it
	copies  [][]uint32   // of restore: for each event
	attach  bool         // of restore: the events are those of Attach
	// scheme is that of the batch's worker if the batch has hash-only events:
	// hashes that the worker's ranks do not know are looked for with others of
	// it. "": they are not.
	scheme string
	// pooled says of each event of the batch whether it is a pool's; nil: none is.
	pooled []pooled
	takers *takers // take over what a restored rank has on tiers of pools

	reveal *member // the rank that takes over from the one in members
	// leaving are the numbers of members that are removed; or those of ranks of the batch that its events clear, of
	// event cleared[i] the i-th, which the shards call fresh[i] from then on.
	leaving []*leaving
	cleared []int
	fresh   []core.Holder
	done    func(core.Outcome)

	outs []core.Outcome
	left atomic.Int32 // shards that have not finished

	// parents[i] is how the shards have voted on the parent of event i. A
	// shard that must know the outcome waits on decided.
	parents []parentTally
	// hashVotes has, if asksOthers, how the shards have voted on the
	// blocks of the batch's hash-only events, those of event i from hashVotesAt[i]
	// on: as a parentVote, the greatest. It holds once parents[i] says that
	// all have voted.
	hashVotes   []atomic.Uint32
	hashVotesAt []int
	waiting     atomic.Int32
	mu          sync.Mutex
	decided     *sync.Cond
}

func newTask(shards int) *task {
	t := &task{outs: make([]core.Outcome, shards), reach: make([]bool, shards)}
	t.decided = sync.NewCond(&t.mu)
	return t
}

// start makes the prepared task ready for the shards.
func (t *task) start() {
	t.left.Store(int32(len(t.to)))
	if t.batch != nil && len(t.to) > 1 {
		n := len(t.batch.Events)
		t.parents = slices.Grow(t.parents[:0], n)[:n]
		for i := range t.parents {
			t.parents[i].Store(0)
		}
		if t.asksOthers() {
			t.startHashVotes()
		}
	}
}

// startHashVotes makes room for what the shards say about hash-only events.
func (t *task) startHashVotes() {
	blocks := 0
	t.hashVotesAt = t.hashVotesAt[:0]
	for i := range t.batch.Events {
		t.hashVotesAt = append(t.hashVotesAt, blocks)
		if ev := &t.batch.Events[i]; hashOnly(ev) {
			blocks += len(ev.Engine)
		}
	}
	t.hashVotes = slices.Grow(t.hashVotes[:0], blocks)[:blocks]
	for i := range t.hashVotes {
		t.hashVotes[i].Store(uint32(parentUnknown))
	}
}

// asksOthers reports whether blocks of hash-only events are looked for with others than
// their holder.
func (t *task) asksOthers() bool { return t.scheme != "" || t.pooled != nil }

// hashOnly reports whether the event stores blocks by their engine hashes alone.
func hashOnly(ev *event.Event) bool {
	return ev.Kind == event.Stored && len(ev.Local) == 0 && ev.Group == 0
}

// voteHash posts what one shard knows about block j of event i. All that a shard
// says about an event comes before its voteParent.
func (t *task) voteHash(i, j int, s parentVote) {
	v := &t.hashVotes[t.hashVotesAt[i]+j]
	for {
		old := v.Load()
		if old >= uint32(s) || v.CompareAndSwap(old, uint32(s)) {
			return
		}
	}
}

// hashVote returns what the shards' votes come to, once all have voted.
func (t *task) hashVote(i, j int) parentVote {
	return parentVote(t.hashVotes[t.hashVotesAt[i]+j].Load())
}

// reset drops what the task refers to, for its next use.
func (t *task) reset() {
	t.batch, t.inspect, t.done = nil, nil, nil
	t.restore, t.copies, t.attach, t.reveal, t.scheme = nil, nil, false, nil, ""
	t.pooled, t.takers, t.leaving, t.cleared, t.fresh = nil, nil, nil, nil, nil
	race.Write(t.members) // clearing is assembly, and the owners have just read them
	race.Write(t.outs)
	clear(t.members)
	t.members, t.to = t.members[:0], t.to[:0]
	clear(t.outs)
}

// parentVote is what a shard says about the parent of an event, and what it
// comes to when all have voted. The greatest prevails.
type parentVote uint32

const (
	parentUnknown parentVote = 0
	// Between the two: only another holder knows it, from which it may be
	// learned. From 2^31 on one that knows the whole chain, below one that does
	// not (see core.Knower); the lower its number, the greater.
	parentHere parentVote = 1<<32 - 1
)

// parentOf says that the holder, whose number is below 2^31-1, knows the parent.
func parentOf(from core.Holder, whole bool) parentVote {
	if whole {
		return parentHere - 1 - parentVote(from)
	}
	return 1<<31 - 1 - parentVote(from)
}

func (s parentVote) holder() core.Holder {
	if s >= 1<<31 {
		return core.Holder(parentHere - 1 - s)
	}
	return core.Holder(1<<31 - 1 - s)
}

// parentTally is the greatest vote so far, and in the low half how many
// shards have voted.
type parentTally struct{ atomic.Uint64 }

func (v *parentTally) add(s parentVote) (now uint64) {
	for {
		old := v.Load()
		now = max(old>>32, uint64(s))<<32 | (old+1)&(1<<32-1)
		if v.CompareAndSwap(old, now) {
			return now
		}
	}
}

// voteParent posts what one shard knows about event i's parent. It reports
// whether it was the last shard to vote and none knows the parent.
func (t *task) voteParent(i int, s parentVote) (unknown bool) {
	v := t.parents[i].add(s)
	last := uint32(v) == uint32(len(t.to))
	// A waiter counts itself before it looks at the tally, so either it sees
	// this vote or it is seen here.
	if (s == parentHere || last) && t.waiting.Load() > 0 {
		t.mu.Lock()
		t.decided.Broadcast()
		t.mu.Unlock()
	}
	return last && v>>32 == uint64(parentUnknown)
}

// awaitParent returns what the shards' votes about the parent of event i come
// to.
func (t *task) awaitParent(i int) parentVote {
	tally := func() (s parentVote, decided bool) {
		v := t.parents[i].Load()
		s = parentVote(v >> 32)
		return s, s == parentHere || uint32(v) == uint32(len(t.to))
	}
	if s, decided := tally(); decided {
		return s
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for {
		if s, decided := tally(); decided {
			return s
		}
		t.decided.Wait()
	}
}
