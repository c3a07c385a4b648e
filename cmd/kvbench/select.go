package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// selectOptions are the flags of select.
type selectOptions struct {
	workers, blocks, prompts int
	mode                     string
	book                     bool
	warm, measure            time.Duration
}

// selectResult is what select prints.
type selectResult struct {
	Workers      int     `json:"workers"`
	Blocks       int     `json:"blocks"`
	Mode         string  `json:"mode"`
	Booked       bool    `json:"booked"`
	Choices      int     `json:"choices"`
	SelectUsMean float64 `json:"select_us_mean"`
	SelectUsP50  float64 `json:"select_us_p50"`
	SelectUsP99  float64 `json:"select_us_p99"`
	LookupUsMean float64 `json:"lookup_us_mean"`
	Allocs       float64 `json:"allocs"`
}

const selectBlock = 16 // tokens

func runSelect(_ context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parseSelect(args, stderr)
	if err != nil {
		return err
	}
	res, err := measureSelect(o)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(res)
}

func parseSelect(args []string, stderr io.Writer) (selectOptions, error) {
	var o selectOptions
	f := newFlags("select", stderr)
	f.IntVar(&o.workers, "workers", 64, "workers to choose from")
	f.IntVar(&o.blocks, "blocks", 512, "blocks of a prompt")
	f.IntVar(&o.prompts, "prompts", 16, "prompts that take turns; they share their first quarter")
	f.StringVar(&o.mode, "mode", route.DefaultSettings().Mode, fmt.Sprintf("policy, one of %v", route.Modes()))
	f.BoolVar(&o.book, "book", false, "book each choice, and count its booking and its end too")
	f.DurationVar(&o.warm, "warm", 300*time.Millisecond, "how long to choose before measuring")
	f.DurationVar(&o.measure, "measure", 2*time.Second, "how long to measure")
	return o, parseFlags(f, args, func() error {
		if o.workers < 1 || o.blocks < 4 || o.prompts < 1 {
			return errors.New("--workers and --prompts are at least 1, --blocks at least 4")
		}
		return nil
	})
}

// selection is a router with its index and prompts.
type selection struct {
	selectOptions
	router  *route.Router
	space   *shard.Space
	prompts [][]uint64
	result  shard.Result
}

// newSelection makes a fleet in which each worker holds parts of two prompts
// and has one live request.
func newSelection(o selectOptions, set *shard.Set) (*selection, error) {
	space, err := set.Open(event.Space{Model: "m", BlockSize: selectBlock})
	if err != nil {
		return nil, err
	}
	settings := route.DefaultSettings()
	settings.Mode = o.mode
	router, err := route.New(route.Config{BlockSize: selectBlock, Index: space, Settings: settings})
	if err != nil {
		return nil, err
	}
	s := &selection{selectOptions: o, router: router, space: space}
	for p := range o.prompts {
		local := make([]uint64, o.blocks)
		for i := range local {
			local[i] = uint64(i+1) * 0x9E3779B97F4A7C15
			if i >= o.blocks/4 {
				local[i] += uint64(p)
			}
		}
		s.prompts = append(s.prompts, local)
	}
	for w := range o.workers {
		b := &event.Batch{Space: space.Key(), Worker: uint64(w)}
		for k := range 2 {
			local := s.prompts[(w+k*7)%o.prompts]
			local = local[:max(1, o.blocks*(1+(w+3*k)%8)/8)]
			b.Events = append(b.Events, event.Event{Kind: event.Stored, Engine: local, Local: local})
		}
		if _, err := space.ApplyWait(context.Background(), b); err != nil {
			return nil, err
		}
		if err := router.SetWorker(route.Worker{ID: uint64(w)}); err != nil {
			return nil, err
		}
		err := router.Reserve(route.Reservation{
			RequestID: fmt.Sprint("live-", w), Rank: shard.RankID{Worker: uint64(w)},
			Blocks: s.prompts[w%o.prompts][:o.blocks/2], PromptTokens: o.blocks * selectBlock, NewTokens: 100 * (w % 5),
		})
		if err != nil {
			return nil, err
		}
	}
	return s, nil
}

// choose is one choice for the i-th prompt.
func (s *selection) choose(i int) error {
	o := route.Options{}
	if s.mode == "direct" {
		pin := uint64(i % s.workers)
		o.Worker = &pin
	}
	if s.book {
		o.RequestID = "r"
	}
	if _, err := s.router.BestWorker(context.Background(), route.Prompt{Local: s.prompts[i%len(s.prompts)]}, o); err != nil {
		return err
	}
	if s.book {
		s.router.Free("r")
	}
	return nil
}

func measureSelect(o selectOptions) (selectResult, error) {
	res := selectResult{Workers: o.workers, Blocks: o.blocks, Mode: o.mode, Booked: o.book}
	set := shard.New(shard.Config{})
	defer set.Close()
	s, err := newSelection(o, set)
	if err != nil {
		return res, err
	}
	for start, i := time.Now(), 0; time.Since(start) < o.warm || i == 0; i++ {
		if err := s.choose(i); err != nil {
			return res, err
		}
		s.space.Find(s.prompts[i%len(s.prompts)], &s.result)
	}
	// Allocations are counted in a pass of their own, without clocks.
	var before, after runtime.MemStats
	const counted = 200
	runtime.ReadMemStats(&before)
	for i := range counted {
		if err := s.choose(i); err != nil {
			return res, err
		}
	}
	runtime.ReadMemStats(&after)
	res.Allocs = float64(after.Mallocs-before.Mallocs) / counted

	lat := newLatencies()
	var choosing, looking time.Duration
	for start := time.Now(); time.Since(start) < o.measure || res.Choices == 0; res.Choices++ {
		t0 := time.Now()
		if err := s.choose(res.Choices); err != nil {
			return res, err
		}
		t1 := time.Now()
		s.space.Find(s.prompts[res.Choices%len(s.prompts)], &s.result)
		t2 := time.Now()
		choosing, looking = choosing+t1.Sub(t0), looking+t2.Sub(t1)
		lat.add(int64(t1.Sub(t0)))
	}
	res.SelectUsMean = choosing.Seconds() * 1e6 / float64(res.Choices)
	res.LookupUsMean = looking.Seconds() * 1e6 / float64(res.Choices)
	res.SelectUsP50, res.SelectUsP99 = lat.us(0.5), lat.us(0.99)
	return res, nil
}
