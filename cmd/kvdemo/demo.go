package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kvatlas/kvatlas/bench/mocker"
)

// demo is one run of the demonstration. The goroutine of run owns it.
type demo struct {
	trace   string
	speed   float64
	workers int
	ranks   int
	blocks  int
	listen  string
	dataDir string

	url    string // of the indexer
	log    *slog.Logger
	last   metrics // of the indexer, a line ago
	lastAt time.Time
	told   bool // the requests to paste are printed
}

// startWait bounds how long the indexer may take to be ready.
const startWait = 30 * time.Second

func (d *demo) run(ctx context.Context, log *slog.Logger) (err error) {
	d.log = log
	// Whoever reads the lines may go away: then end as for ctrl-c.
	ctx, ignore := signal.NotifyContext(ctx, syscall.SIGPIPE)
	defer ignore()
	giveBack := takeTerminal()
	defer giveBack()
	if d.dataDir == "" {
		if d.dataDir, err = os.MkdirTemp("", "kvatlas-demo-"); err != nil {
			return fmt.Errorf("make a data directory: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(d.dataDir)) }()
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the programs beside this one: %w", err)
	}
	bin := filepath.Dir(self)

	indexer, err := d.startIndexer(ctx, bin)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, indexer.stop()) }()
	if ctx.Err() != nil {
		return nil
	}
	fleet, err := startChild(bin, "kvmocker", d.fleetFlags()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, fleet.stop()) }()
	d.greet()

	lines := make(chan mocker.Progress)
	go readProgress(ctx, fleet.stdout, lines) // ends with the fleet or ctx
	for served := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-indexer.done:
			return indexer.ended()
		case <-fleet.done:
			return fleet.ended()
		case p := <-lines:
			if served {
				continue
			}
			d.line(ctx, p)
			if served = p.Idle && d.last.lag == 0; served {
				fmt.Println("\nThe trace is replayed. The indexer serves until ctrl-c.")
			}
		}
	}
}

// startIndexer starts kvindexer and waits until it is ready, so that it runs
// the broker and the fleet joins it.
func (d *demo) startIndexer(ctx context.Context, bin string) (*child, error) {
	address := filepath.Join(d.dataDir, "http-address")
	if err := os.Remove(address); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an old address: %w", err)
	}
	listen := d.listen
	if ln, err := net.Listen("tcp", listen); err == nil {
		_ = ln.Close() // only to see that it is free
	} else if host, _, splitErr := net.SplitHostPort(listen); splitErr == nil {
		d.log.Warn("the address is taken, another port instead", "address", listen, "error", err)
		listen = net.JoinHostPort(host, "0")
	}
	c, err := startChild(bin, "kvindexer", "--data-dir", d.dataDir, "--http-listen", listen, "--address-file", address,
		"--log-level", "warn")
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); ; {
		text, err := os.ReadFile(address)
		if err == nil {
			d.url = "http://" + strings.TrimSpace(string(text))
			if _, err = call(ctx, http.MethodGet, d.url+"/readyz", ""); err == nil {
				return c, nil
			}
		}
		select {
		case <-ctx.Done():
			return c, nil
		case <-c.done:
			return nil, c.ended()
		case <-tick.C:
		}
		if time.Since(begun) > startWait {
			return nil, errors.Join(fmt.Errorf("kvindexer is not ready after %v: %w", startWait, err), c.stop())
		}
	}
}

func (d *demo) fleetFlags() []string {
	flags := []string{
		"--data-dir", d.dataDir, "--progress", "json", "--at-end", mocker.EndWait, "--log-level", "warn",
		"--workers", strconv.Itoa(d.workers), "--dp-size", strconv.Itoa(d.ranks), "--cache-blocks", strconv.Itoa(d.blocks),
	}
	speed := d.speed
	if d.trace != "" {
		flags = append(flags, "--trace", d.trace)
		if speed == 0 {
			speed = 10
		}
	} else if speed == 0 {
		speed = 1
	}
	return append(flags, "--speed", strconv.FormatFloat(speed, 'g', -1, 64))
}

func (d *demo) greet() {
	load := "generated requests"
	if d.trace != "" {
		load = "the requests of " + d.trace
	}
	fmt.Printf("kvindexer answers at %s. A mock fleet of %d workers × %d ranks serves %s.\n\n", d.url, d.workers, d.ranks, load)
}

// line prints the state of both, and once something can be found, how to ask.
func (d *demo) line(ctx context.Context, p mocker.Progress) {
	m, err := scrape(ctx, d.url+"/metrics")
	if err != nil {
		if ctx.Err() == nil {
			d.log.Warn("the indexer does not answer", "error", err)
		}
		return
	}
	now, rate := time.Now(), 0.0
	if !d.lastAt.IsZero() {
		rate = (m.events - d.last.events) / now.Sub(d.lastAt).Seconds()
	}
	d.last, d.lastAt = m, now
	fmt.Printf("%4.0fs  requests %d (%.0f/s)  reuse %4.1f%%  |  index: events %.0f (%.0f/s)  blocks %.0f  evicted %.0f  lag %.0f messages\n",
		p.Seconds, p.Requests, p.RequestsPerSec, 100*p.Reuse, m.events, rate, m.stored-m.removed, m.removed, m.lag)
	if !d.told && p.Finished > 0 {
		d.told = d.tell(ctx)
	}
}

// readProgress passes kvmocker's lines on until they or ctx end.
func readProgress(ctx context.Context, in io.Reader, out chan<- mocker.Progress) {
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var p mocker.Progress
		if json.Unmarshal(lines.Bytes(), &p) != nil {
			continue // not a progress line
		}
		select {
		case out <- p:
		case <-ctx.Done():
			return
		}
	}
}
