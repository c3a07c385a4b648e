package fleet

import (
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/route"
)

// Whatever workers come, change, are asked and leave: the adapters of a model are
// those of its engines, each with its workers in order.
func TestAdaptersAreThoseOfTheEngines(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	has := map[uint64][]string{} // by worker
	for step := range 2000 {
		w := worker(uint64(rng.IntN(6)), "m", "")
		w.Endpoints.HTTP = fmt.Sprintf("http://h%d", rng.IntN(2))
		names := []string{"a", "b", "c", "d"}[:rng.IntN(5)]
		was := (*Engine)(nil)
		if len(f.Models()) > 0 {
			was = f.Models()[0].Engine(w.ID)
		}
		switch rng.IntN(3) {
		case 0:
			f.RemoveWorker(t.Context(), w.Key())
			delete(has, w.ID)
		case 1:
			if len(names) > 0 {
				w.Lora = names[len(names)-1]
			}
			if err := f.SetWorker(w, false); err != nil {
				t.Fatal(err)
			}
			if was == nil || was.URL != w.Endpoints.HTTP { // else it stays the engine that was asked
				if has[w.ID] = nil; w.Lora != "" {
					has[w.ID] = []string{w.Lora}
				}
			}
		default:
			if was != nil {
				f.mu.Lock()
				was.model.learn(was, names)
				f.mu.Unlock()
				has[w.ID] = names
			}
		}
		if len(f.Models()) == 0 {
			continue
		}
		want := map[string][]uint64{}
		for _, id := range slices.Sorted(maps.Keys(has)) {
			for _, name := range has[id] {
				want[name] = append(want[name], id)
			}
		}
		if got := maps.Collect(f.Models()[0].loras.Range); !reflect.DeepEqual(got, want) {
			t.Fatalf("step %d: %v, want %v", step, got, want)
		}
	}
}
