package fleet

import (
	"errors"
	"io"
	"log/slog"
	"math"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

type link struct{ closed *int }

func (l link) Close() error { *l.closed++; return nil }

func worker(id uint64, model, group string) registry.Worker {
	return registry.Worker{ID: id, Model: model, Group: group, BlockSize: 16, Ranks: []uint32{2, 3},
		Endpoints: registry.Endpoints{HTTP: "http://h/"}}
}

func TestModels(t *testing.T) {
	closed := 0
	f := New(Config{Route: route.DefaultSettings(), MaxModels: 3, Loras: map[string]string{"lora": "b", "stray": "x"},
		Log: slog.New(slog.DiscardHandler)})
	for i, w := range []registry.Worker{worker(1, "b", ""), worker(2, "b", ""), worker(1, "a", "g"), worker(1, "b", "g")} {
		if err := f.SetWorker(w, false); err != nil {
			t.Fatal(err)
		}
		if i == 2 { // two spaces are there already, and one comes
			if err := f.Link(func(event.Space, *route.Router) (io.Closer, error) { return link{&closed}, nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := f.SetWorker(worker(1, "c", ""), false); !errors.Is(err, ErrTooManyModels) {
		t.Errorf("a fourth model: %v", err)
	}
	for _, url := range []string{"h:8000", "ftp://h", "http://", "http://h:x"} {
		w := worker(5, "b", "")
		if w.Endpoints.HTTP = url; !errors.Is(f.SetWorker(w, false), route.ErrSettings) {
			t.Errorf("the address %q is accepted", url)
		}
	}
	w := worker(5, "b", "")
	if w.Ranks = []uint32{0, math.MaxUint32}; !errors.Is(f.SetWorker(w, false), route.ErrSettings) {
		t.Error("a worker of 2^32 ranks is accepted")
	}
	if got := f.Names(); !slices.Equal(got, []string{"a", "b", "lora"}) {
		t.Errorf("names %v", got)
	}
	for _, c := range []struct {
		name, group, want, lora string // want "" for none
	}{
		{"b", "", "b/", ""}, {"b", "g", "b/g", ""}, {"a", "", "a/g", ""}, {"a", "x", "", ""}, {"c", "", "", ""},
		{"lora", "", "b/", "lora"}, {"lora", "g", "b/g", "lora"}, {"stray", "", "", ""},
	} {
		got, lora := "", ""
		if m, l := f.Lookup(c.name, c.group); m != nil {
			got, lora = m.Space.Model+"/"+m.Group, l
		}
		if got != c.want || lora != c.lora {
			t.Errorf("%s in %q: %q %q, want %q %q", c.name, c.group, got, lora, c.want, c.lora)
		}
	}
	m, _ := f.Lookup("b", "")
	if loads := m.Router.Loads(); len(loads) != 4 || loads[0].DPRank != 2 || loads[1].DPRank != 3 {
		t.Errorf("ranks: %+v", loads)
	}
	if e := m.Engine(1); e.URL != "http://h" || e.Ranks() != 2 || m.Endpoint(1) != "http://h" || m.Endpoint(9) != "" {
		t.Errorf("%+v", e)
	}
	k := worker(1, "b", "")
	f.RemoveWorker(k.Key())
	f.RemoveWorker(k.Key())
	if m.Engine(1) != nil || len(m.Router.Loads()) != 2 || len(f.Models()) != 3 {
		t.Error("the worker is still there, or its model is not")
	}
	reads := worker(6, "b", "")
	reads.Pools = []event.Pool{{Name: "p"}}
	if err := f.SetWorker(reads, false); err != nil {
		t.Fatal(err)
	}
	for _, w := range m.Router.Workers() {
		if w.Pooled != (w.ID == 6) {
			t.Errorf("worker %d reads from a pool: %v", w.ID, w.Pooled)
		}
	}
	if err := f.Close(); err != nil || closed != 3 {
		t.Errorf("%d links closed: %v", closed, err)
	}
}

// What a snapshot of the registry does not have leaves; a worker without an
// address gets no requests.
func TestAdopt(t *testing.T) {
	f := New(Config{Route: route.DefaultSettings(), Index: Events, Set: shard.New(shard.Config{}), Log: slog.New(slog.DiscardHandler)})
	a, b := worker(1, "m", ""), worker(2, "m", "")
	b.Endpoints.HTTP = ""
	f.setWorkers([]registry.Entry{{Worker: a, Key: a.Key()}, {Worker: b, Key: b.Key()}})
	m := f.Models()[0]
	left := func(id uint64) string {
		for _, l := range m.Router.Loads() {
			if l.Worker == id {
				return l.Left.String()
			}
		}
		return "gone"
	}
	if left(1) != route.Eligible.String() || left(2) != route.Addressless.String() {
		t.Errorf("%s, %s", left(1), left(2))
	}
	f.setWorkers([]registry.Entry{{Worker: a, Key: a.Key(), Drained: true}})
	if left(1) != route.Draining.String() || left(2) != "gone" {
		t.Errorf("%s, %s", left(1), left(2))
	}
	f.Expire()
}

// TestLaterSpacesAreAsBusy: thresholds that were set for a model hold for its workers that come later with other blocks or in
// another group, too.
func TestLaterSpacesAreAsBusy(t *testing.T) {
	f := New(Config{Route: route.DefaultSettings(), Log: slog.New(slog.DiscardHandler)})
	if _, err := f.Open(event.Space{Model: "m", BlockSize: 16}); err != nil {
		t.Fatal(err)
	}
	few := 7
	if _, err := f.Models()[0].Router.SetThresholds(route.Thresholds{PrefillTokens: &few}); err != nil {
		t.Fatal(err)
	}
	for sp, want := range map[event.Space]bool{{Model: "m", BlockSize: 8}: true, {Model: "m", BlockSize: 16, Group: "g"}: true, {Model: "n", BlockSize: 16}: false} {
		m, err := f.Open(sp)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Router.Thresholds().PrefillTokens; (got != nil && *got == few) != want {
			t.Errorf("%+v: %v", sp, got)
		}
	}
}
