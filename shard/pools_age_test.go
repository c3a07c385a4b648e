package shard

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// TestPoolsAgeInSteps: of a large pool what is too old goes some of it at a time, and nothing that is said meanwhile.
func TestPoolsAgeInSteps(t *testing.T) {
	const many = 5 * poolRuns
	index := &stepsWatched{Radix: core.NewRadix(core.Options{}), held: make(map[[2]uint32]int)}
	sp := openSpace(t, Config{Shards: 1, NewIndex: func() core.Index { return index }})
	if err := sp.SetPools(t.Context(), 1, []uint32{0}, []event.Pool{{Name: "p", Age: 30}}); err != nil {
		t.Fatal(err)
	}
	at := func(second int64) {
		t.Helper()
		if err := sp.AgePools(t.Context(), time.Unix(3_000_000+second, 0)); err != nil {
			t.Fatal(err)
		}
	}
	say := func(blocks []uint64) {
		apply(t, sp, &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: blocks}}})
	}
	blocks := make([]uint64, many)
	for i := range blocks {
		blocks[i] = uint64(i + 1)
	}
	for i := range blocks {
		apply(t, sp, chain(1, 0, blocks[i]))
	}
	at(0)
	at(40) // what a run before may have said has gone
	say(blocks)
	at(50)
	at(60)
	at(69)
	index.most, index.between = 0, func() { // it is said between the steps, and stays
		if err := sp.Apply(t.Context(), &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Tier: event.External, Engine: blocks[:10]}}}, nil); err != nil {
			t.Error(err)
		}
	}
	at(80)
	if h := sp.Pools()[0].Blocks; h != 10 || index.most == 0 || index.most > poolRuns {
		t.Errorf("%d blocks are left, at most %d were taken out at a time", h, index.most)
	}
}

// stepsWatched notes how many blocks a holder has less when that is published, at most.
type stepsWatched struct {
	*core.Radix
	held    map[[2]uint32]int
	most    int
	between func() // called the first time that it is less
}

func (x *stepsWatched) Held(h core.Holder, t event.Tier) int {
	n, key := x.Radix.Held(h, t), [2]uint32{h, uint32(t)}
	if less := x.held[key] - n; less > 0 {
		x.most = max(x.most, less)
		if f := x.between; f != nil {
			x.between = nil
			f()
		}
	}
	x.held[key] = n
	return n
}
