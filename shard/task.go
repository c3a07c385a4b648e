package shard

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// task is one entry of every shard's queue: a batch, a step of a replacement, a
// removal of ranks, or an inspection. What submit prepares is read-only afterwards; outs[i] belongs to
// shard i until it has finished.
type task struct {
	batch   *event.Batch
	ranks   []*rank      // the batch's, one an event, nil if unknown; or those to remove
	inspect func(*owner) // run by every owner
	restore *Replacement // what batch is for, with copies; no batch: finish it
	copies  [][]uint32   // of restore: for each event
	reveal  *rank        // the rank that takes over from the one in ranks
	done    func(core.Outcome)

	outs []core.Outcome
	left atomic.Int32 // shards that have not finished

	// parents[i] is what the shards have said about the parent of event i. A
	// shard that must know the verdict waits on decided.
	parents []parentVerdict
	waiting atomic.Int32
	mu      sync.Mutex
	decided *sync.Cond
}

func newTask(shards int) *task {
	t := &task{outs: make([]core.Outcome, shards)}
	t.decided = sync.NewCond(&t.mu)
	return t
}

// start makes the prepared task ready for the shards.
func (t *task) start() {
	t.left.Store(int32(len(t.outs)))
	if t.batch != nil && len(t.outs) > 1 {
		n := len(t.batch.Events)
		t.parents = slices.Grow(t.parents[:0], n)[:n]
		for i := range t.parents {
			t.parents[i].Store(0)
		}
	}
}

// reset drops what the task refers to, for its next use.
func (t *task) reset() {
	t.batch, t.inspect, t.done = nil, nil, nil
	t.restore, t.copies, t.reveal = nil, nil, nil
	clear(t.ranks)
	t.ranks = t.ranks[:0]
	clear(t.outs)
}

// parentVerdict counts the shards that have said whether they know a parent,
// and whether one of them does.
type parentVerdict struct{ atomic.Uint32 }

const parentKnown = 1 << 31

// sayParent posts what one shard knows about event i's parent. It reports
// whether it was the last shard to speak and none knows the parent.
func (t *task) sayParent(i int, knows bool) (unknown bool) {
	say := uint32(1)
	if knows {
		say |= parentKnown
	}
	v := t.parents[i].Add(say)
	last := v&^parentKnown == uint32(len(t.outs))
	// A waiter counts itself before it looks at the verdict, so either it sees
	// this verdict or it is seen here.
	if (knows || last) && t.waiting.Load() > 0 {
		t.mu.Lock()
		t.decided.Broadcast()
		t.mu.Unlock()
	}
	return last && v&parentKnown == 0
}

// awaitParent returns whether any shard knows the parent of event i.
func (t *task) awaitParent(i int) bool {
	verdict := func() (known, decided bool) {
		v := t.parents[i].Load()
		known = v&parentKnown != 0
		return known, known || v == uint32(len(t.outs))
	}
	if known, decided := verdict(); decided {
		return known
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	for {
		if known, decided := verdict(); decided {
			return known
		}
		t.decided.Wait()
	}
}
