// Command kvpods registers the pods of an InferencePool or a label selector of
// Kubernetes as workers.
package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/kvatlas/kvatlas/internal/discover"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/proc"
)

func main() {
	var c discover.Config
	set := conf.New("kvpods", "registers the engines that run in pods of Kubernetes as workers.")
	c.Declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.Log, Run: func(ctx context.Context, log *slog.Logger) error {
		return discover.Run(ctx, c, log)
	}}))
}
