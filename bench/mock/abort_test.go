package mock

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/bench/trace"
)

// Requests that are aborted at any moment, and prompts that another engine
// computed, leave the cache as its events say, and an engine without load.
func TestAbortAndReceived(t *testing.T) {
	aborted, received := 0, 0
	for i, cfg := range smallConfigs() {
		o := newObserver(t)
		e, err := New(cfg, o.apply)
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(uint64(i), 9))
		h := trace.NewHasher(4, cfg.BlockSize)
		live := map[uint64]*Request{}
		for id := uint64(1); id < 300 || !e.Idle(); id++ {
			if id < 300 {
				r := randomRequest(rng, h, id, cfg.BlockSize*cfg.Blocks)
				r.Received = rng.IntN(4) == 0
				if e.Admit(r) == nil {
					live[id] = r
				}
			}
			if e.Idle() {
				continue
			}
			before := e.Load()
			if before.Running+before.Waiting != len(live) {
				t.Fatalf("load %+v with %d requests", before, len(live))
			}
			report := e.Step()
			if report.Prefill+report.Decode > max(cfg.MaxBatched, 1) {
				t.Fatalf("a step of %d + %d tokens, the budget is %d", report.Prefill, report.Decode, cfg.MaxBatched)
			}
			for _, b := range report.Began {
				if live[b.ID].Received && !b.Again {
					received++
				}
			}
			for _, done := range report.Finished {
				delete(live, done)
			}
			o.check(e)
			for victim := range live {
				if rng.IntN(6) == 0 {
					aborted++
					if !e.Abort(victim) || e.Abort(victim) {
						t.Fatal("a live request is aborted once")
					}
					delete(live, victim)
					o.check(e)
				}
				break
			}
		}
		if l := e.Load(); l != (Load{}) || len(live) != 0 {
			t.Errorf("%d requests and %+v are left", len(live), l)
		}
	}
	if aborted == 0 || received == 0 {
		t.Errorf("%d aborted, %d received: nothing was tried", aborted, received)
	}
}

// A received prompt costs one token, whatever its length and the budget.
func TestReceivedCostsOneToken(t *testing.T) {
	e, err := New(Config{BlockSize: 4, MaxBatched: 8}, newObserver(t).apply)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Admit(&Request{ID: 1, Input: 100, Output: 2, Local: make([]uint64, 25), Received: true}); err != nil {
		t.Fatal(err)
	}
	if r := e.Step(); r.Prefill != 1 || len(r.First) != 1 || e.Held() != 25 {
		t.Errorf("%+v, %d blocks", r, e.Held())
	}
}
