package shard

import (
	"errors"
	"math"
	"testing"

	"github.com/kvatlas/kvatlas/core"
)

// Copies that do not go with the events are refused where they are given: an owner would
// end the process.
func TestCopiesGoWithTheEvents(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	p, err := sp.Replace(t.Context(), RankID{1, 0})
	if err != nil {
		t.Fatal(err)
	}
	events := chain(1, 0, 10, 11).Events
	for _, copies := range [][][]uint32{nil, {{1}}, {{1, 1}, {1}}} {
		if _, err := p.Add(t.Context(), events, copies); err == nil {
			t.Errorf("copies %v of one event of two blocks are taken", copies)
		}
		if _, err := p.Attach(t.Context(), events, copies); err == nil {
			t.Errorf("copies %v of one event of two blocks are attached", copies)
		}
	}
	if err := p.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// No number of copies keeps an owner busy, of a rank or of a pool.
func TestAnyNumberOfCopiesIsRestored(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for _, id := range []RankID{{1, 0}, poolID("p")} {
		p, err := sp.Replace(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		events := chain(id.Worker, id.DPRank, 10, 11).Events
		if _, err := p.Add(t.Context(), events, [][]uint32{{math.MaxUint32, math.MaxUint32}}); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Finish(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Attach(t.Context(), chain(id.Worker, id.DPRank, 10, 12).Events, [][]uint32{{1, math.MaxUint32}}); err != nil {
			t.Fatal(err)
		}
		if err := p.Commit(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		list, err := sp.DumpRank(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for _, d := range list {
			for _, n := range d.Copies {
				if n == math.MaxUint32 {
					most++
				}
			}
		}
		if most != 3 {
			t.Errorf("rank %v has %d blocks of as many copies as were told, want 3", id, most)
		}
	}
}

// What is over stays as it ended: a deferred Abort takes nothing away that was committed.
func TestAReplacementEndsOnce(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for _, commit := range []bool{true, false} {
		p, err := sp.Replace(t.Context(), RankID{1, 0})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Add(t.Context(), chain(1, 0, 10).Events, [][]uint32{{1}}); err != nil {
			t.Fatal(err)
		}
		if commit {
			err = p.Commit(t.Context(), nil)
		} else {
			err = p.Abort(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Commit(t.Context(), nil); !errors.Is(err, ErrReplaced) {
			t.Errorf("committed again: %v", err)
		}
		if _, err := p.Add(t.Context(), chain(1, 0, 20).Events, [][]uint32{{1}}); !errors.Is(err, ErrReplaced) {
			t.Errorf("added when it was over: %v", err)
		}
		if err := p.Abort(t.Context()); err != nil {
			t.Errorf("aborted when it was over: %v", err)
		}
		if d := depths(sp, 10); d[RankID{1, 0}] != 1 {
			t.Errorf("depths %v", d)
		}
	}
}

// So does a load, and what went wrong is not shown.
func TestALoadEndsOnce(t *testing.T) {
	pieces := []core.Piece{{Number: 1, Local: []uint64{10}, Engine: []uint64{10}, Held: []core.PieceHeld{{Holder: 0, Blocks: 1}}}}
	begin := func(sp *Space) *Load {
		l, err := sp.BeginLoad([]RankID{{1, 0}}, 1, 1)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Add(t.Context(), 0, pieces, nil); err != nil {
			t.Fatal(err)
		}
		return l
	}
	sp := openSpace(t, Config{Shards: 2})
	if _, err := sp.BeginLoad([]RankID{{1, 0}, {1, 0}}, 1, 1); err == nil {
		t.Error("a rank is loaded twice")
	}
	if _, err := sp.BeginLoad([]RankID{{1, 0}}, -1, 1); err == nil {
		t.Error("less than no sections are loaded")
	}
	l := begin(sp) // the space is new as before
	l.Abort()
	if err := l.Commit(t.Context()); err == nil {
		t.Error("what was aborted is committed")
	}
	if d := depths(sp, 10); len(d) != 0 {
		t.Errorf("depths %v after an abort", d)
	}
	l = begin(sp)
	if err := l.Add(t.Context(), 0, []core.Piece{{Number: 2, Parent: 9, Local: []uint64{1}, Engine: []uint64{1}}}, nil); !errors.Is(err, core.ErrPiece) {
		t.Errorf("a piece without its parent: %v", err)
	}
	l.Abort()
	l = begin(sp)
	if err := errors.Join(l.Finish(t.Context()), l.Commit(t.Context())); err != nil {
		t.Fatal(err)
	}
	l.Abort()
	if err := l.Commit(t.Context()); err == nil {
		t.Error("committed twice")
	}
	if err := l.Add(t.Context(), 0, nil, nil); !errors.Is(err, errCommitted) {
		t.Errorf("what comes after the commit: %v", err)
	}
	if d := depths(sp, 10); len(d) != 1 {
		t.Errorf("depths %v of what is loaded", d)
	}
}

// No number of branches is too small or too large to be asked for.
func TestAnyNumberOfBranches(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	for h := range uint64(200) {
		apply(t, sp, chain(1, 0, h+1))
	}
	for limit, want := range map[int]int{math.MinInt: 0, -1: 0, 0: 0, 3: 3, math.MaxInt: 200} {
		if found, ok := sp.Branches(nil, limit, 1000); len(found.List) != want || !ok {
			t.Errorf("%d branches of limit %d, want %d", len(found.List), limit, want)
		}
	}
}

// What is made ahead is bounded, and no budget is below nothing.
func TestAnySettings(t *testing.T) {
	for _, cfg := range []Config{
		{Shards: 2, Queue: math.MaxInt}, {Shards: MaxShards + 1}, {Shards: math.MinInt, Queue: math.MinInt, MaxSpaces: math.MinInt, MaxRanks: math.MinInt},
		{Shards: 2, MemoryBudget: -1}, {Shards: 2, MemoryBudget: math.MaxInt64},
	} {
		sp := openSpace(t, cfg)
		if n := sp.Shards(); n > MaxShards || n < 1 {
			t.Errorf("%d shards", n)
		}
		if out, err := sp.ApplyWait(t.Context(), chain(1, 0, 10, 11)); err != nil || out.Stored != 2 {
			t.Errorf("%+v with %+v: %v", out, cfg, err)
		}
	}
}
