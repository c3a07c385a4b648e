package core_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

// TestUnfoldFindsWhatHoldersHold asks for prompts by sequence hashes: what
// comes back is the prompt's own beginning, and no holder has more of it.
func TestUnfoldFindsWhatHoldersHold(t *testing.T) {
	for _, g := range coretest.Solo() {
		for _, seed := range coretest.Seeds(1) {
			x, o := core.NewRadix(core.Options{}), core.NewOracle()
			prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 1)))
			for i, op := range g.History(seed) {
				op.Apply(x)
				op.Apply(o)
				prompts.Note(&op)
				if (i+1)%g.Interval != 0 {
					continue
				}
				for range 8 {
					prompt := prompts.Next(o)
					got := x.Unfold([]uint64{7}, blockhash.SequenceHashes(nil, prompt))[1:]
					if len(got) > len(prompt) || !slices.Equal(got, prompt[:len(got)]) {
						t.Fatalf("%s, seed %d, operation %d: %d is unfolded as %d", g.Name, seed, i, prompt, got)
					}
					for h, d := range coretest.OracleAnswer(o, prompt) {
						if int(d[event.External]) > len(got) {
							t.Fatalf("%s, seed %d, operation %d: holder %d has %d blocks of %d, unfolded as %d", g.Name, seed, i, h, d, prompt, got)
						}
					}
				}
			}
		}
	}
}

// TestUnfoldBesideAWriter unfolds a chain that stays while others come and go
// at its positions.
func TestUnfoldBesideAWriter(t *testing.T) {
	x := core.NewRadix(core.Options{})
	chain := make([]uint64, 40)
	for i := range chain {
		chain[i] = uint64(i + 1)
	}
	x.Store(0, &event.Event{Kind: event.Stored, Engine: chain, Local: chain}, false)
	seq := blockhash.SequenceHashes(nil, chain)
	var readers sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			for {
				if got := x.Unfold(nil, seq); !slices.Equal(got, chain) {
					t.Errorf("unfolded as %d", got)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for n := range 3000 {
		at, e := rng.IntN(len(chain)-1), uint64(1000+n)
		ev := event.Event{Kind: event.Stored, HasParent: true, Parent: chain[at], Engine: []uint64{e, e + 1<<32}, Local: []uint64{e, e}}
		x.Store(0, &ev, false)
		if n >= 500 {
			x.Remove(0, &event.Event{Kind: event.Removed, Engine: []uint64{e - 500, e - 500 + 1<<32}}, false)
		}
	}
	close(stop)
	readers.Wait()
}
