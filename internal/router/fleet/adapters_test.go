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

// Whatever workers come, change, are asked and leave: the adapters of a model, and the
// names that it goes by, are those of its engines, each with its workers in order.
func TestAdaptersAreThoseOfTheEngines(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	has, goes := map[uint64][]string{}, map[uint64][]string{} // by worker
	for step := range 2000 {
		w := worker(uint64(rng.IntN(6)), "m", "")
		w.Endpoints.HTTP = fmt.Sprintf("http://h%d", rng.IntN(2))
		loras := []string{"a", "b", "c", "d"}[:rng.IntN(5)]
		served := []string{"m", "n", "o"}[:rng.IntN(4)]
		was := (*Engine)(nil)
		if len(f.Models()) > 0 {
			was = f.Models()[0].Engine(w.ID)
		}
		switch rng.IntN(3) {
		case 0:
			f.RemoveWorker(w.Key())
			delete(has, w.ID)
			delete(goes, w.ID)
		case 1:
			if len(loras) > 0 {
				w.Lora = loras[len(loras)-1]
			}
			if err := f.SetWorker(w, false); err != nil {
				t.Fatal(err)
			}
			if was == nil || was.URL != w.Endpoints.HTTP { // else it stays the engine that was asked
				goes[w.ID] = nil
				if has[w.ID] = nil; w.Lora != "" {
					has[w.ID] = []string{w.Lora}
				}
			}
		default:
			if was != nil {
				f.mu.Lock()
				was.model.learn(was, listed{adapters: loras, served: served})
				f.mu.Unlock()
				has[w.ID], goes[w.ID] = loras, served
			}
		}
		if len(f.Models()) == 0 {
			continue
		}
		for _, c := range []struct {
			of  map[uint64][]string
			got names
		}{{has, f.Models()[0].loras}, {goes, f.Models()[0].served}} {
			want := map[string][]uint64{}
			for _, id := range slices.Sorted(maps.Keys(c.of)) {
				for _, name := range c.of[id] {
					want[name] = append(want[name], id)
				}
			}
			if got := maps.Collect(c.got.at.Range); !reflect.DeepEqual(got, want) {
				t.Fatalf("step %d: %v, want %v", step, got, want)
			}
		}
	}
}
