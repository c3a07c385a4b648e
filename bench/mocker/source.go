package mocker

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/bench/workload"
)

// Open opens the requests that c describes. The caller closes what close is.
func (c *Config) Open() (src trace.Source, closer func() error, err error) {
	if c.Trace != "" {
		r, err := trace.Open(c.Trace, c.IDTokens)
		if err != nil {
			return nil, nil, err
		}
		return r, r.Close, nil
	}
	w := c.Workload
	w.Seed = uint64(c.Seed)
	// As a server's longest context is, at most: it would refuse a session that grows beyond.
	w.MaxTokens = min(w.MaxTokens, max(c.Engine.Blocks*c.Engine.BlockSize, w.SystemTokens, 2*w.IDTokens))
	g, err := workload.New(w)
	if err != nil {
		return nil, nil, err
	}
	return g, func() error { return nil }, nil
}

// feed is the requests of a run: those of the source, up to a number, and
// again from the start where the run loops.
type feed struct {
	cfg    *Config
	src    trace.Source
	close  func() error
	sent   int
	offset time.Duration // added to arrivals by the loops so far
	last   time.Duration // arrival of the last request
	serial uint64        // of the next request
}

func newFeed(cfg *Config) (*feed, error) {
	src, closer, err := cfg.Open()
	if err != nil {
		return nil, err
	}
	return &feed{cfg: cfg, src: src, close: closer}, nil
}

// next fills r; io.EOF is the end.
func (f *feed) next(r *trace.Request) error {
	if f.cfg.Requests > 0 && f.sent >= f.cfg.Requests {
		return io.EOF
	}
	err := f.src.Next(r)
	if errors.Is(err, io.EOF) && f.cfg.AtEnd == EndLoop && f.sent > 0 {
		if err = f.rewind(); err == nil {
			err = f.src.Next(r)
		}
	}
	if err != nil {
		return err
	}
	f.sent++
	r.Arrival += f.offset
	f.last = r.Arrival
	// What is a request's own is not the same again in the next loop.
	r.Serial = f.serial
	f.serial++
	return nil
}

func (f *feed) rewind() error {
	if err := f.close(); err != nil {
		return fmt.Errorf("rewind the trace: %w", err)
	}
	f.close = func() error { return nil }
	src, closer, err := f.cfg.Open()
	if err != nil {
		return err
	}
	f.src, f.close = src, closer
	f.offset = f.last + time.Second
	return nil
}

// router chooses engines.
type router struct {
	cfg  *Config
	turn int
	rng  *rand.Rand
}

func newRouter(cfg *Config) *router {
	return &router{cfg: cfg, rng: rand.New(rand.NewPCG(uint64(cfg.Seed), 0x726f757465))}
}

// choose returns the engine of a request.
func (r *router) choose(session string) int {
	n := r.cfg.engines()
	switch {
	case r.cfg.Routing == RouteRandom:
		return r.rng.IntN(n)
	case r.cfg.Routing == RouteSession && session != "":
		return int(xxh3.HashString(session) % uint64(n))
	}
	e := r.turn
	r.turn = (r.turn + 1) % n
	return e
}
