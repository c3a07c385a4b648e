package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestFilterVectorsDoAsTheLoop: what assembly makes of a filter is what the loop does, in lines that
// are full and empty, with far reaches and near ones, with tags that are alike and hashes that are there.
func TestFilterVectorsDoAsTheLoop(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	eachVectors(t, filterVectorsDoAsTheLoop)
}

func filterVectorsDoAsTheLoop(t *testing.T) {
	for seed := range uint64(48) {
		r := rand.New(rand.NewPCG(seed, 6))
		key := Key{seed, 7}.hasher()
		lines := []int{1, 2, 3, 8, 11, 40}[seed%6]
		a := &filter{lines: make([]filterLine, lines)}
		// A pool of hashes some of which are alike, if there are few tags.
		var pool []uint64
		for len(pool) < lines*lineSlots {
			if e := r.Uint64(); seed%2 == 0 || key.spread(e)>>8&0xFFE0 == 0 {
				pool = append(pool, e)
			}
		}
		var in []uint64
		taken := [3]int{}
		for step := range 400 {
			op := filterOp(r.IntN(3))
			if seed%4 < 2 && op == dropping && a.n < lines*lineSlots*7/8 && r.IntN(2) == 0 {
				op = adding
			}
			var hashes []uint64
			for range 1 + r.IntN(80) {
				switch {
				case op != dropping:
					hashes = append(hashes, pool[r.IntN(len(pool))])
				case len(in) > 0 && r.IntN(30) > 0:
					i := r.IntN(len(in))
					hashes = append(hashes, in[i])
					in[i], in = in[len(in)-1], in[:len(in)-1]
				}
			}
			if op == dropping && r.IntN(20) == 0 { // one that may not be there
				hashes = append(hashes, pool[r.IntN(len(pool))])
			}
			for i := 0; i < len(hashes); i++ {
				b := &filter{slices.Clone(a.lines), a.n}
				a.ask(&key, hashes[i:]) // which changes nothing
				var n int
				if i%3 == 0 {
					n = a.eachVector(op, &key, hashes[i:][:1])
				} else {
					n = a.eachVector(op, &key, hashes[i:])
				}
				k := b.each(op, &key, hashes[i:i+n])
				if k != n || a.n != b.n || !slices.Equal(a.lines, b.lines) {
					t.Fatalf("seed %d, step %d, op %d: of %d hashes the vectors take %d, the loop %d; alike: %v; %d and %d entries",
						seed, step, op, len(hashes)-i, n, k, slices.Equal(a.lines, b.lines), a.n, b.n)
				}
				taken[op] += n
				if op == adding {
					in = append(in, hashes[i:i+n]...)
				}
				if i += n; i < len(hashes) && a.one(op, a.place(&key, hashes[i])) && op == adding {
					in = append(in, hashes[i])
				}
			}
		}
		if min(taken[adding], taken[dropping], taken[asking]) < 100 {
			t.Errorf("seed %d: the vectors took %d", seed, taken)
		}
	}
}

// TestFilterVectorsKeepToTheSlots: what stands beside a line's low tags, and beside its high ones, is
// not taken for some, nor for a free slot.
func TestFilterVectorsKeepToTheSlots(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	eachVectors(t, filterVectorsKeepToTheSlots)
}

func filterVectorsKeepToTheSlots(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	key := Key{1, 9}.hasher()
	lows, highs := []uint64{1, 0x100, 0x101}, []uint64{0, 1, 0x11}
	var pool []uint64
	for len(pool) < 20 {
		e := r.Uint64()
		if m := key.spread(e) >> 8; slices.Contains(lows, m&0xFFFF) && slices.Contains(highs, m>>16&0xFF) {
			pool = append(pool, e)
		}
	}
	done := 0
	for step := range 60000 {
		a := &filter{lines: make([]filterLine, 1+r.IntN(3))}
		for i := range a.lines {
			others := step%2 == 0 // or such as are of no hash of the pool
			for s := range lineSlots {
				low := lows[r.IntN(len(lows))]
				if others {
					low = 0x200
				}
				if r.IntN(40) > 0 {
					a.lines[i].set(s, filterPlace(low|highs[r.IntN(len(highs))]<<16))
					a.n++
				}
			}
			if reach := uint8(r.IntN(4)); reach > 1 { // and so many are away
				a.lines[i][lineReach] = reach - 1 | uint8(1+r.IntN(manyAway))<<4
			}
		}
		b := &filter{slices.Clone(a.lines), a.n}
		op, hash := filterOp(step%3), pool[r.IntN(len(pool))]
		n := a.eachVector(op, &key, []uint64{hash, hash}[:1+r.IntN(2)])
		done += n
		if k := b.each(op, &key, []uint64{hash, hash}[:n]); k != n || a.n != b.n || !slices.Equal(a.lines, b.lines) {
			t.Fatalf("step %d, op %d: the vectors take %d, the loop %d; %d and %d entries\n%x\n%x", step, op, n, k, a.n, b.n, a.lines, b.lines)
		}
		p := b.place(&key, hash)
		if home := &b.lines[p.home()]; n == 0 && home[lineReach] == 0 && home.find(p) < 0 && (op != adding || home.find(0) >= 0) && op != dropping {
			t.Fatalf("step %d, op %d: not done, though its home line is enough for it\n%x", step, op, b.lines)
		}
	}
	if done < 10000 {
		t.Errorf("the vectors took %d", done)
	}
}
