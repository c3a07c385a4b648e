package replica

import (
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// TestMetricsOfPools: a pool is no rank, and what it holds is nobody's device's.
func TestMetricsOfPools(t *testing.T) {
	set := shard.New(shard.Config{Shards: 1})
	t.Cleanup(set.Close)
	id := event.Space{Model: "m", BlockSize: 16}
	sp, err := set.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := sp.SetPools(t.Context(), 7, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := sp.ApplyWait(t.Context(), &event.Batch{Space: id, Worker: 7, Events: []event.Event{
		{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}},
		{Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2}},
	}}); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	writeSpaces(&text, set)
	for _, want := range []string{`_ranks{model="m",block_size="16",group=""} 1`, `tier="device"} 3`, `tier="external"} 2`} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %s in:\n%s", want, &text)
		}
	}
}
