package bench

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
	"github.com/kvatlas/kvatlas/shard"
)

// BenchmarkClearStop: an operation clears a rank that has many chains, or removes its worker, while another one
// stores eight blocks after eight. The most of the process's time that one of these takes is what everybody's
// events wait for that, without what others' programs take; what is kept is by how much the index is larger at the end than before the rank had stored.
func BenchmarkClearStop(b *testing.B) {
	space := event.Space{Model: "m", BlockSize: 16}
	for _, c := range []struct {
		chains, blocks int
		shared, remove bool
	}{
		{300_000, 1, false, false},
		{300_000, 1, true, false},
		{300_000, 1, false, true},
		{10, 100_000, false, false},
		{2_000, 500, false, false},
		{2_000, 500, true, false},
	} {
		b.Run(fmt.Sprintf("chains=%d/blocks=%d/shared=%v/removed=%v", c.chains, c.blocks, c.shared, c.remove), func(b *testing.B) {
			chains := newChains(30, c.chains, c.blocks)
			var longest []time.Duration
			var kept []int64
			for range b.N {
				b.StopTimer()
				set := shard.New(shard.Config{Shards: 1})
				sp, err := set.Open(space)
				if err != nil {
					b.Fatal(err)
				}
				ctx := context.Background()
				apply := func(worker uint64, ev *event.Event) core.Outcome {
					out, err := sp.ApplyWait(ctx, &event.Batch{Space: space, Worker: worker, Events: []event.Event{*ev}})
					if err != nil {
						b.Fatal(err)
					}
					return out
				}
				other := newChains(31, 1<<16, 8)
				for _, c := range other {
					apply(3, c.stored(0, 8))
				}
				used := func() int64 { n, _ := set.MemoryBudget(); return n }
				least := used()
				for _, of := range chains {
					apply(1, of.stored(0, c.blocks))
					if c.shared {
						apply(2, of.stored(0, c.blocks))
					}
				}
				runtime.GC()
				gc := debug.SetGCPercent(-1) // its time is not the writer's
				gone := make(chan struct{})
				b.StartTimer()
				if c.remove {
					go func() {
						defer close(gone)
						if err := sp.RemoveWorker(ctx, 1); err != nil {
							b.Error(err)
						}
					}()
				} else {
					close(gone)
					if err := sp.Apply(ctx, &event.Batch{Space: space, Worker: 1, Events: []event.Event{{Kind: event.Cleared, AllTiers: true}}}, nil); err != nil {
						b.Fatal(err)
					}
				}
				stop := time.Duration(0)
				for i := range 1 << 15 {
					t := clocktest.Process()
					tail := other[i%len(other)]
					apply(3, removed(tail.engine))
					apply(3, tail.stored(0, 8))
					stop = max(stop, clocktest.Process()-t)
				}
				<-gone
				b.StopTimer()
				debug.SetGCPercent(gc)
				longest, kept = append(longest, stop), append(kept, used()-least)
				set.Close()
			}
			spread(b, longest, time.Millisecond, "ms-stop")
			slices.Sort(kept)
			b.ReportMetric(float64(kept[len(kept)/2])/(1<<20), "MiB-kept")
		})
	}
}

// BenchmarkClearSteps: an operation clears one of two holders in steps as idle owners take them. The longest, of its thread's
// time and without the collector's, is what an event finds itself behind at most.
func BenchmarkClearSteps(b *testing.B) {
	for _, c := range []struct {
		chains, blocks int
		shared         bool
	}{{300_000, 1, false}, {300_000, 1, true}, {10, 100_000, false}, {2_000, 500, false}, {2_000, 500, true}} {
		b.Run(fmt.Sprintf("chains=%d/blocks=%d/shared=%v", c.chains, c.blocks, c.shared), func(b *testing.B) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			chains := newChains(32, c.chains, c.blocks)
			var steps []time.Duration
			whole := time.Duration(0)
			for range b.N {
				ix := core.NewRadix(core.Options{})
				for _, of := range chains {
					ix.Store(1, of.stored(0, c.blocks), true)
					if c.shared {
						ix.Store(2, of.stored(0, c.blocks), true)
					}
				}
				runtime.GC()
				gc := debug.SetGCPercent(-1)
				for left := true; left; {
					t := clocktest.Thread()
					left = ix.ClearSome(1, 512)
					steps = append(steps, clocktest.Thread()-t)
					whole += steps[len(steps)-1]
				}
				debug.SetGCPercent(gc)
			}
			spread(b, steps, time.Millisecond, "ms-step")
			b.ReportMetric(float64(whole)/float64(b.N)/float64(time.Millisecond), "ms-whole")
		})
	}
}
