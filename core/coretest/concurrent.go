package coretest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
)

// Query is what a reader beside a writer asks, and how.
type Query struct {
	Local []uint64
	Early bool // stop once a single holder is left
	// Unfold asks by sequence hashes: the prompt's local hashes are what the
	// index knows of them.
	Unfold bool
}

// RunConcurrent checks lookups beside a writer: each answer must be one that
// the presence of each block allowed at some moment during the call, at every
// level, and cumulative over the levels. Run it with -race.
func RunConcurrent(t *testing.T, newIndex func() core.Index) {
	for _, g := range Generators() {
		t.Run(g.Name, func(t *testing.T) {
			for _, seed := range allSeeds(max(1, g.Seeds/8)) {
				err := besideIndex(newIndex(), g.History(seed), seed)
				if err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
		})
	}
}

// besideIndex runs Beside on an index itself.
func besideIndex(x core.Index, ops []Op, seed uint64) error {
	return Beside(ops, seed, 2,
		func(op *Op) error { op.Apply(x); return nil },
		func() func(Query) (Answer, error) {
			var m core.Matches
			return func(q Query) (Answer, error) {
				if u, ok := x.(core.Unfolder); ok && q.Unfold {
					q.Local = u.Unfold(nil, blockhash.SequenceHashes(nil, q.Local))
				}
				m.EarlyExit = q.Early
				x.Find(q.Local, &m)
				return ReadAnswer(&m)
			}
		})
}

// plan takes notes of a history and makes a prompt before every so many of its
// operations.
func plan(ops []Op, seed uint64, every int) (*Log, [][]uint64) {
	prompts := NewPrompts(rand.New(rand.NewPCG(seed, 5)))
	var queries [][]uint64
	log := NewLog(ops, func(i int, o *core.Oracle) {
		if i%every == 0 {
			queries = append(queries, prompts.Next(o))
		}
		prompts.Note(&ops[i])
	})
	return log, queries
}

// Beside applies ops in order while readers look up, and checks each answer.
// newFind returns one reader's lookup.
func Beside(ops []Op, seed uint64, readers int, apply func(*Op) error, newFind func() func(Query) (Answer, error)) error {
	every := max(1, len(ops)/256)
	log, queries := plan(ops, seed, every)

	var started, done, finds atomic.Int64
	var stop atomic.Bool
	failed := make(chan error, readers)
	var wg sync.WaitGroup
	for i := range readers {
		find := newFind()
		r := rand.New(rand.NewPCG(seed, 6+uint64(i)))
		wg.Go(func() {
			for !stop.Load() {
				// Mostly what is being written now.
				q := Query{Local: queries[min(len(queries)-1, int(done.Load())/every)]}
				if r.IntN(3) == 0 {
					q.Local = queries[r.IntN(len(queries))]
				}
				switch r.IntN(8) {
				case 0:
					q.Early = true
				case 1:
					q.Unfold = true
				}
				from := int(done.Load())
				a, err := find(q)
				to := int(started.Load())
				if err == nil {
					err = log.Allowed(q, a, from, to)
				}
				if err != nil {
					failed <- err
					stop.Store(true)
				}
				finds.Add(1)
				runtime.Gosched() // to the writer, where there are few processors
			}
		})
	}
	var err error
	for i := range ops {
		// The readers have their share of the time, whatever the scheduler.
		for finds.Load() < int64(i)/4 && !stop.Load() {
			runtime.Gosched()
		}
		if stop.Load() {
			break
		}
		started.Store(int64(i + 1))
		if err = apply(&ops[i]); err != nil {
			err = fmt.Errorf("operation %d: %w", i, err)
			break
		}
		done.Store(int64(i + 1))
	}
	stop.Store(true)
	wg.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return err
	}
}
