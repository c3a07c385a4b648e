package replica

import (
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// What a worker registers of its caches makes its answers exact while it says so, and not
// when it is registered anew without.
func TestCacheGroupsAreAsRegisteredLast(t *testing.T) {
	set := shard.New(shard.Config{Shards: 1})
	defer set.Close()
	key := event.Space{Model: "m", BlockSize: 2}
	space, err := set.Open(key)
	if err != nil {
		t.Fatal(err)
	}
	w := &workers{r: &Replica{set: set}}
	entry := &registry.Entry{Key: registry.Key{Space: key, Worker: 7}, State: registry.Live}
	entry.CacheGroups = []event.CacheGroup{
		{Number: 0, Kind: "full_attention", BlockSize: 2},
		{Number: 2, Kind: "sliding_window", BlockSize: 2, Span: 5},
	}
	w.heed(t.Context(), entry)
	b := event.Batch{Space: key, Worker: 7, Events: []event.Event{
		{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}, {Kind: event.Stored, Group: 2, Engine: []uint64{1}},
	}}
	if _, err := space.ApplyWait(t.Context(), &b); err != nil {
		t.Fatal(err)
	}
	exact := func() bool {
		var r shard.Result
		space.Find([]uint64{1}, &r)
		return r.Exact()
	}
	if !exact() {
		t.Fatal("what is registered of the caches makes nothing exact")
	}
	entry.CacheGroups = nil
	if w.heed(t.Context(), entry); exact() {
		t.Error("answers are exact by what is no longer registered")
	}
}
