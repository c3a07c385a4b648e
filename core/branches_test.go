package core_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
)

const (
	allBranches = 1 << 20
	allChildren = 1 << 30
)

// byTree looks a prompt up by going down the tree, and compares what a branch says of
// itself with what is below it.
func byTree(x *core.Radix, query []uint64) (coretest.Answer, error) {
	answer := coretest.Answer{}
	var path []core.Step
	joined, matched := false, 0
	for first := true; matched < len(query); first = false {
		found, ok := x.Branches(path, allBranches, allChildren)
		if !ok || !found.Whole || found.Looked != len(found.List) {
			return nil, fmt.Errorf("after %d blocks: %v, %+v", matched, ok, found)
		}
		at := slices.IndexFunc(found.List, func(b core.Branch) bool { return b.First == query[matched] })
		if at < 0 {
			break
		}
		b := found.List[at]
		if int(b.Depth) != matched {
			return nil, fmt.Errorf("branch %+v follows %d blocks", b, matched)
		}
		if path = slices.Clone(path); b.Joins && joined {
			path[len(path)-1] = b.Step
		} else {
			path = append(path, b.Step)
		}
		joined = b.Joins
		n, through := x.Follows(path, query, allChildren)
		holders := 0
		blocks, ok := x.HoldersOf(path, allChildren, func(h core.Holder, d [event.NumTiers]uint32) {
			holders++
			was, is := answer[h]
			if !first && !is {
				return // it has not what is before
			}
			for t := range d {
				if int(was[t]) == matched {
					was[t] += min(d[t], uint32(n-matched))
				}
			}
			answer[h] = was
		})
		next, _ := x.Branches(path, allBranches, allChildren)
		if !ok || blocks != b.Blocks || blocks == 0 || holders != b.Holders || len(next.List) != b.Children || through != (n == matched+blocks) {
			return nil, fmt.Errorf("branch %+v has %d blocks, %d holders and %d branches below it; %d blocks, %v", b, blocks, holders, len(next.List), n, through)
		}
		if matched = n; !through {
			break
		}
	}
	maps.DeleteFunc(answer, func(_ core.Holder, d [event.NumTiers]uint32) bool { return d[event.NumTiers-1] == 0 })
	return answer, nil
}

// What is found by going down the tree is what the Oracle answers.
func TestTheTreeIsWhatTheOracleHolds(t *testing.T) {
	for _, g := range coretest.Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(max(1, g.Seeds/8)) {
				x, o := core.NewRadix(core.Options{}), core.NewOracle()
				prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 9)))
				for i, op := range g.History(seed) {
					op.Apply(x)
					op.Apply(o)
					prompts.Note(&op)
					if i%g.Interval != 0 {
						continue
					}
					for range 8 {
						query := prompts.Next(o)
						have, err := byTree(x, query)
						if want := coretest.OracleAnswer(o, query); err != nil || !maps.Equal(have, want) {
							t.Fatalf("seed %d, operation %d, %v:\n  have %v %v\n  want %v", seed, i, query, have, err, want)
						}
					}
				}
			}
		})
	}
}

// Who goes down the tree beside the writer sees what may be of several moments, and nothing
// else.
func TestTheTreeBesideTheWriter(t *testing.T) {
	for _, g := range coretest.Generators() {
		x := core.NewRadix(core.Options{})
		done := make(chan struct{})
		var readers sync.WaitGroup
		for range 2 {
			readers.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					down(t, x, nil, false, 0)
				}
			})
		}
		for _, op := range g.History(1) {
			op.Apply(x)
		}
		close(done)
		readers.Wait()
	}
}

// down looks at the first branches of each level, to some depth.
func down(t *testing.T, x *core.Radix, path []core.Step, joined bool, level int) {
	found, _ := x.Branches(path, 3, 1000)
	for _, b := range found.List {
		below := append(slices.Clone(path), b.Step)
		if b.Joins && joined {
			below = append(slices.Clone(path[:len(path)-1]), b.Step)
		}
		blocks, _ := x.HoldersOf(below, 1000, func(h core.Holder, d [event.NumTiers]uint32) {
			if !slices.IsSorted(d[:]) || d[event.NumTiers-1] == 0 {
				t.Errorf("holder %d has %v", h, d)
			}
		})
		if b.Blocks < 0 || b.Holders < 0 || blocks < 0 {
			t.Errorf("%+v, %d blocks", b, blocks)
		}
		x.Follows(below, []uint64{b.First, 2, 3}, 1000)
		if level < 6 {
			down(t, x, below, b.Joins, level+1)
		}
	}
}

// A call looks at no more than it may, and gives no more than it is asked for.
func TestTheTreesLimits(t *testing.T) {
	x := core.NewRadix(core.Options{})
	for i := range uint64(1000) {
		x.Store(core.Holder(i%10), &event.Event{Kind: event.Stored, Local: []uint64{i + 1, 7}, Engine: []uint64{2*i + 1, 2*i + 2}}, false)
	}
	found, ok := x.Branches(nil, 5, 100)
	if !ok || len(found.List) != 5 || found.Looked > 100 || found.Whole {
		t.Errorf("%v %+v", ok, found)
	}
	if found, _ = x.Branches(nil, 5, 1<<20); found.Looked != 1000 || !found.Whole || len(found.List) != 5 {
		t.Errorf("%+v", found)
	}
	for limit, want := range map[int]int{math.MinInt: 0, -1: 0, 0: 0, math.MaxInt: 1000} {
		if found, ok := x.Branches(nil, limit, 1<<20); !ok || len(found.List) != want {
			t.Errorf("%d of limit %d, want %d", len(found.List), limit, want)
		}
	}
	for _, path := range [][]core.Step{{{Depth: 0, First: 9999}}, {{Depth: 1, First: 1}}, {{Depth: 0, First: 1}, {Depth: 0, First: 1}, {Depth: 9, First: 7}}, {{Depth: 1 << 31, First: 1}}} {
		if found, ok := x.Branches(path, 5, 100); ok {
			t.Errorf("%v: %+v", path, found)
		}
		if n, through := x.Follows(path, []uint64{1, 7}, 100); through {
			t.Errorf("%v: %d", path, n)
		}
		if n, ok := x.HoldersOf(path, 100, func(core.Holder, [event.NumTiers]uint32) {}); ok {
			t.Errorf("%v: %d", path, n)
		}
	}
}
