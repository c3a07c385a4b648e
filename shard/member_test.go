package shard

import (
	"math"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// TestRanksByNumber: EachMember of a space and of a result give the same Rank
// for the same rank, under one number, with what it holds; after a removal the
// number may be another Rank's, which is not equal to the old one.
func TestRanksByNumber(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	apply(t, sp, chain(1, 0, 10, 11))
	apply(t, sp, chain(2, 3, 10, 11, 12))
	host := chain(1, 0, 10, 11, 12)
	host.Events[0].Tier = event.HostPinned
	apply(t, sp, host)

	present := map[RankID]Member{}
	sp.EachMember(func(m Member) { present[m.ID()] = m })
	if len(present) != 2 || present[RankID{1, 0}].Held() != 5 || present[RankID{2, 3}].Held() != 3 {
		t.Fatalf("ranks %v", present)
	}
	var r Result
	for _, query := range [][]uint64{{10, 11, 12}, {10}} {
		sp.Find(query, &r)
		var byEach, byRank []RankID
		r.Each(func(id RankID, _ [event.NumTiers]uint32) { byEach = append(byEach, id) })
		r.EachMember(func(m Member, depth [event.NumTiers]uint32) {
			byRank = append(byRank, m.ID())
			if m != present[m.ID()] {
				t.Errorf("%v is another Rank in the result", m.ID())
			}
			want := [event.NumTiers]uint32{3, 3, 3, 3}
			if m.ID().Worker == 1 {
				want[event.Device] = 2
			}
			for t := range want {
				want[t] = min(want[t], uint32(len(query)))
			}
			if depth != want {
				t.Errorf("%v has depth %v, want %v", m.ID(), depth, want)
			}
		})
		if len(byRank) != 2 || !slices.Equal(byEach, byRank) {
			t.Errorf("Each gives %v, EachMember %v", byEach, byRank)
		}
	}
	old := present[RankID{1, 0}]
	if err := sp.RemoveWorker(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	apply(t, sp, chain(9, 0, 10))
	sp.EachMember(func(m Member) {
		if m.ID().Worker == 9 && (m.Number() != old.Number() || m == old) {
			t.Errorf("number %d and Rank %v after %d and %v", m.Number(), m, old.Number(), old)
		}
	})
}

// TestLosses: what events take from a rank is counted over shards, with when it was said.
func TestLosses(t *testing.T) {
	sp := openSpace(t, Config{Shards: 4})
	for first := range uint64(8) {
		apply(t, sp, chain(1, 0, 100*first+1, 100*first+2))
	}
	apply(t, sp, chain(2, 0, 1, 2))
	var one Member
	sp.EachMember(func(m Member) {
		if m.ID().Worker == 1 {
			one = m
		}
	})
	if got := one.Losses(); got != (Losses{}) {
		t.Fatalf("nothing is lost yet: %+v", got)
	}
	lose := func(worker uint64, published int64, ev event.Event) {
		t.Helper()
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: worker, Published: published, Events: []event.Event{ev}})
	}
	lose(1, 7, event.Event{Kind: event.Removed, Engine: []uint64{2, 102, 202, 999}})
	if got := one.Losses(); got != (Losses{Blocks: 3, Published: 7}) {
		t.Errorf("three blocks at 7, one of which nobody knows: %+v", got)
	}
	lose(2, 8, event.Event{Kind: event.Removed, Engine: []uint64{2}})
	if got := one.Losses(); got != (Losses{Blocks: 3, Published: 7}) {
		t.Errorf("another worker's is none of it: %+v", got)
	}
	lose(1, 0, event.Event{Kind: event.Cleared, AllTiers: true})
	if got := one.Losses(); got != (Losses{Blocks: 16, Published: math.MaxInt64}) {
		t.Errorf("all, at a time that nobody knows: %+v", got)
	}
}
