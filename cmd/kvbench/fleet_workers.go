package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// fleetSpace is the space of fleet's workers.
var fleetSpace = event.Space{Model: "kvbench-fleet", BlockSize: 16}

// fleetShare is what a process of workers is told first.
type fleetShare struct {
	URL, DataDir        string // of the server
	First               uint64 // the first of the workers, by number
	Workers             int
	Run                 uint64 // what they store is of this run alone
	Burst, Blocks, Held int
	Every               time.Duration // between a worker's bursts
	Own                 bool
	Probe               float64 // part of the bursts that store which are looked for
	Indexer             string
	Streams             int  // of the space
	Batches             bool // they take batches

	group *publish.Group // of the process
}

// fleetHeld is what a worker holds: the chains from Oldest to before Next of a run.
type fleetHeld struct{ Worker, Run, Oldest, Next uint64 }

// fleetNews is a line that a process of workers says.
type fleetNews struct {
	State  []fleetHeld  `json:"state,omitempty"`  // after its start, and each pause
	Probes []fleetProbe `json:"probes,omitempty"` // what was found lately
}

// chain appends the hashes of a worker's n-th chain.
func (h fleetHeld) chain(dst []uint64, n uint64, length int) []uint64 {
	x := (h.Worker*0x9E3779B97F4A7C15+h.Run)*0xD6E8FEB86659FD93 + n*0xA24BAED4963EE407
	for range length {
		x += 0x9E3779B97F4A7C15
		z := (x ^ x>>30) * 0xBF58476D1CE4E5B9 // splitmix64
		z = (z ^ z>>27) * 0x94D049BB133111EB
		dst = append(dst, z^z>>31)
	}
	return dst
}

// fleetWorker is a worker: a goroutine owns it while the load goes on.
type fleetWorker struct {
	share *fleetShare
	pub   *publish.Publisher
	held  fleetHeld
	chain []uint64 // scratch
}

// runFleetWorkers publishes as the workers of one process until its input ends.
func runFleetWorkers(ctx context.Context, _ []string, stdout, _ io.Writer) error {
	in := bufio.NewReader(os.Stdin)
	var share fleetShare
	if err := readConfig(in, &share); err != nil {
		return err
	}
	workers, err := share.open(ctx)
	if err != nil {
		return err
	}
	say := json.NewEncoder(stdout)
	state := func() error {
		var n fleetNews
		for _, w := range workers {
			if err := w.pub.Flush(ctx); err != nil {
				return err
			}
			n.State = append(n.State, w.held)
		}
		return say.Encode(n)
	}
	if err := state(); err != nil {
		return err
	}
	probes := newFleetProber(share.Indexer, func(found []fleetProbe) { _ = say.Encode(fleetNews{Probes: found}) })
	stop := func() {}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch lines.Text() {
		case "go":
			run, cancel := context.WithCancel(ctx)
			var running sync.WaitGroup
			running.Go(func() { probes.run(run) })
			for _, w := range workers {
				running.Go(func() { w.run(run, probes) })
			}
			stop = func() { cancel(); running.Wait() }
		case "measured":
			close(probes.done)
		case "pause":
			stop()
			if err := state(); err != nil {
				return err
			}
		}
	}
	return nil // as a process ends that is killed: nobody leaves
}

// open opens a publisher for each worker, which holds what it is to from the
// beginning.
func (s *fleetShare) open(ctx context.Context) ([]*fleetWorker, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	shared, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	s.group = &publish.Group{}
	workers := make([]*fleetWorker, s.Workers)
	errs := make([]error, s.Workers)
	var opening sync.WaitGroup
	slots := make(chan struct{}, 16)
	for i := range workers {
		slots <- struct{}{}
		opening.Go(func() {
			defer func() { <-slots }()
			nc := shared
			if s.Own {
				if nc, errs[i] = s.connect(ctx); errs[i] != nil {
					return
				}
			}
			workers[i], errs[i] = s.worker(ctx, nc, s.First+uint64(i))
		})
	}
	opening.Wait()
	return workers, errors.Join(errs...)
}

func (s *fleetShare) connect(ctx context.Context) (*nats.Conn, error) {
	b, err := broker.Open(ctx, broker.Config{
		URL: s.URL, DataDir: s.DataDir, JoinOnly: true, Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, err
	}
	return b.Conn(), nil // open until the process ends
}

func (s *fleetShare) worker(ctx context.Context, nc *nats.Conn, id uint64) (*fleetWorker, error) {
	pub, err := publish.Open(ctx, publish.Config{
		Conn: nc, Space: fleetSpace, Worker: id, Stream: publish.StreamConfig{Partitions: s.Streams, Batches: s.Batches}, Group: s.group,
		Registration: &publish.Registration{Worker: registry.Worker{TotalBlocks: uint64(s.Held)}},
		Log:          slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return nil, fmt.Errorf("worker %d: %w", id, err)
	}
	w := &fleetWorker{share: s, pub: pub, held: fleetHeld{Worker: id, Run: s.Run}}
	for !w.full() {
		if err := w.store(ctx); err != nil {
			return nil, fmt.Errorf("worker %d: %w", id, err)
		}
	}
	if id%2 == 1 { // else all would store at one time, and then all remove
		if err := w.remove(ctx); err != nil {
			return nil, fmt.Errorf("worker %d: %w", id, err)
		}
	}
	return w, nil
}

// full reports whether the worker holds as much as it is to.
func (w *fleetWorker) full() bool {
	return int(w.held.Next-w.held.Oldest)*w.share.Burst*w.share.Blocks >= w.share.Held
}

// run publishes a burst at each of its times until ctx ends: those that it is late
// for at once.
func (w *fleetWorker) run(ctx context.Context, probes *fleetProber) {
	next := time.Now().Add(rand.N(w.share.Every))
	timer := time.NewTimer(time.Until(next))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		begun := time.Now()
		if w.full() {
			if w.remove(ctx) != nil {
				return // it ends
			}
		} else {
			if w.store(ctx) != nil {
				return
			}
			if rand.Float64() < w.share.Probe {
				probes.add(begun, w.chain)
			}
		}
		next = next.Add(w.share.Every)
		timer.Reset(time.Until(next))
	}
}

// store publishes the next chain.
func (w *fleetWorker) store(ctx context.Context) error {
	n := w.share.Blocks
	w.chain = w.held.chain(w.chain[:0], w.held.Next, w.share.Burst*n)
	parent := publish.Root()
	for at := 0; at < len(w.chain); at += n {
		blocks := w.chain[at : at+n]
		if err := w.pub.Stored(ctx, 0, event.Device, parent, blocks, blocks); err != nil {
			return err
		}
		parent = publish.After(blocks[n-1])
	}
	w.held.Next++
	return nil
}

// remove publishes that the oldest chain goes.
func (w *fleetWorker) remove(ctx context.Context) error {
	n := w.share.Blocks
	w.chain = w.held.chain(w.chain[:0], w.held.Oldest, w.share.Burst*n)
	for at := len(w.chain) - n; at >= 0; at -= n { // an engine evicts from the end
		if err := w.pub.Removed(ctx, 0, event.Device, w.chain[at:at+n]); err != nil {
			return err
		}
	}
	w.held.Oldest++
	return nil
}
