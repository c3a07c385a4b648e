package mock

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/event"
)

// TestMemory: engines whose tables are in one memory, and to which their requests' names are told,
// do what each does by itself; tables do not overlap, and begin on lines of their own.
func TestMemory(t *testing.T) {
	m := new(Memory)
	a, b, c := table[bool](m, 100), table[nameSlot](m, 1<<18), table[int32](m, 1)
	for i := range a {
		a[i] = true
	}
	if c[0] != 0 || b[0] != (nameSlot{}) || b[len(b)-1] != (nameSlot{}) || len(a) != 100 || len(b) != 1<<18 {
		t.Fatal("tables overlap, or are not zero")
	}
	rng := rand.New(rand.NewPCG(1, 53))
	cfg := Config{BlockSize: 16, Blocks: 120, MaxRunning: 6, MaxBatched: 64}
	var own, shared []*Engine
	nothing := func(*event.Event) {}
	for range 3 {
		e, _ := New(cfg, nothing)
		own = append(own, e)
		of := cfg
		of.Memory = m
		e, _ = New(of, nothing)
		shared = append(shared, e)
	}
	h := trace.NewHasher(4, cfg.BlockSize)
	for step := range 3000 {
		i := rng.IntN(3)
		if rng.IntN(12) == 0 {
			r := randomRequest(rng, h, uint64(step), cfg.BlockSize*cfg.Blocks/2)
			named := *r
			named.Names = cfg.Names(nil, append(append([]uint64(nil), r.Prompt...), r.Generated...))
			if err := own[i].Admit(r); err != nil {
				t.Fatal(err)
			}
			if err := shared[i].Admit(&named); err != nil {
				t.Fatal(err)
			}
			if named.Names = append(named.Names, 1); shared[i].Admit(&named) == nil {
				t.Fatal("too many names are admitted")
			}
		}
		if a, b := own[i].Step(), shared[i].Step(); !reflect.DeepEqual(a, b) || own[i].Load() != shared[i].Load() {
			t.Fatalf("step %d: %+v and %+v", step, a, b)
		}
	}
	for i := range own {
		if a, b := own[i].AppendHeld(nil), shared[i].AppendHeld(nil); len(a) == 0 || !reflect.DeepEqual(a, b) {
			t.Errorf("engine %d holds %d blocks, %d in shared memory", i, len(a), len(b))
		}
	}
}
