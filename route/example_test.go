package route_test

import (
	"context"
	"fmt"
	"log"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// Choose a worker for a prompt, follow the request, and let it go.
func Example() {
	index, err := shard.New(shard.Config{}).Open(event.Space{Model: "llama", BlockSize: 16}) // fed with the workers' events
	if err != nil {
		log.Fatal(err)
	}
	router, err := route.New(route.Config{BlockSize: 16, Index: index, Settings: route.DefaultSettings()})
	if err != nil {
		log.Fatal(err)
	}
	if err := router.SetWorker(route.Worker{ID: 7, TotalBlocks: 16384}); err != nil {
		log.Fatal(err)
	}
	best, err := router.BestWorker(context.Background(), route.Prompt{Tokens: make([]uint32, 100)}, route.Options{RequestID: "req-1"})
	if err != nil {
		log.Fatal(err) // errors.Is(err, route.ErrOverloaded): answer 529
	}
	fmt.Printf("worker %d rank %d, %d tokens cached, %d to compute\n", best.Worker, best.DPRank, best.CachedTokens, best.NewTokens)
	router.MarkPrefillComplete("req-1") // at the first token
	router.Free("req-1")                // at the end
	// Output: worker 7 rank 0, 0 tokens cached, 100 to compute
}

// Choose by a rule of one's own: here the worker with the least to compute.
func ExampleRouter_PotentialLoads() {
	router, err := route.New(route.Config{BlockSize: 16, Settings: route.DefaultSettings()})
	if err != nil {
		log.Fatal(err)
	}
	for id := range uint64(2) {
		if err := router.SetWorker(route.Worker{ID: id}); err != nil {
			log.Fatal(err)
		}
	}
	pin := uint64(0)
	prompt := route.Prompt{Tokens: make([]uint32, 64)}
	if _, err := router.BestWorker(context.Background(), prompt, route.Options{RequestID: "a", Worker: &pin}); err != nil {
		log.Fatal(err)
	}
	loads, err := router.PotentialLoads(context.Background(), prompt, route.Options{})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range loads {
		fmt.Println("worker", l.Worker, "would compute", l.PrefillTokens, "tokens")
	}
	// Output:
	// worker 0 would compute 128 tokens
	// worker 1 would compute 64 tokens
}
