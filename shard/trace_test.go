package shard

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/bench/workload"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/race"
)

// happened is one event of a mock engine.
type happened struct {
	holder core.Holder
	ev     event.Event
}

// traced is a fleet of mock engines, and what they have published since take.
type traced struct {
	engines []*mock.Engine
	events  []happened
}

func newTraced(t *testing.T, engines int) *traced {
	f := &traced{}
	for i := range engines {
		e, err := mock.New(mock.Config{BlockSize: 64, Blocks: 2600, HashSeed: uint64(i % 2)}, func(ev *event.Event) {
			c := *ev
			c.Engine, c.Local = slices.Clone(ev.Engine), slices.Clone(ev.Local)
			f.events = append(f.events, happened{core.Holder(i), c})
		})
		if err != nil {
			t.Fatal(err)
		}
		f.engines = append(f.engines, e)
	}
	return f
}

func (f *traced) take() []happened {
	events := f.events
	f.events = nil
	return events
}

// batches cuts the events into batches of one worker each, up to longest
// events long, whose workers take turns at random.
func batches(r *rand.Rand, events []happened, longest int) (out []*event.Batch) {
	byHolder := map[core.Holder][]coretest.Op{}
	for _, e := range events {
		byHolder[e.holder] = append(byHolder[e.holder], coretest.Op{Holder: e.holder, Event: e.ev})
	}
	holders := slices.Sorted(maps.Keys(byHolder))
	for len(holders) > 0 {
		i := r.IntN(len(holders))
		ops := byHolder[holders[i]]
		n := min(1+r.IntN(longest), len(ops))
		out = append(out, batchOf(ops[:n]))
		if byHolder[holders[i]] = ops[n:]; n == len(ops) {
			holders = slices.Delete(holders, i, i+1)
		}
	}
	return out
}

// TestTracesEqualTheOracle replays real requests, where they are at hand, and
// generated ones through mock engines whose caches turn over: after every 256
// events, in batches of any size, any number of shards gives the oracle's
// answers, blocks and digest.
func TestTracesEqualTheOracle(t *testing.T) {
	for _, name := range []string{"conversation", "agentic", "generated"} {
		t.Run(name, func(t *testing.T) {
			var source trace.Source
			var err error
			path := filepath.Join("..", "..", "shared", "traces", name+".jsonl.zst")
			if name == "generated" {
				source, err = workload.New(workload.Default())
			} else if race.Enabled {
				t.Skip("the generated one is enough for the race detector: make test replays the others without it")
			} else if _, missing := os.Stat(path); missing != nil {
				t.Skipf("%s is not there", path)
			} else {
				source, err = trace.Open(path, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			if c, ok := source.(io.Closer); ok {
				defer func() { _ = c.Close() }()
			}
			replayTrace(t, source, 400*coretest.Scale())
		})
	}
}

func replayTrace(t *testing.T, source trace.Source, requests int) {
	r := rand.New(rand.NewPCG(1, 5))
	fleet := newTraced(t, 6)
	oracle := core.NewOracle()
	spaces := map[int]*Space{}
	for _, shards := range []int{1, 2, 3, 8} {
		spaces[shards] = openSpace(t, Config{Shards: shards})
	}
	hasher := trace.NewHasher(source.IDTokens(), 64)
	var q trace.Request
	var asked [][]uint64
	var did core.Outcome
	checked, served := 0, 0
	check := func() {
		events := fleet.take()
		for _, e := range events {
			did.Add((&coretest.Op{Holder: e.holder, Event: e.ev}).Apply(oracle))
		}
		want := oracle.Digest(SpaceHash(testSpace), identity)
		for shards, sp := range spaces {
			for _, b := range batches(r, events, 1+r.IntN(64)) {
				if err := sp.Apply(t.Context(), b, nil); err != nil {
					t.Fatal(err)
				}
			}
			if have := spaceDigest(t, sp); have != want { // after all batches before it
				t.Fatalf("%d shards, request %d: digest %#x, want %#x", shards, served, have, want)
			}
			var res Result
			for _, local := range asked {
				if have, want := answer(sp, local, &res), coretest.OracleAnswer(oracle, local); !maps.Equal(have, want) {
					t.Fatalf("%d shards, request %d, a prompt of %d blocks:\n  have %v\n  want %v", shards, served, len(local), have, want)
				}
			}
		}
		checked++
		asked = asked[max(0, len(asked)-8):]
	}
	for ; served < requests; served++ {
		if err := source.Next(&q); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		q.Output = min(q.Output, 200)
		req := mock.Request{ID: uint64(served), Input: q.Input, Output: q.Output, Local: hasher.Output(hasher.Prompt(nil, &q), &q)}
		e := fleet.engines[r.IntN(len(fleet.engines))]
		if err := e.Admit(&req); errors.Is(err, mock.ErrTooLarge) {
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		asked = append(asked, req.Local[:req.Input/64])
		for _, e := range fleet.engines {
			for range 20 {
				if !e.Idle() {
					e.Step()
				}
				if len(fleet.events) >= 256 {
					check()
				}
			}
		}
	}
	check()
	t.Log(fmt.Sprintf("%d requests, compared %d times", served, checked), did)
	if did.Removed < 1000 || checked < 3 {
		t.Errorf("%+v, compared %d times: the caches do not turn over", did, checked)
	}
}
