package route

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// fleet returns a router for the workers 0 … n-1 and its index. Each worker
// holds a part of the prompt, in eighths, and has a live request with half of
// it.
func fleet(tb testing.TB, n int, prompt []uint64, change func(*Settings)) (*Router, *shard.Space) {
	tb.Helper()
	set := shard.New(shard.Config{})
	tb.Cleanup(set.Close)
	space, err := set.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		tb.Fatal(err)
	}
	settings := DefaultSettings()
	if change != nil {
		change(&settings)
	}
	r, err := New(Config{BlockSize: 16, Index: space, Settings: settings})
	if err != nil {
		tb.Fatal(err)
	}
	for w := range n {
		store(tb, space, uint64(w), 0, event.Device, prompt[:len(prompt)*(w%9)/8]...)
		if err := r.SetWorker(Worker{ID: uint64(w), TotalBlocks: 1 << 20}); err != nil {
			tb.Fatal(err)
		}
		err := r.Reserve(Reservation{
			RequestID: fmt.Sprint("live", w), Rank: shard.RankID{Worker: uint64(w)},
			Blocks: prompt[:len(prompt)/2], PromptTokens: 8 * len(prompt), NewTokens: 100,
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
	return r, space
}

// store makes the index believe that a rank holds a chain.
func store(tb testing.TB, space *shard.Space, worker uint64, rank uint32, tier event.Tier, chain ...uint64) {
	tb.Helper()
	if len(chain) == 0 {
		return
	}
	b := &event.Batch{Space: space.Key(), Worker: worker, Events: []event.Event{
		{Kind: event.Stored, Tier: tier, DPRank: rank, Engine: chain, Local: chain},
	}}
	if _, err := space.ApplyWait(context.Background(), b); err != nil {
		tb.Fatal(err)
	}
}

func prompt(blocks int) []uint64 {
	p := make([]uint64, blocks)
	for i := range p {
		p[i] = uint64(i)*0x9E3779B97F4A7C15 + 1
	}
	return p
}

// BenchmarkSelect is one choice, find_matches included, not booked.
func BenchmarkSelect(b *testing.B) {
	for _, workers := range []int{8, 64, 512, 4096} {
		for _, blocks := range []int{128, 512, 2048, 8192} {
			b.Run(fmt.Sprintf("workers=%d/blocks=%d", workers, blocks), func(b *testing.B) {
				local := prompt(blocks)
				r, _ := fleet(b, workers, local, nil)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.BestWorker(b.Context(), Prompt{Local: local}, Options{}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkSelectAndFree is a choice with its booking, and the booking's end.
func BenchmarkSelectAndFree(b *testing.B) {
	local := prompt(512)
	r, _ := fleet(b, 64, local, nil)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.BestWorker(b.Context(), Prompt{Local: local}, Options{RequestID: "r"}); err != nil {
			b.Fatal(err)
		}
		r.MarkPrefillComplete("r")
		r.Free("r")
	}
}

// BenchmarkExplain is a choice with its table, and under the lock how much of it: the longest
// that another call has waited for it, of most.
func BenchmarkExplain(b *testing.B) {
	for _, workers := range []int{8, 512, 4096} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			local := prompt(512)
			r, _ := fleet(b, workers, local, nil)
			var waits []time.Duration
			stop, done := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(done)
				tick := time.NewTicker(50 * time.Microsecond)
				defer tick.Stop()
				for {
					select {
					case <-stop:
						return
					case <-tick.C:
					}
					begun := time.Now()
					r.Stats()
					waits = append(waits, time.Since(begun))
				}
			}()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.BestWorker(b.Context(), Prompt{Local: local}, Options{Explain: true}); err != nil {
					b.Fatal(err)
				}
			}
			close(stop)
			<-done
			slices.Sort(waits)
			b.ReportMetric(float64(waits[len(waits)*9/10].Microseconds()), "p90-wait-µs")
		})
	}
}

// BenchmarkLookup is find_matches alone, on the same fleets.
func BenchmarkLookup(b *testing.B) {
	for _, workers := range []int{8, 64, 512, 4096} {
		for _, blocks := range []int{128, 512, 2048, 8192} {
			b.Run(fmt.Sprintf("workers=%d/blocks=%d", workers, blocks), func(b *testing.B) {
				local := prompt(blocks)
				_, space := fleet(b, workers, local, nil)
				var res shard.Result
				b.ReportAllocs()
				for b.Loop() {
					space.Find(local, &res)
				}
			})
		}
	}
}
