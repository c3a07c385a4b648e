package shard

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

// TestDumpRank: what is dumped of every rank, stored in a space with another
// number of shards, with the names that are only known taken away again, gives
// the same digest.
func TestDumpRank(t *testing.T) {
	for _, shards := range []int{1, 3} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(uint64(shards), 1))
			sp, other := openSpace(t, Config{Shards: shards}), openSpace(t, Config{Shards: 2})
			for range 200 {
				b := chain(rng.Uint64N(3), rng.Uint32N(2), make([]uint64, 1+rng.IntN(8))...)
				ev := &b.Events[0]
				ev.Local, ev.Tier = slices.Clone(ev.Engine), event.Tier(rng.IntN(3))
				hash := uint64(0)
				for i := range ev.Local {
					ev.Local[i] = 1 + rng.Uint64N(3)
					hash = hash*4 + ev.Local[i]
					ev.Engine[i] = hash
				}
				apply(t, sp, b)
			}
			for _, r := range sp.Ranks() {
				dump, err := sp.DumpRank(t.Context(), r.RankID)
				if err != nil {
					t.Fatal(err)
				}
				b := &event.Batch{Space: testSpace, Worker: r.Worker}
				var links []event.Event
				held := 0
				for _, d := range dump {
					b.Events = append(b.Events, d.Event)
					link := event.Event{Kind: event.Removed, Tier: d.Event.Tier, DPRank: r.DPRank}
					for i, n := range d.Copies {
						if held += int(n); n == 0 {
							link.Engine = append(link.Engine, d.Event.Engine[i])
						}
					}
					links = append(links, link)
				}
				b.Events = append(b.Events, links...)
				if want := r.Held[0] + r.Held[1] + r.Held[2]; held != want || want == 0 {
					t.Errorf("%v: %d copies dumped, it holds %d blocks", r.RankID, held, want)
				}
				apply(t, other, b)
			}
			want, err := sp.Digest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if got, err := other.Digest(t.Context()); err != nil || got != want {
				t.Errorf("digest %x, %v, want %x", got, err, want)
			}
		})
	}
	sp := openSpace(t, Config{})
	if dump, err := sp.DumpRank(t.Context(), RankID{Worker: 5}); err != nil || len(dump) != 0 {
		t.Errorf("a rank that is not there: %v, %v", dump, err)
	}
}
