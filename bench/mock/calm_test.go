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

// TestNames: the table has what a map has, full to what it is made for, and empties.
func TestNames(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 52))
		most := 1 + rng.IntN(300)
		table, want := newNames(nil, most), map[uint64]int32{}
		pool := make([]uint64, 2*most) // names that clash: few, and near each other
		for i := range pool {
			pool[i] = rng.Uint64N(uint64(4*most)) << (60 * rng.IntN(2))
		}
		for range 5000 {
			name := pool[rng.IntN(len(pool))]
			switch _, has := want[name]; {
			case has && rng.IntN(2) == 0, len(want) == most && !has:
				table.remove(name)
				delete(want, name)
			default:
				b := rng.Int32()
				table.set(name, b)
				want[name] = b
			}
			if table.used != len(want) {
				t.Fatalf("seed %d: %d names, want %d", seed, table.used, len(want))
			}
			for _, name := range pool[:min(len(pool), 40)] {
				b, ok := table.get(name)
				if w, has := want[name]; ok != has || ok && b != w {
					t.Fatalf("seed %d: %x is %d, %v, want %d, %v", seed, name, b, ok, w, has)
				}
			}
		}
		table.clear()
		if _, ok := table.get(pool[0]); ok || table.used != 0 {
			t.Errorf("seed %d: something is left of an empty table", seed)
		}
	}
}
