package bench

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// implementations are what every benchmark runs on. limit is how many held
// (holder, block) pairs an implementation takes in reasonable time; larger
// benchmarks leave it out.
var implementations = []struct {
	name  string
	limit int
	make  func() core.Index
}{
	{"oracle", 1 << 17, func() core.Index { return core.NewOracle() }},
	{"radix", 1 << 30, func() core.Index { return core.NewRadix(core.Options{}) }},
}

// each runs f as a benchmark on every implementation that takes pairs.
func each(b *testing.B, pairs int, f func(b *testing.B, make func() core.Index)) {
	ran := false
	for _, im := range implementations {
		if pairs <= im.limit {
			ran = true
			b.Run("index="+im.name, func(b *testing.B) {
				b.ReportAllocs()
				f(b, im.make)
			})
		}
	}
	if !ran {
		b.Skip("too large for every implementation")
	}
}

// chain is the hashes of consecutive blocks from a root.
type chain struct{ engine, local []uint64 }

// newChains makes n chains of length blocks that share nothing.
func newChains(seed uint64, n, length int) []chain {
	r := rand.New(rand.NewPCG(seed, 2))
	hashes := make([]uint64, 2*n*length)
	for i := range hashes {
		hashes[i] = r.Uint64()
	}
	out := make([]chain, n)
	for i := range out {
		h := hashes[2*i*length : 2*(i+1)*length]
		out[i] = chain{h[:length:length], h[length:]}
	}
	return out
}

// stored is the event that stores blocks [from, to) of c.
func (c chain) stored(from, to int) *event.Event {
	ev := &event.Event{Kind: event.Stored, Engine: c.engine[from:to], Local: c.local[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, c.engine[from-1]
	}
	return ev
}

func removed(engine []uint64) *event.Event {
	return &event.Event{Kind: event.Removed, Engine: engine}
}

// heads are the events that store the first n blocks of each chain.
func heads(chains []chain, n int) []*event.Event {
	out := make([]*event.Event, len(chains))
	for i, c := range chains {
		out[i] = c.stored(0, n)
	}
	return out
}

// rounds runs work(0) … work(n-1) as the benchmark's operations, over and
// over; prepare, untimed, makes the index ready for each new round.
func rounds(b *testing.B, n int, prepare func(), work func(i int)) {
	b.Helper()
	i := n
	for b.Loop() {
		if i == n {
			b.StopTimer()
			prepare()
			i = 0
			b.StartTimer()
		}
		work(i)
		i++
	}
}

// expect stops a benchmark whose operations did not do what they measure.
func expect(b *testing.B, what string, got, want int) {
	b.Helper()
	if got != want {
		b.Fatalf("%s: %d blocks, want %d", what, got, want)
	}
}
