package publish_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// An engine that publishes what its cache holds, and is registered while it
// lives.
func ExampleOpen() {
	engine := func(ctx context.Context) error {
		nc, err := nats.Connect("nats://127.0.0.1:4222", nats.MaxReconnects(-1))
		if err != nil {
			return err
		}
		defer nc.Close()
		const blockSize = 16
		p, err := publish.Open(ctx, publish.Config{
			Conn: nc, Space: event.Space{Model: "org/model", BlockSize: blockSize}, Worker: 7,
			Registration: &publish.Registration{Worker: registry.Worker{
				TotalBlocks: 20000, Endpoints: registry.Endpoints{HTTP: "http://10.0.0.7:8000"},
			}},
		})
		if err != nil {
			return err
		}
		defer func() { // brings the last events out, then unregisters
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			defer cancel()
			if err := p.Close(ctx); err != nil {
				slog.Warn("the publisher is closed", "error", err)
			}
		}()

		// Two blocks of a prompt were computed; the engine calls them 101 and 102.
		prompt := make([]uint32, 2*blockSize)
		local, err := blockhash.LocalHashes(nil, prompt, blockSize, blockhash.Options{})
		if err != nil {
			return err
		}
		if err := p.Stored(ctx, 0, event.Device, publish.Root(), []uint64{101, 102}, local); err != nil {
			return err
		}
		// Later the second is evicted.
		return p.Removed(ctx, 0, event.Device, []uint64{102})
	}
	if err := engine(context.Background()); err != nil {
		slog.Error("the engine ends", "error", err)
	}
}
