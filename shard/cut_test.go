package shard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
)

// taken is what a cut gave, as a snapshot has it: holders numbered by rank.
type taken struct {
	mu       sync.Mutex
	ranks    []RankID
	number   map[core.Holder]core.Holder
	sections [][]core.Piece
	inferred []map[core.Holder][]uint64
}

// take takes a cut of the space while beside, if not nil, is called between
// its slices.
func take(t *testing.T, sp *Space, amount int, beside func()) *taken {
	t.Helper()
	k := &taken{number: make(map[core.Holder]core.Holder), sections: make([][]core.Piece, sp.Shards())}
	c, err := sp.BeginCut(t.Context(), func(shard int, p *core.Piece) {
		k.mu.Lock()
		defer k.mu.Unlock()
		q := *p
		q.Local, q.Engine, q.Held, q.Children = slices.Clone(p.Local), slices.Clone(p.Engine), slices.Clone(p.Held), slices.Clone(p.Children)
		q.Exceptions = slices.Clone(p.Exceptions)
		for i := range q.Exceptions {
			q.Exceptions[i].Hashes = slices.Clone(q.Exceptions[i].Hashes)
		}
		k.sections[shard] = append(k.sections[shard], q)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.End()
	c.Begun()
	for _, r := range c.Ranks() {
		k.number[r.Holder] = core.Holder(len(k.ranks))
		k.ranks = append(k.ranks, r.RankID)
	}
	k.inferred = c.Inferred()
	for done := false; !done; {
		if beside != nil {
			beside()
		}
		if done, err = c.Next(t.Context(), amount, func(int) {}); err != nil {
			t.Fatal(err)
		}
	}
	c.End()
	for s, pieces := range k.sections {
		for i := range pieces {
			pieces[i].Held = slices.DeleteFunc(pieces[i].Held, func(h core.PieceHeld) bool { _, ok := k.number[h.Holder]; return !ok })
			pieces[i].Exceptions = slices.DeleteFunc(pieces[i].Exceptions, func(s core.PieceException) bool { _, ok := k.number[s.Holder]; return !ok })
			for j := range pieces[i].Held {
				pieces[i].Held[j].Holder = k.number[pieces[i].Held[j].Holder]
			}
			slices.SortFunc(pieces[i].Held, func(a, b core.PieceHeld) int { return int(a.Holder) - int(b.Holder) })
			for j := range pieces[i].Exceptions {
				pieces[i].Exceptions[j].Holder = k.number[pieces[i].Exceptions[j].Holder]
			}
		}
		k.sections[s] = slices.DeleteFunc(pieces, func(p core.Piece) bool { return len(p.Held)+len(p.Exceptions)+len(p.Children) == 0 })
	}
	return k
}

// load loads it into a new space, in small steps, the sections in turn.
func (k *taken) load(t *testing.T, sp *Space) *Load {
	t.Helper()
	l, err := sp.BeginLoad(k.ranks, len(k.sections), 0)
	if err != nil {
		t.Fatal(err)
	}
	left := slices.Clone(k.sections)
	for more := true; more; {
		more = false
		for s := range left {
			n := min(3, len(left[s]))
			if n == 0 {
				continue
			}
			more = true
			if err := l.Add(t.Context(), s, left[s][:n], func() {}); err != nil {
				t.Fatal(err)
			}
			left[s] = left[s][n:]
		}
	}
	for _, names := range k.inferred {
		for h, list := range names {
			if n, ok := k.number[h]; ok {
				if err := l.Infer(t.Context(), n, list); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if err := l.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// A space loaded from a cut has the digest and the answers of the moment of the
// cut, and then goes on as the one that was never interrupted, whatever was
// written between the slices and however many shards the two have.
func TestASpaceLoadedFromACutGoesOn(t *testing.T) {
	for _, g := range generators() {
		for _, seed := range coretest.Seeds(2) {
			t.Run(fmt.Sprintf("%s/%d", g.Name, seed), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 21))
				from, to := openSpace(t, Config{Shards: 1 + rng.IntN(4)}), openSpace(t, Config{Shards: 1 + rng.IntN(4)})
				ops := history(g, seed)
				at := rng.IntN(len(ops))
				for _, op := range ops[:at] {
					apply(t, from, batchOf([]coretest.Op{op}))
				}
				want := spaceDigest(t, from)
				rest := ops[at:]
				beside := min(len(rest), 200)
				written := 0
				k := take(t, from, 1+rng.IntN(30), func() {
					for range rng.IntN(4) {
						if written < beside {
							apply(t, from, batchOf(rest[written:written+1]))
							written++
						}
					}
				})
				l := k.load(t, to)
				if got := spaceDigest(t, to); got != 0 || len(to.Ranks()) != 0 {
					t.Fatalf("digest %x, %d ranks before the commit", got, len(to.Ranks()))
				}
				if err := l.Commit(t.Context()); err != nil {
					t.Fatal(err)
				}
				if got := spaceDigest(t, to); got != want {
					t.Fatalf("digest %x after the load, want %x", got, want)
				}
				for _, op := range rest[:written] {
					apply(t, to, batchOf([]coretest.Op{op}))
				}
				for _, op := range rest[written:] {
					if a, b := apply(t, from, batchOf([]coretest.Op{op})), apply(t, to, batchOf([]coretest.Op{op})); a != b {
						t.Fatalf("%v: %+v, and %+v after the load", op, a, b)
					}
				}
				if a, b := spaceDigest(t, from), spaceDigest(t, to); a != b {
					t.Fatalf("digests %x and %x in the end", a, b)
				}
			})
		}
	}
}

// A load that is aborted leaves the space as new, and so does one that fails.
func TestALoadThatFailsLeavesNothing(t *testing.T) {
	from := openSpace(t, Config{Shards: 2})
	for i := range uint64(40) {
		apply(t, from, chain(i%5, 0, 100*i+1, 100*i+2, 100*i+3))
	}
	k := take(t, from, 7, nil)
	set := New(Config{Shards: 2})
	t.Cleanup(set.Close)
	to, err := set.Open(testSpace)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		k.load(t, to).Abort()
		if used, _ := set.MemoryBudget(); len(to.Ranks()) != 0 || to.Held() != [4]int{} || used > 1<<20 {
			t.Fatalf("after an abort: %d ranks, %v held, %d bytes", len(to.Ranks()), to.Held(), used)
		}
	}
	// A piece that fits nowhere fails the load as a whole.
	l, err := to.BeginLoad(k.ranks, 2, 0)
	if err != nil {
		t.Fatal(err)
	}
	bad := core.Piece{Number: 1, Local: []uint64{1}, Engine: []uint64{1}, Held: []core.PieceHeld{{Holder: 0, Blocks: 2}}}
	if err := l.Add(t.Context(), 0, []core.Piece{bad}, func() {}); err != nil {
		t.Fatal(err)
	}
	if err := l.Finish(t.Context()); !errors.Is(err, core.ErrPiece) {
		t.Errorf("finishing: %v", err)
	}
	l.Abort()
	k.load(t, to)
	if _, err := to.BeginLoad(k.ranks, 2, 0); !errors.Is(err, ErrNotNew) {
		t.Errorf("a load into a space that is not new: %v", err)
	}
	// A budget that is too small refuses it.
	small := openSpace(t, Config{Shards: 1, MemoryBudget: 1000})
	if l, err = small.BeginLoad(k.ranks, 2, 0); err != nil {
		t.Fatal(err)
	}
	for s, pieces := range k.sections {
		if err := l.Add(t.Context(), s, pieces, func() {}); err != nil && !errors.Is(err, ErrBudget) {
			t.Fatal(err)
		}
	}
	if err := l.Finish(t.Context()); !errors.Is(err, ErrBudget) {
		t.Errorf("beyond the budget: %v", err)
	}
	l.Abort()
}

// There is one cut of a space at a time, and pieces of ranks that are not
// there, such as replacements under way, can be told.
func TestCutsOfASpace(t *testing.T) {
	sp := openSpace(t, Config{Shards: 2})
	apply(t, sp, chain(1, 0, 1, 2, 3))
	p, err := sp.Replace(t.Context(), RankID{2, 0})
	if err != nil {
		t.Fatal(err)
	}
	ev := chain(2, 0, 7, 8).Events
	if _, err := p.Add(t.Context(), ev, [][]uint32{{1, 1}}); err != nil {
		t.Fatal(err)
	}
	c, err := sp.BeginCut(t.Context(), func(int, *core.Piece) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := sp.BeginCut(t.Context(), func(int, *core.Piece) {}); !errors.Is(err, ErrCutting) {
		t.Errorf("a second cut: %v", err)
	}
	if r := c.Ranks(); len(r) != 1 || r[0].RankID != (RankID{1, 0}) {
		t.Errorf("ranks %v", r)
	}
	c.End()
	c.End()
	k := take(t, sp, 1000, nil)
	if err := p.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := openSpace(t, Config{})
	if err := k.load(t, other).Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := spaceDigest(t, sp), spaceDigest(t, other); a != b {
		t.Errorf("digests %x and %x", a, b)
	}
	if d := depths(other, 1, 2, 3); d[RankID{1, 0}] != 3 || len(d) != 1 {
		t.Errorf("depths %v", d)
	}
}
