package console

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// Without events a rank holds what the router guesses, and no tree is said to be empty.
func TestGuessesAreShown(t *testing.T) {
	guessed := fleet.New(fleet.Config{Route: route.DefaultSettings(), Index: fleet.Approximate, Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := guessed.Close(); err != nil {
			t.Error(err)
		}
	})
	w := registry.Worker{ID: ownWorker, Model: ownSpace.Model, BlockSize: ownSpace.BlockSize, Group: ownSpace.Group, Endpoints: registry.Endpoints{HTTP: "http://127.0.0.1:1"}}
	if err := guessed.SetWorker(w, false); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, func(c *Config) { c.Models = guessed.Models })
	m := guessed.Models()[0]
	if _, err := m.Router.BestWorker(t.Context(), route.Prompt{Local: []uint64{1, 2, 3}, Length: 12}, route.Options{RequestID: "a"}); err != nil {
		t.Fatal(err)
	}
	m.Cache.Placed(shard.RankID{Worker: 99}, []uint64{1}) // has left meanwhile
	s := newSampler(&f.cfg)
	s.look(time.Now())
	sp := s.spaces[ownSpace]
	if r := sp.ranks[shard.RankID{Worker: ownWorker}]; r.held != 3 || sp.blocks != 3 || sp.ranks[shard.RankID{Worker: 99}] != nil {
		t.Errorf("%d blocks of %d are held", r.held, sp.blocks)
	}
	if a := f.get("api/worker?id=5"); !strings.Contains(string(a.Body), `"device":3`) {
		t.Errorf("%s", a.Body)
	}
	for _, args := range []string{"", "?model=m"} {
		if a := f.get("api/prefixes" + args); a.Status != 404 || !strings.Contains(string(a.Body), "without events") {
			t.Errorf("%d %s", a.Status, a.Body)
		}
	}
}
