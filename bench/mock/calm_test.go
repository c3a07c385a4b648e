package mock

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
)

// TestCalm: an engine that lets calm steps pass and one that looks at its requests in each
// report the same steps and events, hold the same blocks, and abort the same requests.
func TestCalm(t *testing.T) {
	passed := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 51))
		cfg := Config{BlockSize: 4 << rng.IntN(4), Blocks: 30 + rng.IntN(200), MaxRunning: 1 + rng.IntN(12), MaxBatched: 4 + rng.IntN(100)}
		if rng.IntN(2) == 0 {
			cfg.HostBlocks = rng.IntN(100)
		}
		var events [2][]string
		var engines [2]*Engine
		for i := range engines {
			e, err := New(cfg, func(ev *event.Event) { events[i] = append(events[i], fmt.Sprintf("%+v", *ev)) })
			if err != nil {
				t.Fatal(err)
			}
			engines[i] = e
		}
		h, id := trace.NewHasher(4, cfg.BlockSize), uint64(0)
		for step := range 2000 {
			if rng.IntN(30) == 0 {
				r := randomRequest(rng, h, id, cfg.BlockSize*cfg.Blocks/2)
				id++
				for _, e := range engines {
					if err := e.Admit(r); err != nil {
						t.Fatal(err)
					}
				}
			}
			if rng.IntN(100) == 0 && id > 0 {
				n := rng.Uint64N(id)
				if a, b := engines[0].Abort(n), engines[1].Abort(n); a != b {
					t.Fatalf("seed %d, step %d: request %d aborted %v and %v", seed, step, n, a, b)
				}
			}
			engines[1].settle()
			before := engines[0].calm.left
			a, b := engines[0].Step(), engines[1].Step()
			if engines[0].calm.left < before && engines[0].calm.passed > 0 {
				passed++
			}
			if !reflect.DeepEqual(a, b) || engines[0].Load() != engines[1].Load() {
				t.Fatalf("seed %d, step %d: %+v and %+v", seed, step, a, b)
			}
			if !slices.Equal(events[0], events[1]) || step%50 == 0 && !slices.Equal(engines[0].AppendHeld(nil), engines[1].AppendHeld(nil)) {
				t.Fatalf("seed %d, step %d: events or blocks differ", seed, step)
			}
		}
	}
	if passed < 1000 {
		t.Errorf("%d steps were calm: too few for this test", passed)
	}
}
