package mock

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
)

// TestNames: the table has what a map has, however many those are.
func TestNames(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 52))
		most := 1 + rng.IntN(300)
		table, want := newNames(), map[uint64]int32{}
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
				r := 1 + rng.Int32N(1<<20)
				table.set(name, r)
				want[name] = r
			}
			if table.used != len(want) {
				t.Fatalf("seed %d: %d names, want %d", seed, table.used, len(want))
			}
			for _, name := range pool[:min(len(pool), 40)] {
				r, ok := table.get(name)
				if w, has := want[name]; ok != has || ok && r != w {
					t.Fatalf("seed %d: %x is %d, %v, want %d, %v", seed, name, r, ok, w, has)
				}
			}
		}
	}
}

// TestToldNames: engines to which their requests' names are told do what others do.
func TestToldNames(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 53))
	cfg := Config{BlockSize: 16, Blocks: 120, MaxRunning: 6, MaxBatched: 64}
	own, _ := New(cfg, func(*event.Event) {})
	told, _ := New(cfg, func(*event.Event) {})
	h := trace.NewHasher(4, cfg.BlockSize)
	for step := range 1000 {
		if rng.IntN(12) == 0 {
			r := randomRequest(rng, h, uint64(step), cfg.BlockSize*cfg.Blocks/2)
			named := *r
			named.Local = slices.Clone(r.Local)
			named.Names = cfg.Names([]uint64{}, named.Local)
			if err := own.Admit(r); err != nil {
				t.Fatal(err)
			}
			if err := told.Admit(&named); err != nil {
				t.Fatal(err)
			}
			if named.Names = append(named.Names, 1); told.Admit(&named) == nil {
				t.Fatal("too many names are admitted")
			}
			if named.Local = append(named.Local, 1); told.Admit(&named) == nil {
				t.Fatal("too many hashes are admitted")
			}
		}
		if a, b := own.Step(), told.Step(); !reflect.DeepEqual(a, b) || own.Load() != told.Load() {
			t.Fatalf("step %d: %+v and %+v", step, a, b)
		}
	}
	if a, b := own.AppendHeld(nil), told.AppendHeld(nil); len(a) == 0 || !reflect.DeepEqual(a, b) {
		t.Errorf("%d blocks are held, and %d where names were told", len(a), len(b))
	}
}
