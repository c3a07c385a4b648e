// Command kvpublisher runs beside an engine: it follows what the engine says of
// its KV cache, and publishes it to NATS.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/sidecar"
)

func main() {
	var c sidecar.Config
	set := conf.New("kvpublisher", "publishes the KV cache events of an engine on this machine.")
	c.Declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.Log, Run: func(ctx context.Context, log *slog.Logger) error {
		return sidecar.Run(ctx, c, log)
	}}))
}
