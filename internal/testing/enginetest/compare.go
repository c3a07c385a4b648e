package enginetest

import (
	"fmt"
	"maps"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Compare returns what an index says otherwise than the oracle: digest, sizes,
// and the answer for the chain of every block that anyone knows.
func Compare(x core.Index, want *core.Oracle) error {
	identity := func(h core.Holder) (uint64, uint32) { return uint64(h), 0 }
	if a, b := x.Digest(1, identity), want.Digest(1, identity); a != b {
		return fmt.Errorf("digest %x, want %x", a, b)
	}
	asked := map[uint64]bool{}
	var m core.Matches
	for _, h := range want.Holders() {
		for t := range event.Tier(event.NumTiers) {
			if a, b := x.Held(h, t), want.Held(h, t); a != b {
				return fmt.Errorf("holder %d has %d blocks on tier %d, want %d", h, a, t, b)
			}
		}
		for _, n := range want.KnownHashes(h) {
			if asked[n.Seq] {
				continue
			}
			asked[n.Seq] = true
			query := want.Chain(h, n.Engine)
			x.Find(query, &m)
			a, err := coretest.ReadAnswer(&m)
			if err != nil {
				return err
			}
			if b := coretest.OracleAnswer(want, query); !maps.Equal(a, b) {
				return fmt.Errorf("the chain of %d blocks to %x: %v, want %v", len(query), n.Engine, a, b)
			}
		}
	}
	return nil
}

// CompareSpace returns what a space says of a rank otherwise than the oracle
// says of its holder: sizes, and the depth of the chain of every block.
func CompareSpace(sp *shard.Space, id shard.RankID, want *core.Oracle, holder core.Holder) error {
	var held [event.NumTiers]int
	for _, r := range sp.Ranks() {
		if r.RankID == id {
			held = r.Held
		}
	}
	for t := range event.Tier(event.NumTiers) {
		if a, b := held[t], want.Held(holder, t); a != b {
			return fmt.Errorf("%v has %d blocks on tier %d, want %d", id, a, t, b)
		}
	}
	asked := map[uint64]bool{}
	var found shard.Result
	for _, n := range want.KnownHashes(holder) {
		if asked[n.Seq] {
			continue
		}
		asked[n.Seq] = true
		query := want.Chain(holder, n.Engine)
		var have coretest.Depths
		sp.Find(query, &found)
		found.Each(func(r shard.RankID, depth [event.NumTiers]uint32) {
			if r == id {
				have = depth
			}
		})
		if b := coretest.OracleAnswer(want, query)[holder]; have != b {
			return fmt.Errorf("%v has %v of the chain of %d blocks to %x, want %v", id, have, len(query), n.Engine, b)
		}
	}
	return nil
}
