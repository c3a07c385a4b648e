package core

import (
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkFilter: filters in turns, so that they are not in the nearest cache, and one alone; their
// load is about two thirds, and what is added longest ago is dropped. Each has hashes of its own:
// were they the same, processors would learn from one filter which lines of the next are full.
func BenchmarkFilter(b *testing.B) {
	const full, pool = 16384, 1 << 16
	loops := func(f *filter, op filterOp, key *hasher, hashes []uint64) int {
		if len(hashes) > 1 {
			return f.each(op, key, hashes)
		}
		f.one(op, f.place(key, hashes[0]))
		return 1
	}
	vector := func(f *filter, op filterOp, key *hasher, hashes []uint64) int {
		if op == adding {
			return f.add(key, hashes)
		}
		f.drop(key, hashes)
		return len(hashes)
	}
	for _, c := range []struct {
		name           string
		filters, batch int
		do             func(*filter, filterOp, *hasher, []uint64) int
	}{
		{"vectors/filters=64/batch=1000", 64, 1000, vector},
		{"vectors/filters=1/batch=1", 1, 1, vector},
		{"loops/filters=64/batch=1000", 64, 1000, loops},
		{"loops/filters=1/batch=1", 1, 1, loops},
	} {
		b.Run(c.name, func(b *testing.B) {
			key, r := Key{1, 2}.hasher(), rand.New(rand.NewPCG(1, 8))
			hashes := make([]uint64, 2*pool)
			for i := range hashes[:pool] {
				hashes[i] = r.Uint64()
			}
			copy(hashes[pool:], hashes)
			held := full - c.batch
			window := func(i, at int) []uint64 { return hashes[(at+i*pool/c.filters)%pool:] }
			fs := make([]*filter, c.filters)
			for i := range fs {
				fs[i] = newFilter(full)
				fs[i].add(&key, window(i, 0)[:held])
			}
			at := 0
			turn := func() (adds, drops time.Duration) {
				for i, f := range fs {
					added, dropped := window(i, at+held)[:c.batch], window(i, at)[:c.batch]
					t0 := time.Now()
					c.do(f, adding, &key, added)
					t1 := time.Now()
					c.do(f, dropping, &key, dropped)
					adds += t1.Sub(t0)
					drops += time.Since(t1)
				}
				at += c.batch
				return adds, drops
			}
			if c.batch == 1 {
				f := fs[0]
				for b.Loop() {
					c.do(f, adding, &key, hashes[(at+held)%pool:][:1])
					c.do(f, dropping, &key, hashes[at%pool:][:1])
					at++
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/2, "ns/hash")
				return
			}
			var adds, drops time.Duration
			for b.Loop() {
				a, d := turn()
				adds, drops = adds+a, drops+d
			}
			n := float64(b.N * c.filters * c.batch)
			b.ReportMetric(float64(adds)/n, "ns/add")
			b.ReportMetric(float64(drops)/n, "ns/drop")
			if f := fs[0]; f.n != held {
				b.Fatalf("%d entries, not %d", f.n, held)
			}
		})
	}
}
