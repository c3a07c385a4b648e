package proxy

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
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
	r.SetDelay(20*time.Millisecond, 20*time.Millisecond)
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

// TestPutOffInTheQueue: a request that waits, and is put off for another router when its turn comes, keeps its place
// and pays once if nothing comes of it: a later one of another tenant does not go before it.
func TestPutOffInTheQueue(t *testing.T) {
	l := newLab(t, setup{engines: 2, fleet: func(c *fleet.Config) { c.Route.Mode = "auto" }, proxy: func(c *Config) { c.Queue = 10 }})
	synctest.Test(t, func(t *testing.T) {
		r, n := l.model().Router, 0
		other := func(added bool) { // the other router's request at worker 1
			c := load.Change{Kind: load.Freed, Key: load.Key{Owner: 2, ID: fmt.Sprint(n)}}
			if added {
				n++
				c = load.Change{Kind: load.Added, Key: load.Key{Owner: 2, ID: fmt.Sprint(n)}, Rank: shard.RankID{Worker: 1}}
				c.Request = load.Request{PromptTokens: 1 << 20, NewTokens: 1 << 20}
			}
			r.Apply(c)
			l.proxy.Relieved(r)
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan string, 2)
		come := func(tenant string) {
			q := &call{m: l.model(), id: tenant, payer: payer{name: tenant}, arrival: time.Now(), prompt: route.Prompt{Local: make([]uint64, 1000)}}
			go func() {
				if _, err := l.proxy.choose(ctx, q); err == nil {
					served <- tenant
				} else {
					served <- err.Error()
				}
			}()
			synctest.Wait()
		}

		if err := r.Reserve(route.Reservation{RequestID: "own", Rank: shard.RankID{Worker: 0}, PromptTokens: 1 << 20, NewTokens: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		other(true)
		come("first")
		if len(served) > 0 || l.proxy.queue.waiting(l.model()) != 1 {
			t.Fatal("it does not wait while both workers are busy")
		}
		time.Sleep(10 * time.Millisecond) // so that the first is before the second in any order
		come("second")
		r.SetDelay(20*time.Millisecond, 20*time.Millisecond)
		if _, err := r.BestWorker(ctx, route.Prompt{Local: []uint64{1}}, route.Options{RequestID: "crowd"}); err != nil {
			t.Fatal(err)
		}
		r.Apply(load.Change{Kind: load.Added, Key: load.Key{Owner: 2, ID: "crowd"}, Request: load.Request{NewTokens: load.MaxCount, Prefilled: true}})
		r.Free("crowd")
		if other(false); r.Stats().Settled != 1 || len(served) > 0 {
			t.Fatalf("the worker is the other router's, and it is put off %d times, %d are served", r.Stats().Settled, len(served))
		}
		other(true)
		time.Sleep(30 * time.Millisecond) // the first has heard that there is no room
		synctest.Wait()
		if len(served) > 0 || l.proxy.queue.waiting(l.model()) != 2 {
			t.Fatalf("%d wait, %d are served", l.proxy.queue.waiting(l.model()), len(served))
		}
		if other(false); len(served) != 1 {
			t.Fatalf("%d are served where there is room for one", len(served))
		}
		if who := <-served; who != "first" {
			t.Errorf("%s is served first", who)
		}
		cancel()
		<-served
		r.Free("first")
		r.Free("second")
		r.Free("own")
	})
}

// journal is what a router tells others.
type journal func(c load.Change)

func (j journal) Record(c load.Change) { j(c) }

// TestOthersHearOfWhoIsGone: a request that other routers know to wait is taken back when its client goes, and when it is
// served no more.
func TestOthersHearOfWhoIsGone(t *testing.T) {
	for name, end := range map[string]func(l *lab, r *route.Router, cancel func()){
		"its client has gone":         func(_ *lab, _ *route.Router, cancel func()) { cancel() },
		"no worker is there any more": func(l *lab, r *route.Router, _ func()) { r.RemoveWorker(0); l.proxy.Relieved(r) },
	} {
		l := newLab(t, setup{engines: 1, fleet: func(c *fleet.Config) { c.Route.Mode = "auto" }, proxy: func(c *Config) { c.Queue = 10 }})
		synctest.Test(t, func(t *testing.T) {
			r := l.model().Router
			r.SetDelay(20*time.Millisecond, 0)
			r.Replace(2, func(func(load.Change) bool) {}) // there is another router
			var last load.Change
			r.SetJournal(journal(func(c load.Change) {
				if c.Kind == load.Sought {
					last = c
				}
			}))
			defer r.SetJournal(nil)
			if err := r.Reserve(route.Reservation{RequestID: "own", Rank: shard.RankID{Worker: 0}, PromptTokens: 1 << 20, NewTokens: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				_, err := l.proxy.choose(ctx, &call{m: l.model(), id: "waits", arrival: time.Now(), prompt: route.Prompt{Local: make([]uint64, 1000)}})
				ended <- err
			}()
			if synctest.Wait(); !last.Held || len(last.Ranks) != 1 {
				t.Fatalf("%s: others are told %+v of a request that waits", name, last)
			}
			end(l, r, cancel)
			if err := <-ended; err == nil || last.Key.ID != "waits" || len(last.Ranks) != 0 {
				t.Errorf("%s: it ends with %v, and the last that others hear is %+v", name, err, last)
			}
		})
	}
}

// TestPairsAreHeardFirst: a request whose prompt would be computed by another router's prefill worker is put off likewise.
func TestPairsAreHeardFirst(t *testing.T) {
	l := pools(t, mockapi.TransferVLLM, nil, func(c *Config) { c.Queue = 10 })
	synctest.Test(t, func(t *testing.T) {
		r := l.model().Router
		r.SetDelay(20*time.Millisecond, 20*time.Millisecond)
		r.Replace(2, func(func(load.Change) bool) {}) // there is another router
		if _, err := r.BestPair(t.Context(), route.Prompt{Local: []uint64{1}}, route.Options{RequestID: "crowd"}); err != nil {
			t.Fatal(err)
		}
		r.Apply(load.Change{Kind: load.Added, Key: load.Key{Owner: 2, ID: "crowd"}, Request: load.Request{NewTokens: load.MaxCount, Prefilled: true}})
		r.Free("crowd")
		err := r.Reserve(route.Reservation{RequestID: "own", Rank: shard.RankID{Worker: 0}, Stage: route.PrefillStage, PromptTokens: 1 << 20, NewTokens: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		q := &call{m: l.model(), id: "pair", split: true, arrival: time.Now(), prompt: route.Prompt{Local: make([]uint64, 1000)}}
		best, err := l.proxy.choose(t.Context(), q)
		if err != nil || best.Prefill == nil || best.Prefill.Worker != 1 {
			t.Errorf("%+v, %v", best, err)
		}
		if took := time.Since(q.arrival); took != 20*time.Millisecond || r.Stats().Settled != 1 {
			t.Errorf("chosen after %v, put off %d times", took, r.Stats().Settled)
		}
		r.Free("pair")
		r.Free("own")
	})
}
