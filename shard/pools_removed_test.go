package shard

import (
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// TestWhatLeftAPoolIsNotBroughtBack: not by a dump of who stored it, nor by its event that comes
// late; what is stored again is there.
func TestWhatLeftAPoolIsNotBroughtBack(t *testing.T) {
	for _, own := range []bool{false, true} {
		sp := openSpace(t, Config{Shards: 2})
		for w := range uint64(2) {
			if err := sp.SetPools(t.Context(), w, []uint32{0}, []event.Pool{{Name: "p", OwnNames: own}}); err != nil {
				t.Fatal(err)
			}
		}
		apply(t, sp, chain(0, 0, 1, 2, 3))
		now := time.Now().UnixNano()
		say := func(worker uint64, kind event.Kind, at time.Duration, blocks ...uint64) {
			ev := event.Event{Kind: kind, Tier: event.External, Engine: blocks}
			if kind == event.Stored {
				ev.Local = blocks
			}
			apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Published: now + int64(at), Events: []event.Event{ev}})
		}
		has := func(when string, want uint32) {
			t.Helper()
			var r Result
			sp.Find([]uint64{1, 2, 3}, &r)
			if p := r.Pools(); len(p) != 1 || p[0].Depth != want {
				t.Errorf("own names %v, %s: %v, want %d blocks", own, when, p, want)
			}
		}
		say(0, event.Stored, 0, 1, 2, 3)
		has("stored", 3)
		say(1, event.Removed, 10*time.Second, 2)
		has("removed by another", 1)
		commitDump(t, sp, RankID{0, 0}, []event.Event{
			{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}}, {Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2, 3}},
		}, [][]uint32{{1, 1, 1}, {1, 1, 1}})
		has("dumped by who stored it", 1)
		say(0, event.Stored, 9*time.Second, 1, 2, 3)
		has("said before, and late", 1)
		say(0, event.Stored, 11*time.Second, 1, 2, 3)
		has("stored again", 3)
		say(1, event.Cleared, 12*time.Second)
		has("cleared", 0)
		say(0, event.Stored, 11*time.Second, 1, 2, 3)
		has("cleared, and said before", 0)
		say(0, event.Stored, 12*time.Second-2*poolLate, 1, 2, 3)
		has("said by a clock that is far behind", 3)
	}
}

// TestRemovalsAreBounded: the last are remembered, and one that is said twice as often as it must.
func TestRemovalsAreBounded(t *testing.T) {
	var r removals
	all := make([]uint64, poolRemovals+10)
	for i := range all {
		all[i] = uint64(i)
	}
	r.add(all, 0)
	r.add([]uint64{10, 11}, 0) // again: in the place of the oldest two, which are these
	r.add([]uint64{1 << 40}, 0)
	if got := r.dumped([]uint64{0, 9, 10, 11, 12, 13, 1 << 40, 1 << 41}); !slices.Equal(got, []uint64{0, 9, 12, 1 << 41}) {
		t.Errorf("%v are not known to have left", got)
	}
	if len(r.last) > poolRemovals || len(r.order) > poolRemovals {
		t.Errorf("%d and %d are remembered", len(r.last), len(r.order))
	}
}

// TestALongRemoval: of more blocks than are remembered, those that would be forgotten at once take no time.
func TestALongRemoval(t *testing.T) {
	var r removals
	hashes := make([]uint64, 3*poolRemovals)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	r.add(hashes, 1)
	if _, last := r.last[uint64(len(hashes)-1)]; r.next != poolRemovals || len(r.last) != poolRemovals || !last {
		t.Errorf("%d of %d were noted, %d are remembered, the last one %v", r.next, len(hashes), len(r.last), last)
	}
}
