package lab

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// bound is the fleet that no routing policy can be better than by much, and that none is:
// all caches are one, least recently used blocks go first, and all prompts wait in one line,
// from which an engine that is free takes the next. Engines compute nothing else meanwhile,
// a prompt is reusable from when it is begun, and each answer is generated as if alone.
// What happens to workers and what is lost or late does not touch it.
type bound struct {
	cfg    Config
	hasher *trace.Hasher
	pool   pool
	line   []*waiting      // in the order in which they came
	free   []time.Duration // when each engine is
	result Result
}

type waiting struct {
	arrival       time.Duration
	input, output int
	names         []uint64 // of the prompt's blocks, each with what is before it
}

func runBound(ctx context.Context, cfg Config, source trace.Source) (*Result, error) {
	if cfg.ClosedLoop {
		return nil, errors.New("lab: a bound has no closed loop: when requests come must not depend on the policy")
	}
	engines := cfg.PrefillWorkers
	if engines == 0 {
		engines = cfg.Workers
	}
	b := &bound{
		cfg: cfg, hasher: trace.NewHasher(source.IDTokens(), cfg.Engine.BlockSize),
		pool: pool{room: cfg.Engine.Blocks * (cfg.Workers + cfg.PrefillWorkers), at: make(map[uint64]*list.Element)},
		free: make([]time.Duration, engines),
	}
	var r trace.Request
	for serial := 0; cfg.Requests == 0 || serial < cfg.Requests; serial++ {
		if serial%1024 == 0 && ctx.Err() != nil {
			return nil, fmt.Errorf("lab: %w", ctx.Err())
		}
		err := source.Next(&r)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("lab: %w", err)
		}
		at := time.Duration(float64(r.Arrival) / cfg.SpeedUp)
		b.until(at)
		b.arrive(at, &r)
	}
	b.until(1 << 62)
	return b.result.sorted(), nil
}

func (b *bound) arrive(at time.Duration, r *trace.Request) {
	w := &waiting{arrival: at, input: r.Input, output: r.Output, names: b.hasher.Prompt(nil, r)}
	name := uint64(0)
	for i, local := range w.names {
		// An odd multiplier and a rotation: a name is of all blocks up to it.
		name = (name<<25 | name>>39) ^ local*0x9e3779b97f4a7c15
		name *= 0xbf58476d1ce4e5b9
		w.names[i] = name
	}
	b.line = append(b.line, w)
}

// lookAhead is among how many that wait the shortest is looked for. What is left of each
// changes with the cache, so it cannot be kept sorted; beyond saturation the line is long.
const lookAhead = 256

// next takes out the one whose turn it is.
func (b *bound) next() *waiting {
	best := 0
	if b.cfg.bound == Shortest {
		least := b.left(b.line[0])
		for i := 1; i < min(len(b.line), lookAhead); i++ {
			if n := b.left(b.line[i]); n < least {
				best, least = i, n
			}
		}
	}
	w := b.line[best]
	b.line = slices.Delete(b.line, best, best+1)
	return w
}

// left returns how many tokens of the prompt are to be computed now: at least the last.
func (b *bound) left(w *waiting) int {
	size, n := b.cfg.Engine.BlockSize, 0
	for n < len(w.names) && n < (w.input-1)/size && b.pool.at[w.names[n]] != nil {
		n++
	}
	return w.input - n*size
}

// until begins what can be before the time.
func (b *bound) until(t time.Duration) {
	for len(b.line) > 0 {
		i := 0
		for k := range b.free {
			if b.free[k] < b.free[i] {
				i = k
			}
		}
		if max(b.free[i], b.line[0].arrival) >= t { // others may come at that very time
			return
		}
		b.begin(i, b.next())
	}
}

func (b *bound) begin(i int, w *waiting) {
	begun := max(b.free[i], w.arrival)
	left := b.left(w)
	b.pool.use(w.names)
	took := time.Duration(0)
	for n := left; n > 0; n -= b.cfg.Engine.MaxBatched {
		took += b.cfg.Timing.Step(&mock.Report{Prefill: min(n, b.cfg.Engine.MaxBatched)})
	}
	first := begun + took
	b.free[i] = first
	decoding := time.Duration(0)
	for k := 1; k < w.output; k++ {
		decoding += b.cfg.Timing.Step(&mock.Report{Decode: 1, Context: w.input + k})
	}
	r := &b.result
	r.Reused += w.input - left
	r.Computed += left
	r.first(first - w.arrival)
	q := request{arrival: w.arrival, first: first, input: w.input, output: w.output}
	q.stage.spent = Spent{Waiting: begun - w.arrival, Computing: took, Decoding: decoding}
	r.ended(&q, first+decoding, b.cfg.Targets)
	r.Duration = max(r.Duration, first+decoding)
}

// pool is one cache of blocks by name.
type pool struct {
	room  int
	order list.List // the least recently used in front
	at    map[uint64]*list.Element
}

// use finds or stores a prompt's blocks. The last one is the first to go of them, as in an engine.
func (p *pool) use(names []uint64) {
	for i := len(names) - 1; i >= 0; i-- {
		name := names[i]
		if e := p.at[name]; e != nil {
			p.order.MoveToBack(e)
			continue
		}
		p.at[name] = p.order.PushBack(name)
	}
	for p.order.Len() > p.room {
		delete(p.at, p.order.Remove(p.order.Front()).(uint64)) //nolint:forcetypeassert // only names are in it
	}
}
