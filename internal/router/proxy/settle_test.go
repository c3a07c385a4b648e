package proxy

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// TestOtherRoutersAreHeardFirst: a request that would go to another router's worker, where requests come
// to both at one moment, is put off until that one's word is there, and served then.
func TestOtherRoutersAreHeardFirst(t *testing.T) {
	l := newLab(t, setup{engines: 2, fleet: func(c *fleet.Config) { c.Route.Mode = "auto" }, proxy: func(c *Config) { c.Queue = 10 }})
	r := l.model().Router
	r.SetDelay(20 * time.Millisecond)
	n := 0
	l.eventually(func() error { // another router's requests come at one moment with this one's, or at another if this is slow
		n++
		id := fmt.Sprint(n)
		if _, err := r.BestWorker(t.Context(), route.Prompt{Local: []uint64{1}}, route.Options{RequestID: id}); err != nil {
			t.Fatal(err)
		}
		k := load.Key{Owner: 2, ID: id}
		r.Apply(load.Change{Kind: load.Added, Key: k, Request: load.Request{NewTokens: load.MaxCount, Prefilled: true}})
		r.Apply(load.Change{Kind: load.Freed, Key: k})
		r.Free(id)
		if err := r.Reserve(route.Reservation{RequestID: "own", Rank: shard.RankID{Worker: 0}, PromptTokens: 1 << 20, NewTokens: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		defer r.Free("own")
		was := r.Stats().Settled
		status, text, h := l.post("/v1/completions", short)
		if status != 200 || h.Get(headerWorker) != "1" {
			t.Fatalf("%d %s of worker %s, want 1", status, text, h.Get(headerWorker))
		}
		if r.Stats().Settled == was {
			return errors.New("nothing was put off")
		}
		return nil
	})
	l.idle()
}
