package shard

import (
	"slices"
	"sync"
	"time"
)

// poolRemovals is how many removals of a pool are remembered, the last ones: some 72 bytes each. It is
// no setting: what a store evicts between two dumps of a worker is far less.
const poolRemovals = 1 << 16

// poolLate is how much later than its publishing a batch may come and be known for late. It bounds too
// what clocks of publishers that differ can do.
const poolLate = time.Minute

// removals are blocks that were said to have left a pool, by anyone, and not to be back: the
// publisher of another worker that stored one never hears of it, so its dumps, and events that come late, still have it.
type removals struct {
	mu    sync.Mutex // owners ask while batches come in
	last  map[uint64]removal
	order []removed // the oldest at first
	head  int
	next  uint64
	// cleared is when the last was published that all blocks had left; 0: it is not known, or nobody has said so.
	cleared int64
}

type removal struct {
	number    uint64
	published int64 // Unix nanoseconds; 0: not known
}

type removed struct{ hash, number uint64 }

// add notes blocks that have left.
func (r *removals) add(hashes []uint64, published int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = make(map[uint64]removal)
	}
	for _, e := range hashes[max(0, len(hashes)-poolRemovals):] { // those before would be forgotten for these
		r.next++
		r.last[e] = removal{r.next, published}
		one := removed{e, r.next}
		if len(r.order) < poolRemovals {
			r.order = append(r.order, one)
			continue
		}
		if old := r.order[r.head]; r.last[old.hash].number == old.number {
			delete(r.last, old.hash)
		}
		r.order[r.head] = one
		r.head = (r.head + 1) % poolRemovals
	}
}

// late reports whether something that was published then comes late, after a removal that was published at gone.
func late(published, gone int64) bool {
	return published != 0 && gone > published && gone-published < int64(poolLate)
}

// clear notes that all blocks have left. Which those were add is told.
func (r *removals) clear(published int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleared = max(r.cleared, published)
}

// late reports whether that a block is there, published then, comes after it was said to have left.
func (r *removals) late(hash uint64, published int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return late(published, r.last[hash].published) || late(published, r.cleared)
}

// back notes that blocks are said to be there, in a batch that was published then, and returns
// those of them that have not left since.
func (r *removals) back(hashes []uint64, published int64) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if late(published, r.cleared) {
		return nil
	}
	return r.without(hashes, func(e uint64, gone removal) bool {
		if late(published, gone.published) {
			return true
		}
		delete(r.last, e)
		return false
	})
}

// dumped returns which of the blocks that a worker's dump has in the pool are not known to have left.
func (r *removals) dumped(hashes []uint64) []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.without(hashes, func(uint64, removal) bool { return true })
}

func (r *removals) without(hashes []uint64, left func(hash uint64, gone removal) bool) []uint64 {
	if len(r.last) == 0 {
		return hashes
	}
	var kept []uint64
	same := true
	for i, e := range hashes {
		gone, is := r.last[e]
		is = is && left(e, gone)
		if is && same {
			kept, same = slices.Clone(hashes[:i]), false
		}
		if !is && !same {
			kept = append(kept, e)
		}
	}
	if same {
		return hashes
	}
	return kept
}
