package core

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
)

// TestVectorsDoAsTheLoops: what assembly does to a directory is what the loops do, in every
// state of its chunks and leaves: full and empty ones, overflowed ones, those that are to
// grow or to shrink or have spilled entries, tags that are alike and hashes that are there.
func TestVectorsDoAsTheLoops(t *testing.T) {
	if !vectors {
		t.Skip("this machine has no vectors, so that the other tests run the loops")
	}
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		a := &arena{mapped: new(atomic.Int64)}
		d := &directory{arena: a, pages: &pages{mapped: a.mapped}, key: Key{seed, 1}.hasher()}
		type entry struct {
			hash  uint64
			block uint32
		}
		var in []entry
		fresh := func() entry {
			b := a.alloc(1, 0, 0) << segBits
			e := entry{r.Uint64(), b}
			a.set(b, e.hash)
			return e
		}
		for len(in) < int(seed)*1500+1 {
			e := fresh()
			d.insert(e.hash, e.block)
			in = append(in, e)
		}
		leaves := func() []leaf {
			var l []leaf
			for _, t := range d.top {
				l = append(l, *t.leaf)
			}
			return l
		}
		pages := func() []page {
			var p []page
			for _, t := range d.top {
				p = append(p, *t.page)
			}
			return p
		}
		reset := func(l []leaf, p []page) {
			for i, t := range d.top {
				*t.leaf, *t.page = l[i], p[i]
			}
		}
		// same runs both on the same state, and leaves what they made of it.
		same := func(what string, at []aim, blocks []uint32, loop, vector func([]aim, []uint32) int) int {
			t.Helper()
			l, p := leaves(), pages()
			n := loop(at, blocks)
			gotL, gotP := leaves(), pages()
			reset(l, p)
			if k := vector(at, blocks); k != n || !slices.Equal(leaves(), gotL) || !slices.Equal(pages(), gotP) {
				t.Fatalf("seed %d: %s: the loop takes %d, the vectors %d of %d; leaves alike: %v, chunks alike: %v",
					seed, what, n, k, len(at), slices.Equal(leaves(), gotL), slices.Equal(pages(), gotP))
			}
			return n
		}
		taken := 0
		for range 150 {
			for _, t := range d.top { // odd states, now and then
				switch r.IntN(12) {
				case 0:
					t.leaf.spilled = 1
				case 1:
					t.leaf.low = t.leaf.n
				case 2:
					t.leaf.low = t.leaf.n - min(t.leaf.n, uint32(r.IntN(3)))
				default:
					t.leaf.spilled, t.leaf.low = 0, 0
				}
			}
			p, n := &probe{}, r.IntN(probeHashes+1)
			var batch []entry
			for range n {
				if r.IntN(20) == 0 {
					batch = append(batch, in[r.IntN(len(in))]) // there already
				} else {
					batch = append(batch, fresh())
				}
			}
			out := r.IntN(2) == 0 // some of those that are in
			for i := range batch {
				if out && r.IntN(20) > 0 {
					batch[i] = in[r.IntN(len(in))]
				}
				p.hashes[i], p.blocks[i] = batch[i].hash, batch[i].block
			}
			d.locate(p, p.hashes[:n])
			loops := p.at
			d.aimEach(loops[:n], p.hashes[:n])
			if loops != p.at {
				t.Fatalf("seed %d: the places of %d hashes differ", seed, n)
			}
			for at := 0; at < n; at++ { // each call ends before what it cannot take
				if out {
					k := same("removing", p.at[at:n], p.blocks[at:n], removeEach, removeAt)
					for _, e := range batch[at : at+k] {
						in = slices.DeleteFunc(in, func(o entry) bool { return o.block == e.block })
					}
					taken, at = taken+k, at+k
				} else {
					k := same("entering", p.at[at:n], p.blocks[at:n], insertEach, insertAt)
					in = append(in, batch[at:at+k]...)
					taken, at = taken+k, at+k
				}
			}
			if len(in) == 0 {
				in = append(in, fresh())
			}
		}
		if taken < 500 {
			t.Errorf("seed %d: only %d entries were taken", seed, taken)
		}
	}
}
