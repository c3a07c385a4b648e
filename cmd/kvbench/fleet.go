package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// fleetOptions are the flags of fleet.
type fleetOptions struct {
	workers, processes, burst, blocks, held int
	shares, restarts                        int
	rate, minutes, probes                   float64
	external, always, own                   bool
	sync                                    time.Duration
	bin, dir                                string
}

func runFleet(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseFleet(args, stderr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return measureFleet(ctx, o, stdout, stderr)
}

func parseFleet(args []string, stderr io.Writer) (fleetOptions, error) {
	var o fleetOptions
	f := newFlags("fleet", stderr)
	f.IntVar(&o.workers, "workers", 2000, "workers, each a publisher that is registered with a lease and has a subject")
	f.Float64Var(&o.rate, "rate", 15_000, "`events` a second of all workers")
	f.Float64Var(&o.minutes, "minutes", 1, "how long the load goes on before a tenth of the fleet is killed")
	f.BoolVar(&o.external, "external", false, "a NATS server in a process of its own; else kvindexer's embedded one")
	f.DurationVar(&o.sync, "sync", 500*time.Millisecond, "how often the server syncs to the disk what it has acknowledged")
	f.BoolVar(&o.always, "sync-always", false, "instead: the server syncs each message before it acknowledges it")
	f.BoolVar(&o.own, "own-connections", false, "a connection to the server for each worker, else one for each process")
	f.IntVar(&o.processes, "processes", 10, "processes that the workers are divided among; one of them is killed")
	f.IntVar(&o.burst, "burst", 4, "events that a worker publishes at once: a message")
	f.IntVar(&o.blocks, "blocks", 7, "blocks of an event")
	f.IntVar(&o.held, "held", 1000, "blocks that each worker holds at least; then the oldest go as new ones come")
	f.IntVar(&o.shares, "shares", 1, "indexers that have a share of the workers each, and one that asks them all")
	f.IntVar(&o.restarts, "restarts", 1, "times that kvindexer is killed and started again; restart_ready_s is the median")
	f.Float64Var(&o.probes, "probes", 40, "bursts a second that are looked for in kvindexer until they are found")
	f.StringVar(&o.bin, "bin", "", "`directory` of kvindexer and kvrouter; default that of kvbench")
	f.StringVar(&o.dir, "dir", "", "`directory` for the server's data and the programs' logs; default one that is removed at the end")
	return o, parseFlags(f, args, func() error {
		switch {
		case min(o.burst, o.blocks, o.held, o.restarts) < 1 || o.processes < 2 || o.workers < o.processes:
			return errors.New("--burst, --blocks, --held and --restarts are at least 1, --processes at least 2, and --workers as many as those")
		case o.shares < 1 || o.shares > stream.MaxPartitions:
			return fmt.Errorf("--shares: 1 to %d", stream.MaxPartitions)
		case o.rate <= 0 || o.minutes <= 0 || o.probes <= 0:
			return errors.New("--rate, --minutes and --probes are above 0")
		case o.sync < time.Millisecond:
			return errors.New("--sync is at least 1ms")
		}
		if o.bin == "" {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			o.bin = filepath.Dir(self)
		}
		return nil
	})
}

// fleetResult is a line that fleet prints: of ten seconds of the load, and the
// last one of all of it and what came after.
type fleetResult struct {
	Workers       int     `json:"workers"`
	EventsPerS    float64 `json:"events_per_s"` // that became visible in kvindexer
	MessagesPerS  float64 `json:"messages_per_s"`
	VisibleP50    float64 `json:"visible_p50_ms"`
	VisibleP99    float64 `json:"visible_p99_ms"`
	LagMax        float64 `json:"lag_max_messages"`
	Stalls        int     `json:"stalls"`
	RSS           rssMiB  `json:"rss_mib"`
	RestartReadyS float64 `json:"restart_ready_s"` // here and below: of the last line, else 0
	// RestartsReadyS are all of which that is the median, by rising length.
	RestartsReadyS []float64 `json:"restarts_ready_s,omitempty"`
	RecoverS       float64   `json:"recover_s"`
	Lost           int64     `json:"lost"`
	// Sync is what an acknowledgement means: the message is on the disk after so
	// long, or always before it.
	Sync string `json:"sync"`
}

// rssMiB is the most resident memory of each program, in MiB; that of the workers'
// processes together.
type rssMiB map[string]float64

// lineEvery is how much of the load a line is about.
const lineEvery = 10 * time.Second

// patience bounds what is waited for: the start of a program, a right index.
const patience = 3 * time.Minute

func measureFleet(ctx context.Context, o fleetOptions, stdout, stderr io.Writer) (err error) {
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "kvbench-fleet"); err != nil {
			return err
		}
		defer func() { _ = os.RemoveAll(o.dir) }() //nolint:gosec // best effort, at exit, of what was just made
	}
	c := &fleetCluster{o: o, log: stderr, out: make(chan fleetNews, 1024)}
	defer func() { err = errors.Join(err, c.close()) }()
	if err := c.start(ctx); err != nil {
		return err
	}
	print := json.NewEncoder(stdout).Encode
	c.tell("go")
	w := newFleetWatch(c)
	if err := w.load(ctx, time.Duration(o.minutes*float64(time.Minute)), print); err != nil {
		return err
	}
	c.tell("measured") // what follows is of the programs alone
	c.o.probes = 0
	r := w.result(w.begun)
	if r.RecoverS, err = c.killTenth(ctx); err != nil {
		return err
	}
	for range o.restarts {
		took, err := c.restartIndexer(ctx)
		if err != nil {
			return err
		}
		r.RestartsReadyS = append(r.RestartsReadyS, took)
	}
	slices.Sort(r.RestartsReadyS)
	r.RestartReadyS = r.RestartsReadyS[len(r.RestartsReadyS)/2]
	if r.Lost, err = c.lost(ctx); err != nil {
		return err
	}
	return print(r)
}

// killTenth kills one of the workers' processes and starts it again, and returns
// how long the index took to hold what the new ones hold and nothing of the old.
func (c *fleetCluster) killTenth(ctx context.Context) (float64, error) {
	p := c.shares[0]
	begun := time.Now()
	p.kill()
	p, err := c.startShare(ctx, 0)
	if err != nil {
		return 0, err
	}
	if err := c.states(ctx, p); err != nil {
		return 0, err
	}
	if err := c.awaitIndexers(ctx, p.state); err != nil {
		return 0, fmt.Errorf("after a tenth of the fleet was killed: %w", err)
	}
	took := time.Since(begun).Seconds()
	p.tell("go")
	return took, nil
}

// restartIndexer kills kvindexer, the first of several, and returns how long a new one
// takes to be ready, while the fleet publishes.
func (c *fleetCluster) restartIndexer(ctx context.Context) (float64, error) {
	c.indexers[0].kill()
	begun := time.Now()
	if err := c.startIndexer(ctx, 0); err != nil {
		return 0, fmt.Errorf("kvindexer started again: %w", err)
	}
	return time.Since(begun).Seconds(), nil
}

// lost stops the load and returns by how many blocks kvindexer and kvrouter differ
// from what the workers hold, once that is 0 or nothing changes it any more.
func (c *fleetCluster) lost(ctx context.Context) (int64, error) {
	c.tell("pause")
	if err := c.states(ctx, c.shares...); err != nil {
		return 0, err
	}
	var lost int64
	all := []func() error{func() error { return c.awaitIndexers(ctx, c.held()) }}
	if c.router != nil {
		all = append(all, func() error { return c.awaitRight(ctx, c.router, c.held()) })
	}
	for _, judged := range all {
		var wrong *wrongIndex
		switch err := judged(); {
		case errors.As(err, &wrong):
			fmt.Fprintf(c.log, "%v\n", err)
			lost += wrong.blocks
		case err != nil:
			return 0, err
		}
	}
	return lost, nil
}
