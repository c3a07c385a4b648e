package snapshot

import (
	"bytes"
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// What ranks hold in their cache groups comes back from a snapshot, with any number of
// shards, exactly; of a rank that lost something, depths are bounds.
func TestCacheGroupsComeBack(t *testing.T) {
	list := []event.CacheGroup{{Number: 0, Kind: "full_attention", BlockSize: 1}, {Number: 2, Kind: "sliding_window", BlockSize: 1, Span: 2}}
	one := openSpace(t, shard.Config{Shards: 2})
	key := one.Key()
	list[0].BlockSize, list[1].BlockSize = key.BlockSize, key.BlockSize
	for worker := range uint64(3) {
		chain := []uint64{10 * worker, 10*worker + 1, 10*worker + 2}
		events := []event.Event{
			{Kind: event.Stored, Engine: chain, Local: []uint64{worker, 5, 6}},
			{Kind: event.Stored, Group: 2, Tier: event.Tier(worker), Engine: chain[:2], Incomplete: worker == 2},
			{Kind: event.Stored, Group: 2, Engine: []uint64{99}}, // full attention has it no more
		}
		if worker == 1 {
			events = append(events, event.Event{Kind: event.Removed, Group: 2, Tier: 1, Engine: chain[:2]}, event.Event{Kind: event.Removed, Group: 2, Engine: []uint64{99}})
		}
		one.SetCacheGroups(worker, list)
		if _, err := one.ApplyWait(t.Context(), &event.Batch{Space: key, Worker: worker, CountCopies: true, Events: events}); err != nil {
			t.Fatal(err)
		}
	}
	data, footer := write(t, one, Options{})
	if want := digest(t, one); footer.Digest == want {
		t.Error("what is partial is in the snapshot")
	}
	if _, err := Verify(bytes.NewReader(data)); err != nil {
		t.Error(err)
	}
	for _, shards := range []int{1, 2, 3} {
		other := openSpace(t, shard.Config{Shards: shards})
		if _, err := Restore(t.Context(), bytes.NewReader(data), other, Options{}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if have := digest(t, other); have != footer.Digest || !other.Hybrid() {
			t.Errorf("%d shards: digest %x, the footer has %x; hybrid %v", shards, have, footer.Digest, other.Hybrid())
		}
		for worker := range uint64(3) {
			other.SetCacheGroups(worker, list)
			// The window's blocks are heard of again: only so it is known that all groups are told.
			if _, err := other.ApplyWait(t.Context(), &event.Batch{Space: key, Worker: worker, Events: []event.Event{{Kind: event.Stored, Group: 2, Engine: []uint64{98}}}}); err != nil {
				t.Fatal(err)
			}
			var r shard.Result
			other.Find([]uint64{worker, 5, 6}, &r)
			var have [event.NumTiers]uint32
			r.Each(func(_ shard.RankID, depth [event.NumTiers]uint32) { have = depth })
			want, exact := [...][event.NumTiers]uint32{{2, 2, 2, 2}, {}, {3, 3, 3, 3}}[worker], worker != 2
			if have != want || r.Exact() != exact {
				t.Errorf("%d shards, worker %d: %v, exact %v; want %v, %v", shards, worker, have, r.Exact(), want, exact)
			}
		}
	}
}

func TestCacheGroupsThatCannotBeRead(t *testing.T) {
	for name, c := range map[string]chunk{
		"a tier":        {meta: []byte{0, 0x24, 1, 1}, words: make([]byte, 8)},
		"no group":      {meta: []byte{0, 0, 1, 1}, words: make([]byte, 8)},
		"no copies":     {meta: []byte{0, 0x20, 1, 0}, words: make([]byte, 8)},
		"too few words": {meta: []byte{0, 0x20, 1, 1}},
		"too many":      {meta: []byte{0, 0x20, 0}, words: make([]byte, 8)},
		"half a one":    {meta: []byte{0, 0x20}},
	} {
		if err := decodeGroups(&c, nil, nil); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
