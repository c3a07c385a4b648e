// Command kvindexer is the standalone index: it reads the events that engines
// publish through NATS and answers over HTTP which workers hold which prefix.
package main

import (
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/internal/console"
	"github.com/kvatlas/kvatlas/internal/program/admin"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/replica"
)

// config holds all settings of the program.
type config struct {
	Log     obs.LogConfig
	HTTP    query.Config
	Access  secure.Settings
	Admin   admin.Settings
	Console console.Settings
	Replica replica.Config
	Service proc.ServiceConfig

	settings *conf.Set
}

func (c *config) declare(set *conf.Set) {
	c.Service.Declare(set, 20*time.Second, "requests under way")
	c.Replica.Declare(set)
	c.Log.Declare(set)
	c.HTTP.Declare(set)
	c.Access.Declare(set, secure.Address{Setting: "http-listen", Value: &c.HTTP.Listen}, secure.Address{Setting: "admin-listen", Value: &c.Admin.Listen})
	c.Admin.Declare(set, "127.0.0.1:8091")
	c.Console.Declare(set)
	c.settings = set
}

func main() {
	var c config
	set := conf.New("kvindexer", "the standalone index of who holds which prefix.")
	c.declare(set)
	os.Exit(proc.Main(proc.Program{Settings: set, Log: &c.Log, Run: func(ctx context.Context, log *slog.Logger) error {
		c.Replica.AskHugePages(log)
		return run(ctx, &c, log)
	}}))
}
