package shard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
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

// restored returns what the events of a dump restore.
func restored(dumped []Dumped) []core.KnownHash {
	o := core.NewOracle()
	r := core.Restorer{Index: o}
	for i := range dumped {
		r.Add(&dumped[i].Event, dumped[i].Copies)
	}
	r.Finish()
	return o.KnownHashes(0)
}

// TestDumpsInSteps: ranks are dumped a few blocks at a time while batches go on being applied, ranks are cleared and what
// they had is taken apart. Each dump is what the oracle's holder had after the batches before it.
func TestDumpsInSteps(t *testing.T) {
	for _, shards := range []int{1, 3} {
		for _, g := range short() {
			for _, seed := range coretest.Seeds(max(1, g.Seeds/20)) {
				r := rand.New(rand.NewPCG(seed, 42))
				sp := openSpace(t, Config{Shards: shards, dumpStep: 1 + r.IntN(60)})
				o := core.NewOracle()
				var dumps sync.WaitGroup
				ops := often(history(g, seed), r)
				for i, op := range ops[:min(len(ops), 500)] {
					if err := sp.Apply(t.Context(), batchOf([]coretest.Op{op}), nil); err != nil {
						t.Fatal(err)
					}
					op.Apply(o)
					if r.IntN(4) > 0 {
						continue
					}
					h := ops[r.IntN(i+1)].Holder
					_, wait, err := sp.BeginDump(t.Context(), rankOf(h))
					if err != nil {
						t.Fatal(err)
					}
					want := o.KnownHashes(h)
					dumps.Go(func() {
						if dumped, err := wait(t.Context()); err != nil || !reflect.DeepEqual(restored(dumped), want) {
							t.Errorf("%s, seed %d: the dump of holder %d after operation %d restores\n  have %v\n  want %v, %v", g.Name, seed, h, i, restored(dumped), want, err)
						}
					})
				}
				dumps.Wait()
			}
		}
	}
}

// TestADumpThatBreaksOff: who does not wait for room any more ends the dump, and the owner copies nothing for it.
func TestADumpThatBreaksOff(t *testing.T) {
	index := &dumpKeeper{Radix: core.NewRadix(core.Options{})}
	sp := openSpace(t, Config{Shards: 1, dumpStep: 1, NewIndex: func() core.Index { return index }})
	for i := range uint64(10) {
		apply(t, sp, chain(1, 0, 100+i))
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun, wait, err := sp.BeginDump(ctx, RankID{Worker: 1})
	if err != nil {
		t.Fatal(err)
	}
	begun() // which does not wait for what is copied after
	if index.last.Next(0) {
		t.Fatal("all is copied where the dump begins")
	}
	cancel()
	if dumped, err := wait(ctx); !errors.Is(err, context.Canceled) || dumped != nil {
		t.Errorf("%v, %v", dumped, err)
	}
	copied := 0
	done := index.last.Next(100)
	index.last.Events(func(*event.Event, []uint32) bool {
		copied++
		return true
	})
	if !done || copied == 0 || copied == 10 {
		t.Errorf("%v: %d of 10 chains are copied after its end", done, copied)
	}
}

// dumpKeeper keeps the dump that was begun last.
type dumpKeeper struct {
	*core.Radix
	last *core.Dump
}

func (x *dumpKeeper) BeginDump(h core.Holder) *core.Dump {
	x.last = x.Radix.BeginDump(h)
	return x.last
}
