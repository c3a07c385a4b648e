package core

import (
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"
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
	a := &arena{mapped: new(atomic.Int64)}
	d := &directory{arena: a, pages: &pages{mapped: a.mapped}}
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
