package coretest

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/core"
)

// RunConcurrent checks lookups beside a writer: each answer must be one that
// the presence of each block allowed at some moment during the call. Run it
// with -race.
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
		func() func([]uint64) (Answer, error) {
			var m core.Matches
			return func(q []uint64) (Answer, error) {
				x.Find(q, &m)
				return ReadAnswer(&m)
			}
		})
}

// Beside applies ops in order while readers look up, and checks each answer.
// newFind returns one reader's lookup.
func Beside(ops []Op, seed uint64, readers int, apply func(*Op) error, newFind func() func([]uint64) (Answer, error)) error {
	prompts := NewPrompts(rand.New(rand.NewPCG(seed, 5)))
	var queries [][]uint64
	every := max(1, len(ops)/256)
	log := NewLog(ops, func(i int, o *core.Oracle) {
		if i%every == 0 {
			queries = append(queries, prompts.Next(o))
		}
		prompts.Note(&ops[i])
	})

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
				q := queries[min(len(queries)-1, int(done.Load())/every)]
				if r.IntN(3) == 0 {
					q = queries[r.IntN(len(queries))]
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
