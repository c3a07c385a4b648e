// Command kvctl looks at the workers of a fleet and takes them out of service
// and back. For that it talks to NATS, not to the indexers, which all see the
// change. It also asks a program whether it is ready, asks a router why requests
// went where they went, and looks after the snapshots of the index.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/conf"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/proc"
)

// config is all settings of the program.
type config struct {
	log       obs.LogConfig
	broker    broker.Config
	namespace string
	wait      time.Duration
	model     string
	blockSize int
	stream    string
	json      bool
	force     bool
	by        string
	caFile    string
	router    string
	tokenFile string
	probe     probing

	snapshotDir string

	args []string
	out  io.Writer
	now  func() time.Time
}

// usage is what stands for the arguments in --help.
const usage = "worker list | worker drain|resume|remove <id> | ready <url> | doctor | decisions [export] | why <id> | tokenizers [retry [<model>]] | snapshot list | " +
	"snapshot inspect|verify|delete <name> | snapshot restore <name> <dir> | reset"

const summary = `workers of a fleet, who there is and who gets requests, and why; and whether a program is ready.

  worker list           the workers and their states
  worker drain <id>     no new requests for the worker; nothing is forgotten
  worker resume <id>    it gets requests again
  worker remove <id>    it is gone: its blocks leave every index
  ready <url>           is the program at http://host:port, or https, ready? For health checks
  doctor                asks every engine, and says what of the fleet does not fit together and what to do
  decisions             choices of workers that the router of --router keeps, newest first
  decisions export      all of them, with their tables of candidates, as JSON lines
  why <id>              one of them with its table, by its id or its request's X-Request-Id
  tokenizers            which models' tokens the router of --router makes itself, and whether engines agree
  tokenizers retry [<model>]     compares engines with a model's files, or all models', anew
  snapshot list         the snapshots of the index, best first
  snapshot inspect <name>        what one says of itself, after its checksums
  snapshot verify <name>         reads and counts all of it; name or file
  snapshot restore <name> <dir>  copies it to a directory to start from
  snapshot delete <name>         takes one away
  reset                 purges the streams of events and deletes their snapshots

A worker is given by its id or its name. With --json what is printed is one JSON
object, errors too. Exit codes: 0 done (or ready), 1 failed (or not ready), 2 wrong
use, 3 no such worker, snapshot, decision or model, 4 it is not in a state for that (of
doctor: a fault was found).`

func (c *config) declare(set *conf.Set) {
	set.TakeArgs(usage)
	set.String(&c.namespace, "namespace", "default", "Namespace of the streams, the registry and the replicas: letters, digits, - and _.", conf.Check(stream.CheckNamespace))
	set.Duration(&c.wait, "wait", 5*time.Second, "How long NATS, or the program at the URL, may take to answer.", conf.Between(100*time.Millisecond, time.Hour))
	set.String(&c.model, "model", "", "Name of the model. worker list, doctor, decisions, snapshot: only what is of this one.")
	set.Int(&c.blockSize, "block-size", 0, "Tokens of a block. snapshot: only what is of blocks of so many.", conf.Between(0, blockhash.MaxBlockSize), conf.ShowDefault("any"))
	set.String(&c.stream, "stream", "", "snapshot: only what is of this stream, as snapshot list names it: of one model, block size and group.")
	set.Bool(&c.json, "json", false, `Print JSON, one object on standard output: {"workers": …} for worker list,
		{"worker", "done"} for the others, {"snapshots": …} for snapshot list, {"snapshot", "done"} for the others, {"url", "ready", "reason"} for ready, {"findings": …, "worst"} for doctor, {"decisions": …} for decisions, the decision for why, {"tokenizers": …} for tokenizers, {"models": …} for their retry, {"error"} for what fails.`)
	set.Bool(&c.force, "force", false, `worker drain: also a worker that is not registered; it is drained when it comes. worker
		remove: also one that announces itself. It is back with its next heartbeat, and what it holds has to be dumped again. snapshot delete: also the newest. reset: also while replicas
		live, which go on with what they have.`)
	set.String(&c.snapshotDir, "snapshot-dir", "", "Directory for snapshots, where the object store of NATS is not to hold them. It is the replicas'.", conf.ShowDefault("the object store of NATS"))
	set.String(&c.by, "by", defaultUser(os.Getenv), "worker drain: who asks, shown in lists.", conf.ShowDefault("$USER"))
	set.String(&c.router, "router", "http://127.0.0.1:8000", "decisions, why, tokenizers: URL of the router that is asked.")
	set.String(&c.tokenFile, "token-file", "", "decisions, why, tokenizers: file with the token that the router is shown.", conf.ShowDefault("no token"))
	set.String(&c.caFile, "ca", "", "https://…: PEM file of root certificates that the program's certificate is checked with.",
		conf.ShowDefault("the system's"))
	c.probe.declare(set)
	c.broker.Declare(set)
	c.log.Declare(set)
}

func defaultUser(getenv func(string) string) string { return getenv("USER") }

// The exit codes beside those of proc: 0 done, 1 failed, 2 wrong use.
const (
	exitFailure = 1
	exitUse     = 2
	exitUnknown = 3 // no such worker, snapshot, decision or model
	exitRefused = 4 // the worker is not in a state for it
)

// errSaid is returned for what is printed already.
var errSaid = errors.New("said")

// complain says what failed.
func (c *config) complain(err error) {
	if errors.Is(err, errSaid) {
		return
	}
	err = obs.Plain(err)
	if c.json {
		_ = c.print(map[string]any{"error": err.Error()}) // nowhere left to say it
		return
	}
	fmt.Fprintf(&plainly{out: os.Stderr}, "kvctl: %v\n", err)
}

func main() {
	c := config{out: &plainly{out: os.Stdout}, now: time.Now}
	set := conf.New("kvctl", summary)
	c.declare(set)
	code := 0
	end := proc.Main(proc.Program{Settings: set, Log: &c.log, Run: func(ctx context.Context, _ *slog.Logger) error {
		c.args = set.Args()
		if err := c.run(ctx); err != nil {
			code = exitCode(err)
			c.complain(err)
		}
		return nil
	}})
	os.Exit(max(code, end))
}
