package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
)

// snapshotOptions are the flags of snapshot.
type snapshotOptions struct {
	blocks, workers int
	shared, tail    int
	holders, shards int
	chained         bool
	dir             string
}

func runSnapshot(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseSnapshot(args, stderr)
	if err != nil {
		return err
	}
	return measureSnapshot(ctx, o, stdout)
}

func parseSnapshot(args []string, stderr io.Writer) (snapshotOptions, error) {
	var o snapshotOptions
	f := newFlags("snapshot", stderr)
	f.IntVar(&o.blocks, "blocks", 1_000_000, "unique blocks")
	f.IntVar(&o.workers, "workers", 256, "workers, of one rank each")
	f.IntVar(&o.shared, "shared", 64, "blocks of a prompt that others share")
	f.IntVar(&o.tail, "tail", 64, "blocks of a prompt that none shares")
	f.IntVar(&o.holders, "holders", 4, "workers that hold each prompt")
	f.IntVar(&o.shards, "shards", shard.DefaultShards(), "owner goroutines of the space")
	f.BoolVar(&o.chained, "chained", false, "engine hashes that follow from the block hashes, instead of random ones")
	f.StringVar(&o.dir, "dir", "", "`directory` for the file; the system's for temporary files if empty")
	return o, parseFlags(f, args, func() error {
		switch {
		case min(o.blocks, o.workers, o.shared, o.tail, o.holders, o.shards) < 1:
			return errors.New("all numbers are at least 1")
		case o.holders > o.workers:
			return errors.New("--holders is at most --workers")
		}
		return nil
	})
}

// snapshotResult is what snapshot prints.
type snapshotResult struct {
	Blocks          uint64  `json:"blocks"`
	Workers         int     `json:"workers"`
	Held            uint64  `json:"held"`
	Shards          int     `json:"shards"`
	Bytes           uint64  `json:"bytes"`
	BytesPerBlock   float64 `json:"bytes_per_block"`
	WriteS          float64 `json:"write_s"`
	RestoreS        float64 `json:"restore_s"`
	RestoreCPUS     float64 `json:"restore_cpu_s,omitempty"` // processor time of all threads
	FloorRestoreS   float64 `json:"floor_restore_s"`
	VerifyS         float64 `json:"verify_s"`
	QueryP99Ratio   float64 `json:"query_p99_ratio"`
	QueryP99US      float64 `json:"query_p99_us"`
	QueryP99WriteUS float64 `json:"query_p99_write_us"`
	ApplyMaxUS      float64 `json:"apply_max_write_us"` // slowest batch beside the writing
	PeakExtraBytes  int64   `json:"peak_extra_bytes"`
	DigestEqual     bool    `json:"digest_equal"`
}

var benchSpace = event.Space{Model: "bench", BlockSize: 16}

// prompts makes the chains: groups of 64 that share their beginning.
type prompts struct {
	o     snapshotOptions
	rng   *rand.Rand
	first [][]uint64 // local hashes of some, to ask for
}

const groupSize = 64

// fill stores chains until the space has the unique blocks.
func (p *prompts) fill(ctx context.Context, sp *shard.Space) error {
	o := p.o
	words := func(n int) []uint64 {
		w := make([]uint64, n)
		for i := range w {
			w[i] = p.rng.Uint64()
		}
		return w
	}
	var shared, hashes []uint64
	for unique, i := 0, 0; unique < o.blocks; i++ {
		if i%groupSize == 0 {
			shared, hashes = words(o.shared), words(o.shared)
			unique += o.shared
		}
		local := append(slices.Clone(shared), words(o.tail)...)
		engine := append(slices.Clone(hashes), words(o.tail)...)
		unique += o.tail
		if o.chained {
			engine = blockhash.SequenceHashes(nil, local)
		}
		if i%16 == 0 && len(p.first) < 4096 {
			p.first = append(p.first, local)
		}
		at := p.rng.IntN(o.workers)
		for k := range o.holders {
			b := &event.Batch{Space: benchSpace, Worker: uint64((at + k*7919) % o.workers), Events: []event.Event{
				{Kind: event.Stored, Engine: engine, Local: local}}}
			if err := sp.Apply(ctx, b, nil); err != nil {
				return err
			}
		}
	}
	_, err := sp.ApplyWait(ctx, &event.Batch{Space: benchSpace}) // all of it is applied
	return err
}

// ask looks prompts up at 2,000 a second until over, and returns the
// latencies.
func (p *prompts) ask(sp *shard.Space, over <-chan struct{}) []time.Duration {
	var took []time.Duration
	var r shard.Result
	rng := rand.New(rand.NewPCG(7, 8))
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			for range 2 {
				begun := time.Now()
				sp.Find(p.first[rng.IntN(len(p.first))], &r)
				took = append(took, time.Since(begun))
			}
		case <-over:
			return took
		}
	}
}

func p99(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)*99/100]
}

// measureSnapshot writes a snapshot of a filled space, and reads it back.
func measureSnapshot(ctx context.Context, o snapshotOptions, stdout io.Writer) error {
	set := shard.New(shard.Config{Shards: o.shards})
	defer set.Close()
	sp, err := set.Open(benchSpace)
	if err != nil {
		return err
	}
	p := &prompts{o: o, rng: rand.New(rand.NewPCG(1, 2))}
	if err := p.fill(ctx, sp); err != nil {
		return err
	}
	runtime.GC()
	res := snapshotResult{Workers: o.workers, Shards: o.shards}

	quiet := make(chan struct{})
	time.AfterFunc(3*time.Second, func() { close(quiet) })
	without := p99(p.ask(sp, quiet))

	f, err := os.CreateTemp(o.dir, "kvbench-snapshot-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // it was only for this
	defer f.Close()           //nolint:errcheck // it was synced, and is read
	footer, with, err := p.write(ctx, sp, f, &res)
	if err != nil {
		return err
	}
	res.Blocks, res.Held = footer.Blocks, footer.Held[event.Device]
	res.QueryP99US, res.QueryP99WriteUS = float64(without)/1e3, float64(with)/1e3
	res.QueryP99Ratio = float64(with) / float64(max(without, 1))

	want, err := sp.Digest(ctx)
	if err != nil {
		return err
	}
	set.Close()
	set, sp = nil, nil
	runtime.GC()
	return readBack(ctx, o, f, want, footer, &res, stdout)
}

// write writes the snapshot while prompts are looked up and small batches
// applied.
func (p *prompts) write(ctx context.Context, sp *shard.Space, f *os.File, res *snapshotResult) (*snapshot.Footer, time.Duration, error) {
	debug.FreeOSMemory()
	before := resident()
	over := make(chan struct{})
	var beside sync.WaitGroup
	var asked []time.Duration
	beside.Go(func() { asked = p.ask(sp, over) })
	peak := before
	beside.Go(func() {
		ticker := time.NewTicker(2 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				peak = max(peak, resident())
			case <-over:
				return
			}
		}
	})
	var slowest time.Duration
	beside.Go(func() {
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				begun := time.Now()
				// A removal of what nobody has: it waits its turn and changes nothing.
				b := &event.Batch{Space: benchSpace, Worker: 0, Events: []event.Event{{Kind: event.Removed, Engine: []uint64{1}}}}
				if _, err := sp.ApplyWait(ctx, b); err == nil {
					slowest = max(slowest, time.Since(begun))
				}
			case <-over:
				return
			}
		}
	})
	begun := time.Now()
	w := snapshot.NewWriter(sp, snapshot.Options{})
	defer w.Close()
	err := w.Begin(ctx)
	var footer *snapshot.Footer
	if err == nil {
		m := snapshot.Meta{Space: snapshot.Space(benchSpace), Written: begun}
		for _, r := range sp.Ranks() {
			m.Ranks = append(m.Ranks, snapshot.Publisher{Worker: r.Worker, DPRank: r.DPRank})
		}
		if footer, err = w.Write(ctx, f, m); err == nil {
			err = f.Sync()
		}
	}
	res.WriteS = time.Since(begun).Seconds()
	close(over)
	beside.Wait()
	res.PeakExtraBytes, res.ApplyMaxUS = peak-before, float64(slowest)/1e3
	return footer, p99(asked), err
}

// readBack measures the reading of the file.
func readBack(ctx context.Context, o snapshotOptions, f *os.File, want uint64, footer *snapshot.Footer, res *snapshotResult, stdout io.Writer) error {
	timed := func(to *float64, read func() error) error {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return err
		}
		begun := time.Now()
		err := read()
		*to = time.Since(begun).Seconds()
		return err
	}
	if err := timed(&res.FloorRestoreS, func() error { _, err := snapshot.Unpack(f); return err }); err != nil {
		return err
	}
	if err := timed(&res.VerifyS, func() error {
		info, err := snapshot.Verify(f)
		if err == nil {
			res.Bytes = info.Bytes
			res.BytesPerBlock = float64(info.Bytes) / float64(info.Footer.Blocks)
		}
		return err
	}); err != nil {
		return err
	}
	set := shard.New(shard.Config{Shards: o.shards})
	defer set.Close()
	sp, err := set.Open(benchSpace)
	if err != nil {
		return err
	}
	_ = memory(nil, false) // what was before is collected, and is none of the restore's
	used := processCPU()
	if err := timed(&res.RestoreS, func() error {
		_, err := snapshot.Restore(ctx, f, sp, snapshot.Options{}, nil, nil)
		return err
	}); err != nil {
		return err
	}
	res.RestoreCPUS = (processCPU() - used).Seconds()
	got, err := sp.Digest(ctx)
	if err != nil {
		return err
	}
	res.DigestEqual = got == want && footer.Digest == want
	return json.NewEncoder(stdout).Encode(res)
}
