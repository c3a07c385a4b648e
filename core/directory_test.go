package core

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/hugemem"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// BenchmarkDirectory replaces the oldest hashes of a full directory, a segment
// at a time.
func BenchmarkDirectory(b *testing.B) {
	b.Run("64k", func(b *testing.B) { benchDirectory(b, 12) })
	b.Run("1M", func(b *testing.B) { benchDirectory(b, 16) })
}

func benchDirectory(b *testing.B, benchBits int) {
	segments := 1 << benchBits
	r := rand.New(rand.NewPCG(1, 2))
	a := &arena{stock: new(hugemem.Stock)}
	d := &directory{arena: a, pages: &pages{stock: a.stock}}
	segs := make([]uint32, segments)
	for i := range segs {
		segs[i] = a.alloc(1, 0, 0)
		for j := range a.hashes(segs[i]) {
			n := r.Uint64()
			a.hashes(segs[i])[j] = n
			d.insert(n, segs[i]<<segBits|uint32(j))
		}
	}
	fresh := make([]uint64, 1<<20)
	for i := range fresh {
		fresh[i] = r.Uint64()
	}
	defer a.reset()
	defer d.pages.reset()
	var p probe
	slow := 0
	// The floor: the home chunks of random hashes, one after the other and
	// independent.
	begun := time.Now()
	for i := 0; i+segBlocks <= len(fresh); i += segBlocks {
		d.locate(&p, fresh[i:i+segBlocks])
	}
	floor := time.Since(begun)
	b.ResetTimer()
	for i := 0; i < b.N; i++ {
		s := segs[i%segments]
		hashes := a.hashes(s)
		for j := range hashes {
			p.blocks[j] = s<<segBits | uint32(j)
		}
		d.locate(&p, hashes)
		for j := d.removeAll(&p, 0, len(hashes)); j < len(hashes); j++ {
			slow++
			d.remove(hashes[j], p.blocks[j])
		}
		k := i * segBlocks % (len(fresh) - segBlocks)
		copy(hashes, fresh[k:])
		for j := range hashes {
			hashes[j] += uint64(i) << 40
		}
		d.locate(&p, hashes)
		for j := d.insertAll(&p, hashes); j < len(hashes); j++ {
			slow++
			d.insert(hashes[j], p.blocks[j])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(2*segBlocks), "ns/name")
	b.ReportMetric(float64(floor.Nanoseconds())/float64(len(fresh)), "locate-ns/name")
	b.ReportMetric(float64(slow)/float64(b.N)/(2*segBlocks), "slow/name")
}

// TestReservedRoomIsUsedAndGivenBack: entries that were expected split no leaf, and what
// was expected in vain takes no memory for long.
func TestReservedRoomIsUsedAndGivenBack(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	const n = 100_000
	r := rand.New(rand.NewPCG(1, 2))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	fill := func(d *directory, n int) {
		for i := 0; i < n; i += segBlocks {
			s := a.alloc(1, 0, 0)
			for j := range a.hashes(s) {
				a.hashes(s)[j] = r.Uint64()
				d.insert(a.hashes(s)[j], s<<segBits|uint32(j))
			}
		}
	}
	made := func() *directory { return &directory{arena: a, pages: &pages{stock: a.stock}} }

	grown, reserved := made(), made()
	fill(grown, n)
	reserved.reserve(n)
	gen := reserved.gen
	if fill(reserved, n); reserved.gen != gen {
		t.Errorf("leaves were made %d times while %d expected entries came", reserved.gen-gen, n)
	}
	if reserved.trim(); reserved.leaves > grown.leaves {
		t.Errorf("%d leaves of reserved room, %d of grown", reserved.leaves, grown.leaves)
	}

	few, little := made(), made()
	few.reserve(64 * n)
	fill(few, n)
	few.trim()
	if most := 3 * grown.leaves; few.leaves > most {
		t.Errorf("%d leaves for %d entries where 64 times as many were expected, want at most %d", few.leaves, n, most)
	}
	if little.reserve(n); little.leaves == 0 {
		t.Error("nothing was reserved")
	}
	if little.trim(); little.leaves != 0 || little.pages.inUse != 0 {
		t.Errorf("%d leaves of nothing", little.leaves)
	}
	for _, d := range []*directory{grown, reserved, few} {
		for s := uint32(1); s < 4; s++ {
			if b, ok := d.find(a.hashes(s)[0]); d == grown && (!ok || b != s<<segBits) {
				t.Errorf("segment %d is not found", s)
			}
		}
		d.pages.reset()
	}
}

// TestWhatIsSetAsideForManyIsEnough: of who becomes dense more hashes are entered than most directories of sparse
// holders have.
func TestWhatIsSetAsideForManyIsEnough(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	r := rand.New(rand.NewPCG(1, 3))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	for _, have := range []int{0, 100, leafHigh, 8 * leafHigh, 100_000} {
		for _, n := range []int{64, 1024, 4 * leafHigh, 40_000, 400_000} {
			d := &directory{arena: a, pages: &pages{stock: a.stock}}
			fill := func(n int) {
				for i := 0; i < n; i += segBlocks {
					s := a.alloc(1, 0, 0)
					for j := range a.hashes(s)[:min(segBlocks, n-i)] {
						a.hashes(s)[j] = r.Uint64()
						d.insert(a.hashes(s)[j], s<<segBits|uint32(j))
					}
				}
			}
			fill(have)
			was, need := d.bytes(), d.need(n)
			fill(n)
			if took := d.bytes() - was; took > need+stepSlack {
				t.Errorf("%d entries beside %d took %d bytes, set aside %d", n, have, took, need)
			}
			d.pages.reset()
		}
	}
}

// TestSearchesStayShort: however long entries come and go, chunks know about which of their
// entries stand elsewhere. They did not: counts stuck, and each search became long.
func TestSearchesStayShort(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	a := &arena{stock: new(hugemem.Stock)}
	defer a.reset()
	d := &directory{arena: a, pages: &pages{stock: a.stock}, key: Key{1, 5}.hasher()}
	defer d.pages.reset()
	const n = leafHigh - 100
	p := &probe{}
	blocks := make([]uint32, n)
	for i := range blocks {
		blocks[i] = a.alloc(1, 0, 0) << segBits
	}
	var batch [probeHashes]uint64
	for turn := range 200 * n / probeHashes {
		at := turn * probeHashes % (n - n%probeHashes)
		if turn*probeHashes >= n {
			for i := range batch {
				p.blocks[i] = blocks[at+i]
				batch[i] = a.at(p.blocks[i])
			}
			d.locate(p, batch[:])
			if k := d.removeAll(p, 0, probeHashes); k < probeHashes {
				t.Fatalf("turn %d: took %d out", turn, k)
			}
		}
		for i := range batch {
			p.blocks[i], batch[i] = blocks[at+i], r.Uint64()
			a.set(p.blocks[i], batch[i])
		}
		d.locate(p, batch[:])
		for k := d.insertAll(p, batch[:]); k < probeHashes; k++ {
			d.insert(batch[k], p.blocks[k])
		}
	}
	counted, there, err := d.checkElsewhere()
	if err != nil {
		t.Fatal(err)
	}
	if counted > there+there/4 {
		t.Errorf("chunks count entries elsewhere of %d classes, there are %d", counted, there)
	}
}
