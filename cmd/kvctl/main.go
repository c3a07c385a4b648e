// Command kvctl looks at the workers of a fleet and takes them out of service
// and back. It talks to NATS, not to the indexers, which all see the change.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/internal/broker"
	"github.com/kvatlas/kvatlas/internal/conf"
	"github.com/kvatlas/kvatlas/internal/obs"
	"github.com/kvatlas/kvatlas/internal/proc"
	"github.com/kvatlas/kvatlas/internal/stream"
)

// config is all settings of the program.
type config struct {
	log       obs.LogConfig
	broker    broker.Config
	namespace string
	wait      time.Duration
	model     string
	json      bool
	force     bool
	by        string

	args []string
	out  io.Writer
	now  func() time.Time
}

// usage is what stands for the arguments in --help.
const usage = "worker list | worker drain|resume|remove <id>"

func (c *config) declare(set *conf.Set) {
	set.TakeArgs(usage)
	set.String(&c.namespace, "namespace", "default", "Namespace of the workers: letters, digits, - and _.", conf.Check(stream.CheckNamespace))
	set.Duration(&c.wait, "wait", 5*time.Second, "How long NATS may take to answer.", conf.Between(100*time.Millisecond, time.Hour))
	set.String(&c.model, "model", "", "worker list: only workers of this model.")
	set.Bool(&c.json, "json", false, "worker list: print JSON, one object.")
	set.Bool(&c.force, "force", false, `worker remove: also a worker that announces itself. It is back with its next
		heartbeat, and what it holds has to be dumped again.`)
	set.String(&c.by, "by", defaultUser(os.Getenv), "worker drain: who asks, shown in lists.", conf.ShowDefault("$USER"))
	c.broker.Declare(set)
	c.log.Declare(set)
}

func defaultUser(getenv func(string) string) string { return getenv("USER") }

// The exit codes beside those of proc: 0 done, 1 failed, 2 wrong use.
const (
	exitFailure = 1
	exitUse     = 2
	exitUnknown = 3 // no such worker
	exitRefused = 4 // the worker is not in a state for it
)

func main() {
	c := config{out: os.Stdout, now: time.Now}
	set := conf.New("kvctl", "Workers of a fleet: who there is, and who gets requests.")
	c.declare(set)
	code := 0
	end := proc.Main(proc.Program{Settings: set, Log: &c.log, Run: func(ctx context.Context, _ *slog.Logger) error {
		c.args = set.Args()
		if err := c.run(ctx); err != nil {
			code = exitCode(err)
			fmt.Fprintf(os.Stderr, "kvctl: %v\n", err) //nolint:errcheck // nowhere left to say it
		}
		return nil
	}})
	os.Exit(max(code, end))
}
