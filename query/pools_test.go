package query

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Every answer tells pools as pools, and none as somebody's rank.
func TestPoolsInAnswers(t *testing.T) {
	set := shard.New(shard.Config{Shards: 2})
	t.Cleanup(set.Close)
	id := event.Space{Model: "m", BlockSize: 16}
	sp, err := set.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := sp.SetPools(t.Context(), 7, []uint32{0}, []event.Pool{{Name: `st"ore`}, {Name: "empty", Tiers: []string{"disk"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := sp.ApplyWait(t.Context(), &event.Batch{Space: id, Worker: 7, Events: []event.Event{
		{Kind: event.Stored, Engine: []uint64{1, 2, 3}, Local: []uint64{1, 2, 3}},
		{Kind: event.Stored, Tier: event.External, Engine: []uint64{1, 2, 3}},
		{Kind: event.Removed, Engine: []uint64{2, 3}},
	}}); err != nil {
		t.Fatal(err)
	}
	s := serve(t, Shards{set}, testConfig(t))
	for _, c := range []struct{ method, path, body, has string }{
		{"POST", "/v1/find_matches", `{"model":"m","hashes":[1,2,9]}`,
			`"blocks":3,"pools":[{"pool":"empty","external":0},{"pool":"st\"ore","external":2}],"workers":[{"worker_id":"7","device":1,"host_pinned":1,"disk":1,"external":2,"longest":2,"tokens":32,"ranks":[{`},
		{"POST", "/v1/explain", `{"model":"m","hashes":[1,2,9]}`, `"external":2,"blocks_held":1`},
		{"GET", "/v1/spaces", "", `"workers":1,"ranks":1,"blocks":{"device":1,"host_pinned":0,"disk":0,"external":0},"pools":[{"pool":"empty","blocks":0,"workers":1},{"pool":"st\"ore","blocks":3,"workers":1}]`},
		{"GET", "/v1/workers", "", `"pools":[{"pool":"empty","blocks":0,"workers":1},{"pool":"st\"ore","blocks":3,"workers":1}],"workers":[{"worker_id":"7"`},
	} {
		if a, text := s.do(t, c.method, c.path, c.body); a.StatusCode != 200 || !strings.Contains(string(text), c.has) || strings.Contains(string(text), "4294967295") {
			t.Errorf("%s: %s\n%s", c.path, a.Status, text)
		}
	}
}

// TestPoolsOfAllShares: what the shares of a divided fleet say of a pool is one pool.
func TestPoolsOfAllShares(t *testing.T) {
	for _, c := range []struct{ one, other, want string }{
		{`[{"pool":"b","external":2},{"pool":"c","external":3}]`, `[{"pool":"a","external":1},{"pool":"b","external":1},{"pool":"c","external":4}]`,
			`[{"pool":"a","external":1},{"pool":"b","external":2},{"pool":"c","external":4}]`},
		{`[{"pool":"b","blocks":9,"workers":1}]`, `[{"pool":"b","blocks":2,"workers":3}]`, `[{"pool":"b","blocks":9,"workers":4}]`},
	} {
		var one, other []sharedPool
		if err := json.Unmarshal([]byte(c.one), &one); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(c.other), &other); err != nil {
			t.Fatal(err)
		}
		if got, err := json.Marshal(deepest(one, other)); err != nil || string(got) != c.want {
			t.Errorf("%s, %v; want %s", got, err, c.want)
		}
	}
}
