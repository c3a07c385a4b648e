package bench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

const (
	holders = 64
	pairs   = 1 << 17 // blocks held at most in most write benchmarks
	span    = 64      // blocks of an event
)

// storeFloor: find the place, write the blocks' hashes.
func storeFloor(blocks int) float64 {
	f := measured()
	return f.dependent + float64(blocks)*f.copied
}

// BenchmarkStoreNew: an operation is one event that stores a new chain.
func BenchmarkStoreNew(b *testing.B) {
	for _, blocks := range []int{16, span, 512} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			each(b, pairs, func(b *testing.B, make func() core.Index) {
				events := heads(newChains(5, pairs/blocks, blocks), blocks)
				var ix core.Index
				rounds(b, len(events), func() { ix = make() }, func(i int) {
					expect(b, "stored", ix.Store(core.Holder(i%holders), events[i], true).Stored, blocks)
				})
				report(b, blocks, storeFloor(blocks))
			})
		})
	}
}

// BenchmarkStoreKnown: an operation is one event of a second worker that
// stores a chain which another has. Floor: find it, compare it.
func BenchmarkStoreKnown(b *testing.B) {
	for _, blocks := range []int{16, span, 512} {
		b.Run(fmt.Sprintf("blocks=%d", blocks), func(b *testing.B) {
			each(b, pairs, func(b *testing.B, make func() core.Index) {
				events := heads(newChains(6, pairs/2/blocks, blocks), blocks)
				var ix core.Index
				rounds(b, len(events), func() {
					ix = make()
					for _, ev := range events {
						ix.Store(0, ev, true)
					}
				}, func(i int) {
					expect(b, "stored", ix.Store(1, events[i], true).Stored, blocks)
				})
				f := measured()
				report(b, blocks, f.dependent+2*f.compare(blocks))
			})
		})
	}
}

// BenchmarkStoreOne: an operation is one event that appends one block, as
// decoding does, to one of many chains in turn.
func BenchmarkStoreOne(b *testing.B) {
	each(b, pairs, func(b *testing.B, make func() core.Index) {
		const n = 1 << 10
		// The first block of every chain, then the second, …; they lie as they
		// do in a decoded message.
		var events []event.Event
		var hashes [2 * pairs]uint64
		chains := newChains(7, n, pairs/n)
		for at := range pairs / n {
			for _, c := range chains {
				ev := *c.stored(at, at+1)
				i := 2 * len(events)
				hashes[i], hashes[i+1] = ev.Engine[0], ev.Local[0]
				ev.Engine, ev.Local = hashes[i:i+1], hashes[i+1:i+2]
				events = append(events, ev)
			}
		}
		var ix core.Index
		rounds(b, len(events)-n, func() {
			ix = make()
			for i := range n {
				ix.Store(core.Holder(i%holders), &events[i], true)
			}
		}, func(i int) {
			if p, ok := ix.(core.Prefetcher); ok && n+i+1 < len(events) {
				next := core.Holder((i + 1) % n % holders)
				p.Prefetch(next, &events[n+i+1])
				p.PrefetchSingles(next, events[n+i+1].Engine)
			}
			expect(b, "stored", ix.Store(core.Holder(i%n%holders), &events[n+i], true).Stored, 1)
		})
		report(b, 1, storeFloor(1))
	})
}

// BenchmarkStoreChildren: an operation is one event that stores one more child
// of the same block, up to 100,000.
func BenchmarkStoreChildren(b *testing.B) {
	const children = 100_000
	each(b, children, func(b *testing.B, make func() core.Index) {
		trunk := newChains(8, 1, span)[0]
		kids := heads(newChains(9, children, 1), 1)
		for _, ev := range kids {
			ev.HasParent, ev.Parent = true, trunk.engine[span-1]
		}
		var ix core.Index
		rounds(b, children, func() {
			ix = make()
			for h := range core.Holder(holders) {
				ix.Store(h, trunk.stored(0, span), true)
			}
		}, func(i int) {
			expect(b, "stored", ix.Store(core.Holder(i%holders), kids[i], true).Stored, 1)
		})
		report(b, 1, storeFloor(1))
	})
}

// full is an index in which holder i%holders has chain i.
func full(make func() core.Index, chains []chain) core.Index {
	ix := make()
	for i, c := range chains {
		ix.Store(core.Holder(i%holders), c.stored(0, len(c.engine)), true)
	}
	return ix
}

// BenchmarkRemoveTail: an operation is one event that removes the last blocks
// of a chain, tail first, as engines evict. Floor: find the place; read the
// event.
func BenchmarkRemoveTail(b *testing.B) {
	const length = 512
	each(b, pairs, func(b *testing.B, make func() core.Index) {
		chains := newChains(10, pairs/length, length)
		var events []*event.Event // the tails of all chains, then what is before them, …
		for at := length; at > 0; at -= span {
			for _, c := range chains {
				tail := append([]uint64(nil), c.engine[at-span:at]...)
				for i := range span / 2 {
					tail[i], tail[span-1-i] = tail[span-1-i], tail[i]
				}
				events = append(events, removed(tail))
			}
		}
		var ix core.Index
		rounds(b, len(events), func() { ix = full(make, chains) }, func(i int) {
			expect(b, "removed", ix.Remove(core.Holder(i%len(chains)%holders), events[i], true).Removed, span)
		})
		report(b, span, measured().dependent+measured().compare(span))
	})
}

// BenchmarkRemoveShuffled: an operation is one event that removes blocks of
// one holder picked at random from all its chains. Floor: one access to a
// random line for each.
func BenchmarkRemoveShuffled(b *testing.B) {
	const length = 512
	each(b, pairs, func(b *testing.B, make func() core.Index) {
		chains := newChains(11, pairs/length, length)
		var of [holders][]uint64
		for i, c := range chains {
			of[i%holders] = append(of[i%holders], c.engine...)
		}
		r := rand.New(rand.NewPCG(12, 1))
		for _, engine := range of {
			r.Shuffle(len(engine), func(i, j int) { engine[i], engine[j] = engine[j], engine[i] })
		}
		var events []*event.Event // one of each holder, then the next of each, …
		for at := 0; at < len(of[0]); at += span {
			for _, engine := range of {
				events = append(events, removed(engine[at:at+span]))
			}
		}
		var ix core.Index
		rounds(b, len(events), func() { ix = full(make, chains) }, func(i int) {
			expect(b, "removed", ix.Remove(core.Holder(i%holders), events[i], true).Removed, span)
		})
		report(b, span, span*measured().scattered)
	})
}

// BenchmarkRemoveOwn: as RemoveTail, by one who calls the blocks otherwise than those who stored them
// before. Floor: the same.
func BenchmarkRemoveOwn(b *testing.B) {
	const length = 512
	each(b, pairs, func(b *testing.B, make func() core.Index) {
		chains := newChains(16, pairs/length, length)
		var events []*event.Event
		var own []*event.Event
		for _, c := range chains {
			ev := *c.stored(0, length)
			ev.Engine = append([]uint64(nil), ev.Engine...)
			for i := range ev.Engine {
				ev.Engine[i] ^= 1 << 63
			}
			own = append(own, &ev)
		}
		for at := length; at > 0; at -= span {
			for _, ev := range own {
				tail := append([]uint64(nil), ev.Engine[at-span:at]...)
				slices.Reverse(tail)
				events = append(events, removed(tail))
			}
		}
		var ix core.Index
		rounds(b, len(events), func() {
			ix = full(make, chains)
			for _, ev := range own {
				ix.Store(holders, ev, true)
			}
		}, func(i int) {
			expect(b, "removed", ix.Remove(holders, events[i], true).Removed, span)
		})
		report(b, span, measured().dependent+measured().compare(span))
	})
}

// BenchmarkRemoveUnknown: an operation is one event that removes blocks which
// nobody stored. Floor: as for shuffled ones.
func BenchmarkRemoveUnknown(b *testing.B) {
	each(b, pairs, func(b *testing.B, make func() core.Index) {
		ix := full(make, newChains(13, pairs/span, span))
		var absent []*event.Event
		for _, c := range newChains(14, pairs/span, span) {
			absent = append(absent, removed(c.engine))
		}
		i := 0
		for b.Loop() {
			expect(b, "unknown", ix.Remove(core.Holder(i%holders), absent[i], true).Unknown, span)
			i = (i + 1) % len(absent)
		}
		report(b, span, span*measured().scattered)
	})
}

// BenchmarkClear: an operation clears one of 256 workers, each of which has
// chains of its own and one that all share. Floor: one random access for each
// of the worker's chains.
func BenchmarkClear(b *testing.B) {
	const workers, length = 256, 128
	for _, own := range []int{1, 3, 30} {
		b.Run(fmt.Sprintf("workers=%d/chains=%d", workers, own+1), func(b *testing.B) {
			each(b, workers*(own+1)*length, func(b *testing.B, make func() core.Index) {
				chains := newChains(15, workers*own+1, length)
				var ix core.Index
				rounds(b, workers, func() {
					ix = make()
					for w := range workers {
						ix.Store(core.Holder(w), chains[workers*own].stored(0, length), true)
						for _, c := range chains[w*own : (w+1)*own] {
							ix.Store(core.Holder(w), c.stored(0, length), true)
						}
					}
				}, func(i int) {
					expect(b, "removed", ix.Clear(core.Holder(i), 0, true).Removed, (own+1)*length)
				})
				report(b, (own+1)*length, float64(own+1)*measured().dependent)
			})
		})
	}
}
