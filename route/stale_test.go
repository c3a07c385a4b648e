package route

import (
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Of a stale rank the leading half of its depths counts, in every mode that goes by them,
// until it is stale no more; the index itself is as it was.
func TestStaleRanksCountForLess(t *testing.T) {
	for _, mode := range []string{"auto", "kv", "dynamo", "prefill-x-batch"} {
		t.Run(mode, func(t *testing.T) {
			r, space, _ := open(t, func(c *Config) { c.Settings.Mode = mode }, workers(2)...)
			p := prompt(10)
			store(t, space, 1, 0, event.Device, p...)
			store(t, space, 2, 0, event.Device, p[:7]...)
			chosen := func(explained bool) (Answer, uint32) {
				t.Helper()
				a, err := r.BestWorker(t.Context(), Prompt{Local: p, Length: 10 * testBlock}, Options{Explain: explained})
				if err != nil {
					t.Fatal(err)
				}
				for i := range a.Ranks {
					if a.Ranks[i].Worker == 1 {
						return a, a.Ranks[i].Cached[event.Device]
					}
				}
				return a, 0
			}
			if a, depth := chosen(true); a.Worker != 1 || depth != 10 {
				t.Errorf("worker %d is chosen, and the other has %d blocks", a.Worker, depth)
			}
			r.SetStale(map[shard.RankID]bool{{Worker: 1}: true})
			if a, depth := chosen(true); a.Worker != 2 || depth != 5 || a.CachedTokens != 7*testBlock {
				t.Errorf("with a stale rank worker %d is chosen, and the stale one counts for %d blocks", a.Worker, depth)
			}
			r.SetStale(nil)
			if a, depth := chosen(true); a.Worker != 1 || depth != 10 {
				t.Errorf("afterwards worker %d is chosen, and the other has %d blocks", a.Worker, depth)
			}
		})
	}
}
