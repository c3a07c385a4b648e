// Command kvrouter is the router: an OpenAI-compatible reverse proxy that sends
// each request to the worker that serves it best. It keeps the index of who
// holds which prefix in its own process, or asks the indexers that have the shares of it.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/proc"
)

// heapRoom is larger than other programs': little of a router's heap is alive, and much
// comes and goes with each request, for which a collection is a pause.
const heapRoom = 256 << 20

func main() {
	var c config
	set := conf.New("kvrouter", "an OpenAI-compatible proxy that knows what workers have cached.")
	c.declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.Log, HeapRoom: heapRoom, Run: func(ctx context.Context, log *slog.Logger) error {
		if set.Source("nats") == "default" && os.Getenv("NATS_SERVER") != "" {
			c.Replica.NATS.URL = os.Getenv("NATS_SERVER") // the name that Dynamo's users have it under
		}
		c.Replica.AskHugePages(log)
		return run(ctx, &c, log)
	}}))
}
