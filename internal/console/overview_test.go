package console

import (
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/shard"
)

// Ranks are counted, and of their workers each is named once, as far as there is room.
func TestNeeding(t *testing.T) {
	g := &group{}
	for w := range uint64(7) {
		for n := range uint32(2) {
			st := dead
			if w == 6 {
				st = gap
			}
			g.ranks = append(g.ranks, &rank{RankID: shard.RankID{Worker: w, DPRank: n}, state: st})
		}
	}
	got := needing([]*group{g})
	if len(got) != 2 || got[0].Kind != "dead" || got[0].Count != 12 || len(got[0].Workers) != 5 || got[0].More != 1 ||
		got[1].Kind != "gap" || got[1].Count != 2 || !slices.Equal(got[1].Workers, []string{"6"}) || got[1].More != 0 {
		t.Errorf("%+v", got)
	}
}
