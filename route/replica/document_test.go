package replica

import (
	"reflect"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/doctest"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

func TestExamplesOfTheDocument(t *testing.T) {
	scope := shard.SpaceHash(event.Space{Model: "org/model-7B v2", BlockSize: 16, Group: "tenant"})
	check := func(name string, kind byte, before []byte, want []load.Change) {
		t.Helper()
		h := header{kind: kind, scope: scope, from: 255, number: 3}
		msg := append(h.append(nil), before...)
		for i := range want {
			msg = appendChange(msg, &want[i], 1<<20)
		}
		doctest.Same(t, doctest.Wire, name, msg)
		got, rest, err := readHeader(doctest.Hex(t, doctest.Wire, name))
		r := reader{rest: rest[len(before):]}
		if changes := r.changes(255); err != nil || got != h || r.err != nil || !reflect.DeepEqual(changes, want) {
			t.Errorf("%s: %+v, %v, %+v, %v", name, got, err, changes, r.err)
		}
	}
	key := func(id string) load.Key { return load.Key{Owner: 255, ID: id} }
	check("load-changes", typeChanges, nil, []load.Change{
		{Kind: load.Prefilled, Key: key("r1")},
		{Kind: load.Generated, Key: key("r1"), Tokens: 300},
		{Kind: load.Filled, Key: key("r1"), Weight: 0.5},
		{Kind: load.Freed, Key: key("r1")},
	})
	check("load-bids", typeBids, nil, []load.Change{
		{Kind: load.Sought, Key: key("r3"), Held: true, Waited: 250 * time.Millisecond, Request: load.Request{PromptTokens: 300}, Ranks: []load.Want{
			{Rank: shard.RankID{Worker: 7, DPRank: 1}, NewTokens: 44}, {Rank: shard.RankID{Worker: 8}, NewTokens: 300},
		}},
	})
	check("load-fetches", typeFetches, nil, []load.Change{{Kind: load.Fetched, Key: key("r3"), Rank: shard.RankID{Worker: 7, DPRank: 1}}})
	check("load-failing", typeFailing, nil, []load.Change{{Kind: load.Failing, Key: key(""), Rank: shard.RankID{Worker: 7}}})
	check("load-snapshot", typeSnapshot, place{serial: 1, last: true}.append(nil), []load.Change{
		{Kind: load.Added, Key: key("r2"), Rank: shard.RankID{Worker: 7, DPRank: 1}, Request: load.Request{
			Prefilled: true, PromptTokens: 300, NewTokens: 44, ExpectedOutput: 100, Generated: 5, Private: 2, Decay: 0.25, Blocks: []uint64{0x22}}},
	})
}
