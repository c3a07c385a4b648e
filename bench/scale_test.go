package bench

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/clocktest"
)

// The fleet of the benchmarks at scale: each of 1,024 workers has a chain under
// each of 16 prompts that all of them share; 12 million unique blocks in all.
const (
	fleetWorkers = 1024
	fleetPrompts = 16
	promptBlocks = 64
	ownBlocks    = 704
)

// fleetChains returns the chains, worker by worker.
func fleetChains() []chain {
	prompts := newChains(20, fleetPrompts, promptBlocks)
	own := newChains(21, fleetWorkers*fleetPrompts, ownBlocks)
	out := make([]chain, len(own))
	for i, c := range own {
		p := prompts[i%fleetPrompts]
		out[i] = chain{slices.Concat(p.engine, c.engine), slices.Concat(p.local, c.local)}
	}
	return out
}

func workerOf(i int) core.Holder { return core.Holder(i / fleetPrompts) }

// spread reports percentiles of the durations, in the given unit.
func spread(b *testing.B, took []time.Duration, unit time.Duration, name string) {
	b.Helper()
	slices.Sort(took)
	for _, p := range []struct {
		name string
		at   float64
	}{{"p50", 0.5}, {"p99", 0.99}, {"p999", 0.999}, {"max", 1}} {
		i := min(int(p.at*float64(len(took))), len(took)-1)
		b.ReportMetric(float64(took[i])/float64(unit), p.name+"-"+name)
	}
}

// BenchmarkFleetLookup: an operation is one lookup of a worker's whole chain,
// which answers with all workers, beside a writer that evicts tails and stores
// them again.
func BenchmarkFleetLookup(b *testing.B) {
	if testing.Short() {
		b.Skip("12 million blocks")
	}
	chains := fleetChains()
	ix := core.NewRadix(core.Options{})
	for i, c := range chains {
		ix.Store(workerOf(i), c.stored(0, len(c.engine)), true)
	}
	var stop atomic.Bool
	var writer sync.WaitGroup
	var written atomic.Int64
	writer.Go(func() {
		r := rand.New(rand.NewPCG(22, 1))
		for !stop.Load() {
			i := r.IntN(len(chains))
			c, n := chains[i], span+r.IntN(ownBlocks-span)
			from := len(c.engine) - n
			tail := slices.Clone(c.engine[from:])
			slices.Reverse(tail)
			out := ix.Remove(workerOf(i), removed(tail), true)
			out.Add(ix.Store(workerOf(i), c.stored(from, len(c.engine)), true))
			written.Add(int64(out.Removed + out.Stored))
		}
	})
	var m core.Matches
	r := rand.New(rand.NewPCG(23, 1))
	took := make([]time.Duration, 0, 1<<20)
	start := time.Now()
	for b.Loop() {
		c := chains[r.IntN(len(chains))]
		t := time.Now()
		ix.Find(c.local, &m)
		if len(took) < cap(took) {
			took = append(took, time.Since(t))
		}
	}
	elapsed := time.Since(start)
	stop.Store(true)
	writer.Wait()
	if n, _ := m.Sum(event.Device); n != fleetWorkers {
		b.Fatalf("%d workers in an answer", n)
	}
	spread(b, took, time.Microsecond, "us")
	b.ReportMetric(float64(written.Load())/elapsed.Seconds()/1e6, "M-blocks/s-written")
	report(b, promptBlocks+ownBlocks, measured().compare(promptBlocks+ownBlocks))
}

// BenchmarkFleetGrow: an operation is one event of 64 blocks while the index
// grows from nothing to 12 million blocks, over and over. The longest ones are
// what readers' answers may lag behind by: tables that grow are in them, and
// the pages that the system hands out; but not the time that others' programs
// have the processor.
func BenchmarkFleetGrow(b *testing.B) {
	if testing.Short() {
		b.Skip("12 million blocks")
	}
	chains := fleetChains()
	const events = (promptBlocks + ownBlocks) / span
	var ix *core.Radix
	took := make([]time.Duration, 0, 1<<22)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	rounds(b, len(chains)*events, func() { ix = core.NewRadix(core.Options{}) }, func(i int) {
		c, at := chains[i/events], i%events*span
		ev := c.stored(at, at+span)
		t := clocktest.Thread()
		out := ix.Store(workerOf(i/events), ev, true)
		if len(took) < cap(took) {
			took = append(took, clocktest.Thread()-t)
		}
		expect(b, "stored", out.Stored, span)
	})
	spread(b, took, time.Microsecond, "us")
	report(b, span, storeFloor(span))
}
