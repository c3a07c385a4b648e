package kvatlas_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/kvatlas/kvatlas"
	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// The way of a request: choose and book, tell the first token, let it go.
func ExampleOpen() {
	// docs/router.md has these lines.
	serve := func(ctx context.Context, tokens []uint32) error {
		var cfg kvatlas.Config
		cfg.Replica.NATS.URL = "nats://localhost:4222"
		atlas, err := kvatlas.Open(ctx, cfg)
		if err != nil {
			return err
		}
		defer atlas.Close(ctx)                       //nolint:errcheck // it is only closed late
		if err := atlas.WaitReady(ctx); err != nil { // until the index has caught up
			return err
		}
		router, err := atlas.Router(event.Space{Model: "llama", BlockSize: 16})
		if err != nil {
			return err
		}
		best, err := router.BestWorker(ctx, route.Prompt{Tokens: tokens}, route.Options{RequestID: "r1"})
		if err != nil {
			return err // errors.Is(err, route.ErrOverloaded): all workers are busy
		}
		fmt.Println("send it to worker", best.Worker, "rank", best.DPRank, "-", best.CachedTokens, "tokens are cached")
		router.MarkPrefillComplete("r1") // at the first token
		router.Free("r1")                // at the end, however it ends
		return nil
	}
	_ = serve
}

// Without NATS the caller says what workers there are and what they hold.
func ExampleAtlas_Apply() {
	ctx := context.Background()
	space := event.Space{Model: "llama", BlockSize: 4}
	atlas, err := kvatlas.Open(ctx, kvatlas.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer atlas.Close(ctx) //nolint:errcheck // nothing can fail
	router, err := atlas.Router(space)
	if err != nil {
		log.Fatal(err)
	}
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9}
	local, err := blockhash.LocalHashes(nil, tokens, 4, blockhash.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for worker := range uint64(2) {
		if err := errors.Join(router.SetWorker(route.Worker{ID: worker}), atlas.Apply(ctx, &event.Batch{
			Space: space, Worker: worker, Events: []event.Event{{
				Kind: event.Stored, Engine: []uint64{100, 200}[:worker+1], Local: local[:worker+1], // worker 1 holds both blocks
			}},
		})); err != nil {
			log.Fatal(err)
		}
	}
	best, err := router.BestWorker(ctx, route.Prompt{Local: local, Length: len(tokens)}, route.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("worker", best.Worker, "has", best.CachedTokens, "tokens and computes", best.NewTokens)
	loads, err := router.PotentialLoads(ctx, route.Prompt{Tokens: tokens}, route.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range loads {
		fmt.Println("on worker", l.Worker, "it would be", l.PrefillTokens, "tokens to compute and", l.DecodeBlocks, "blocks in use")
	}
	if err := router.DumpEvents(ctx, func(id shard.RankID, d shard.Dumped) bool {
		fmt.Println("worker", id.Worker, "holds", d.Event.Engine)
		return true
	}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// worker 1 has 8 tokens and computes 1
	// on worker 0 it would be 5 tokens to compute and 2 blocks in use
	// on worker 1 it would be 1 tokens to compute and 2 blocks in use
	// worker 0 holds [100]
	// worker 1 holds [100 200]
}

// Why a request went where it went, and what was to be found cached there.
func ExampleAtlas_Decisions() {
	ctx := context.Background()
	space := event.Space{Model: "llama", BlockSize: 4}
	atlas, err := kvatlas.Open(ctx, kvatlas.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer atlas.Close(ctx) //nolint:errcheck // nothing can fail
	router, err := atlas.Router(space)
	if err != nil {
		log.Fatal(err)
	}
	local := []uint64{1, 2, 3}
	for worker := range uint64(2) {
		if err := errors.Join(router.SetWorker(route.Worker{ID: worker}), atlas.Apply(ctx, &event.Batch{
			Space: space, Worker: worker, Events: []event.Event{{Kind: event.Stored, Engine: local[:2*worker+1], Local: local[:2*worker+1]}},
		})); err != nil {
			log.Fatal(err)
		}
	}
	prompt := route.Prompt{Local: local, Length: 12}
	if _, err := router.BestWorker(ctx, prompt, route.Options{RequestID: "r1", Name: "mine", Excluded: []uint64{1}}); err != nil {
		log.Fatal(err)
	}
	router.MarkPrefillComplete("r1")
	router.Reported("r1", route.Whole, prompt, route.Usage{Prompt: 12, Cached: 4}) // what the engine says in the end
	router.Free("r1")
	for _, d := range atlas.Decisions().Find(account.Query{RequestID: "mine"}) {
		fmt.Println("worker", d.Worker, "of", len(d.Ranks), "ranks:", *d.Reachable, "tokens reachable,", *d.Selected, "selected because", d.Short, "-", *d.Actual, "found")
	}
	// Output:
	// worker 0 of 2 ranks: 12 tokens reachable, 4 selected because excluded - 4 found
}
