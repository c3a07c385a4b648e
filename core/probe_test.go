package core

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestVectorsDoAsTheLoops: what assembly does to a directory is what the loops do, in every
// state of its chunks and leaves: full and empty ones, overflowed ones, those that are to
// grow or to shrink or have spilled entries, tags that are alike and hashes that are there.
func TestVectorsDoAsTheLoops(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	eachVectors(t, vectorsDoAsTheLoops)
}

func vectorsDoAsTheLoops(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 3))
		a := &arena{stock: new(hugemem.Stock)}
		d := &directory{arena: a, pages: &pages{stock: a.stock}, key: Key{seed, 1}.hasher()}
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
		same := func(what string, at []aim, blocks []uint32, loop, vector func([]aim, []uint32) (int, uint32)) (int, uint32) {
			t.Helper()
			l, p := leaves(), pages()
			n, late := loop(at, blocks)
			gotL, gotP := leaves(), pages()
			reset(l, p)
			if k, also := vector(at, blocks); k != n || also != late || !slices.Equal(leaves(), gotL) || !slices.Equal(pages(), gotP) {
				t.Fatalf("seed %d: %s: the loop takes %d, late %b, the vectors %d, late %b, of %d; leaves alike: %v, chunks alike: %v",
					seed, what, n, late, k, also, len(at), slices.Equal(leaves(), gotL), slices.Equal(pages(), gotP))
			}
			return n, late
		}
		taken, lates := 0, 0
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
				var k int
				var late uint32
				if out {
					k, late = same("removing", p.at[at:n], p.blocks[at:n], removeEach, removeAt)
				} else {
					k, late = same("entering", p.at[at:n], p.blocks[at:n], insertEach, insertAt)
				}
				for i, e := range batch[at : at+k] {
					m := p.at[at+i].mixed
					isLate := late>>i&1 != 0
					switch _, there := d.find(e.hash); {
					case out && isLate && !d.refAt(m).remove(m, e.block):
					case out:
						in = slices.DeleteFunc(in, func(o entry) bool { return o.block == e.block })
					case isLate && there:
					default:
						if isLate {
							d.refAt(m).put(m, e.block)
						}
						in = append(in, e)
					}
				}
				taken, lates, at = taken+k, lates+bits.OnesCount32(late), at+k
			}
			if len(in) == 0 {
				in = append(in, fresh())
			}
		}
		if taken < 500 {
			t.Errorf("seed %d: only %d entries were taken", seed, taken)
		}
		if seed > 0 && lates < 20 {
			t.Errorf("seed %d: only %d entries were late", seed, lates)
		}
	}
}

// TestVectorsKeepToTheTags: what stands behind a chunk's tags is not taken for one, nor what is behind the chunk for its block.
func TestVectorsKeepToTheTags(t *testing.T) {
	eachVectors(t, func(t *testing.T) {
		chunks, l := make([]chunk, 2), new(leaf)
		t.Cleanup(func() { runtime.KeepAlive([]any{chunks, l}) }) // so they stay where they are
		for tag := 1; tag < 256; tag++ {
			chunks[0], chunks[1], *l = chunk{guest: uint16(tag)}, chunk{tags: [chunkSlots]uint8{3: 0x50}}, leaf{}
			at := aim{uintptr(unsafe.Pointer(&chunks[0])), uintptr(unsafe.Pointer(l)), 5<<60 | uint64(tag)}
			if n, late := insertAt([]aim{at}, []uint32{1}); n != 1 || late != 0 || chunks[0].tags[0] != uint8(tag) {
				t.Fatalf("tag %d: %d are taken, late %b", tag, n, late)
			}
		}
	})
}

// TestEnteringStopsAtTheFirstThatIsThere: of a batch exactly what is before the first hash that
// the directory has is entered, also where that one stands in another chunk than its home, so
// that those after it were entered before it was found; and removing takes out what it is told.
func TestEnteringStopsAtTheFirstThatIsThere(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	a := &arena{stock: new(hugemem.Stock)}
	d := &directory{arena: a, pages: &pages{stock: a.stock}, key: Key{3, 1}.hasher()}
	model := map[uint64]uint32{}
	var in []uint64
	away := 0
	check := func(e uint64) {
		t.Helper()
		want, there := model[e]
		if b, ok := d.find(e); ok != there || b != want {
			t.Fatalf("hash %x: block %d, %v; want %d, %v", e, b, ok, want, there)
		}
	}
	p := &probe{}
	for step := range 3000 {
		n := 1 + r.IntN(probeHashes)
		if len(in) < 7000 || step%2 == 0 {
			hashes := make([]uint64, n)
			for i := range hashes {
				if hashes[i] = r.Uint64(); len(in) > 0 && r.IntN(24) == 0 {
					hashes[i] = in[r.IntN(len(in))]
				} else if i > 0 && r.IntN(24) == 0 {
					hashes[i] = hashes[r.IntN(i)]
				}
			}
			for len(hashes) > 0 {
				n = len(hashes)
				for i, e := range hashes {
					p.blocks[i] = a.alloc(1, 0, 0) << segBits
					a.set(p.blocks[i], e)
				}
				d.locate(p, hashes)
				k := d.insertAll(p, hashes)
				for i, e := range hashes[:k] {
					if _, there := model[e]; there {
						t.Fatalf("step %d: entered again", step)
					}
					model[e] = p.blocks[i]
					in = append(in, e)
				}
				for _, e := range hashes {
					check(e)
				}
				if k < n {
					e := hashes[k]
					if _, there := model[e]; !there {
						d.insert(e, p.blocks[k])
						model[e] = p.blocks[k]
						in = append(in, e)
					} else if m := d.key.mix(e); k+1 < n {
						if _, home := d.findIn(d.refAt(m).chunk(home(m)), d.refAt(m).leaf.mark(m), e); !home {
							away++
						}
					}
					k++
				}
				hashes = hashes[k:]
			}
			continue
		}
		var hashes []uint64
		for range min(n, len(in)) {
			i := r.IntN(len(in))
			hashes = append(hashes, in[i])
			in[i] = in[len(in)-1]
			in = in[:len(in)-1]
		}
		for i, e := range hashes {
			p.blocks[i] = model[e]
			delete(model, e)
		}
		d.locate(p, hashes)
		for i := d.removeAll(p, 0, len(hashes)); i < len(hashes); i++ {
			d.remove(hashes[i], p.blocks[i])
		}
		for _, e := range hashes {
			check(e)
		}
	}
	for e := range model {
		check(e)
	}
	if d.count != len(model) || away < 20 {
		t.Errorf("the directory counts %d of %d entries; %d hashes were there elsewhere than at home, of 20", d.count, len(model), away)
	}
}
