package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/bench/corpus"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// tail is how many of the corpus's last requests L looks up.
const tail = 1400

// replay runs one corpus through new indexes and prints what each run cost.
// The prepared batches and requests are made once and shared by all runs.
type replay struct {
	o       options
	c       *corpus.Corpus
	spaces  []event.Space
	batches [][]*event.Batch // of each space
	out     *json.Encoder
}

func newReplay(o options, c *corpus.Corpus, out io.Writer) *replay {
	r := &replay{o: o, c: c, out: json.NewEncoder(out)}
	for i := range o.spaces {
		sp := event.Space{Model: fmt.Sprintf("bench-%d", i), BlockSize: c.BlockSize}
		r.spaces = append(r.spaces, sp)
		r.batches = append(r.batches, c.Batches(sp, o.batch, o.window, o.copies))
	}
	return r
}

// line is what every mode prints first.
type line struct {
	Index string `json:"index"`
	Mode  string `json:"mode"`
	Rep   int    `json:"rep"`
}

type writeLine struct {
	line
	BlockOps float64 `json:"block_ops_per_s"`
	NsBlock  float64 `json:"ns_per_block"`
	Held     uint64  `json:"held_blocks"`
	Live     int64   `json:"live_bytes"`
	PerBlock float64 `json:"bytes_per_held_block"`
	Mapped   int64   `json:"mapped_bytes"`             // of live_bytes, outside the Go heap
	Resident int64   `json:"resident_bytes,omitempty"` // growth of the process, as the system counts it
	Longest  float64 `json:"us_longest_gap"`           // between two batches' ends
}

type lookupLine struct {
	line
	Lookups float64 `json:"lookups_per_s"`
	Mean    float64 `json:"us_mean"`
	P50     float64 `json:"us_p50"`
	P99     float64 `json:"us_p99"`
	P999    float64 `json:"us_p999"`
	Matched float64 `json:"matched_per_lookup"`
}

type bothLine struct {
	line
	BlockOps float64 `json:"block_ops_per_s"`
	Lookups  float64 `json:"lookups_per_s"`
	P50      float64 `json:"us_p50"`
	P99      float64 `json:"us_p99"`
	P999     float64 `json:"us_p999"`
}

// run is one repetition: one index for W and L, another for C.
func (r *replay) run(rep int) error {
	var w, l bool
	for _, m := range r.o.modes {
		w, l = w || m == 'W', l || m == 'L'
	}
	if w || l {
		if err := r.writeAndLookup(rep, w, l); err != nil {
			return err
		}
	}
	for _, m := range r.o.modes {
		if m == 'C' {
			return r.both(rep)
		}
	}
	return nil
}

// index is one set with its spaces opened.
type index struct {
	set    *shard.Set
	spaces []*shard.Space
}

func (r *replay) open() (*index, error) {
	ix := &index{set: shard.New(shard.Config{Shards: r.o.shards, Queue: r.o.queue})}
	for _, sp := range r.spaces {
		s, err := ix.set.Open(sp)
		if err != nil {
			ix.set.Close()
			return nil, fmt.Errorf("open space %v: %w", sp, err)
		}
		ix.spaces = append(ix.spaces, s)
	}
	return ix, nil
}

// blocks is the number of block operations of one run.
func (r *replay) blocks() float64 {
	return float64(r.c.Totals.StoredBlocks+r.c.Totals.RemovedBlocks) * float64(len(r.spaces))
}

func (r *replay) writeAndLookup(rep int, w, l bool) error {
	before := memory(nil, r.o.resident)
	ix, err := r.open()
	if err != nil {
		return err
	}
	defer ix.set.Close()
	took, longest, err := r.writeAll(ix)
	if err != nil {
		return err
	}
	held, err := r.held(ix)
	if err != nil {
		return err
	}
	if w {
		after := memory(ix, r.o.resident)
		live := after.heap - before.heap + after.mapped
		blocks := r.blocks()
		err := r.out.Encode(writeLine{
			line: line{"kvatlas", "W", rep}, BlockOps: math.Round(blocks / took.Seconds()),
			NsBlock: round(took.Seconds() * 1e9 / blocks), Held: held,
			Live: live, PerBlock: round(float64(live) / float64(max(held, 1))),
			Mapped: after.mapped, Resident: after.resident - before.resident,
			Longest: round(float64(longest.Nanoseconds()) / 1e3),
		})
		if err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if l {
		runtime.GC()
		out := make(chan lookupLine)
		go func() { out <- r.lookups(ix.spaces[0]) }()
		res := <-out
		res.line = line{"kvatlas", "L", rep}
		if err := r.out.Encode(res); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	return nil
}

// writeAll applies every batch of every space and returns once all of it is
// applied: how long that took, and the longest time between the ends of two
// batches.
func (r *replay) writeAll(ix *index) (took, longest time.Duration, err error) {
	ctx := context.Background()
	var mu sync.Mutex // guards outcome, last, longest, left
	var outcome core.Outcome
	var last time.Duration
	left := 0
	for i := range r.batches {
		left += len(r.batches[i])
	}
	if left == 0 {
		return 0, 0, fmt.Errorf("the corpus has no events")
	}
	finished := make(chan struct{})
	start := time.Now()
	done := func(o core.Outcome) {
		mu.Lock()
		outcome.Add(o)
		now := time.Since(start)
		longest, last = max(longest, now-last), now
		left--
		if left == 0 {
			close(finished)
		}
		mu.Unlock()
	}
	errs := make(chan error, len(ix.spaces))
	for i, sp := range ix.spaces {
		go func() {
			for _, b := range r.batches[i] {
				if err := sp.Apply(ctx, b, done); err != nil {
					errs <- fmt.Errorf("apply a batch: %w", err)
					return
				}
			}
			errs <- nil
		}()
	}
	for range ix.spaces {
		if err := <-errs; err != nil {
			return 0, 0, err
		}
	}
	<-finished
	mu.Lock()
	defer mu.Unlock()
	return last, longest, nil
}

// held is what the spaces hold, which must be what the corpus leaves behind.
func (r *replay) held(ix *index) (uint64, error) {
	var held uint64
	for _, sp := range ix.spaces {
		for _, rank := range sp.Ranks() {
			held += uint64(rank.Held[event.Device])
		}
	}
	t := r.c.Totals
	want := (t.StoredBlocks - t.RemovedBlocks) * uint64(len(ix.spaces))
	if t.Clears == 0 && held != want {
		return 0, fmt.Errorf("the index holds %d blocks, the corpus stores %d more than it removes", held, want)
	}
	return held, nil
}

// lookups measures L. It runs on a goroutine of its own, which keeps its
// thread.
func (r *replay) lookups(sp *shard.Space) lookupLine {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	requests := r.c.Requests[max(0, len(r.c.Requests)-tail):]
	lat := newLatencies()
	var res shard.Result
	lookup := func(q []uint64) uint64 {
		sp.Find(q, &res)
		_, blocks := res.Sum(event.Device)
		return blocks
	}
	for range 2 {
		for _, q := range requests {
			lookup(q)
		}
	}
	var matched uint64
	n := 0
	start := time.Now()
	for len(requests) > 0 && time.Since(start) < r.o.lookup {
		for _, q := range requests {
			t := time.Since(start)
			matched += lookup(q)
			lat.add(int64(time.Since(start) - t))
		}
		n += len(requests)
	}
	took := time.Since(start).Seconds()
	return lookupLine{
		Lookups: math.Round(float64(n) / took), Mean: round(took * 1e6 / float64(max(n, 1))),
		P50: lat.us(0.5), P99: lat.us(0.99), P999: lat.us(0.999),
		Matched: round(float64(matched) / float64(max(n, 1))),
	}
}

// both measures C: the writer of W, and one reader that repeats all requests
// until the last event is applied.
func (r *replay) both(rep int) error {
	runtime.GC()
	ix, err := r.open()
	if err != nil {
		return err
	}
	defer ix.set.Close()
	lat := newLatencies()
	var stop atomic.Bool
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		var res shard.Result
		start := time.Now()
		for len(r.c.Requests) > 0 {
			for _, q := range r.c.Requests {
				if stop.Load() {
					return
				}
				t := time.Since(start)
				ix.spaces[0].Find(q, &res)
				res.Sum(event.Device)
				lat.add(int64(time.Since(start) - t))
			}
		}
	}()
	took, _, err := r.writeAll(ix)
	stop.Store(true)
	<-stopped
	if err != nil {
		return err
	}
	if _, err := r.held(ix); err != nil {
		return err
	}
	err = r.out.Encode(bothLine{
		line: line{"kvatlas", "C", rep}, BlockOps: math.Round(r.blocks() / took.Seconds()),
		Lookups: math.Round(float64(lat.n) / took.Seconds()),
		P50:     lat.us(0.5), P99: lat.us(0.99), P999: lat.us(0.999),
	})
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// round keeps three decimals.
func round(x float64) float64 { return math.Round(x*1e3) / 1e3 }
