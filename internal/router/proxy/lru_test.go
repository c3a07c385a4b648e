package proxy

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"
)

// TestLRU: beyond its size exactly what was used longest ago is forgotten, and
// what is older than its life is not given out, whatever the order of gets and
// puts.
func TestLRU(t *testing.T) {
	type entry struct {
		key  int
		val  int
		cost int64
		end  time.Time
	}
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		life := time.Duration(rng.IntN(2)) * 300 * time.Millisecond
		size := int64(rng.IntN(90))
		l := newLRU[int, int](size, life)
		var model []entry // used longest ago first
		now := time.Now()
		for step := range 3000 {
			now = now.Add(time.Duration(1+rng.IntN(5)) * time.Millisecond)
			key := rng.IntN(40)
			at := slices.IndexFunc(model, func(e entry) bool { return e.key == key })
			if rng.IntN(3) > 0 {
				want, there := 0, at >= 0 && (life == 0 || !now.After(model[at].end))
				if at >= 0 {
					e := model[at]
					model = slices.Delete(model, at, at+1)
					if there {
						want = e.val
						model = append(model, e)
					}
				}
				if got, ok := l.get(key, now); ok != there || got != want {
					t.Fatalf("seed %d, step %d: key %d is %d, %v; want %d, %v", seed, step, key, got, ok, want, there)
				}
				continue
			}
			cost := int64(1 + rng.IntN(4))
			l.put(key, step, cost, now)
			if cost > size {
				continue
			}
			if at >= 0 {
				model = slices.Delete(model, at, at+1)
			}
			model = append(model, entry{key, step, cost, now.Add(life)})
			sum := int64(0)
			for _, e := range model {
				sum += e.cost
			}
			for ; sum > size; model = model[1:] {
				sum -= model[0].cost
			}
		}
	}
}

// TestLRUOfMany: whoever puts in abundance puts out what is his own, and takes what nobody else uses.
func TestLRUOfMany(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := newLRU[int, string](100, 0)
		now := time.Unix(1e9, 0)
		little := map[int]bool{}
		for i := range 3000 {
			now = now.Add(time.Millisecond)
			owner, cost := "much", int64(1+rng.IntN(5))
			if rng.IntN(300) == 0 && len(little) < 12 {
				owner, cost = []string{"one", "two", "three"}[len(little)%3], 5 // 20 of each at most
				little[i] = true
			}
			l.putFor(owner, i, owner, cost, now)
		}
		for key := range little {
			if _, ok := l.get(key, now); !ok {
				t.Fatalf("seed %d: what one of few has is put out for one of many", seed)
			}
		}
		if l.sum < 90 || l.sum > 100 {
			t.Errorf("%d of 100 are used", l.sum)
		}
		for key := range 10_000 { // one owner's is another's now
			l.putFor("one", key, "", 1, now)
		}
		sum, n := int64(0), 0
		for _, p := range l.parts {
			sum += p.sum
			n += p.order.Len()
		}
		if sum != l.sum || n != len(l.at) || n == 0 {
			t.Errorf("parts of %d in %d, and %d in %d are there", sum, n, l.sum, len(l.at))
		}
	}
}

// BenchmarkLRU is one use of the caches that each chat asks: Hit is a text that
// is known, Session a session that goes on (which is looked for and renewed), New
// a session or text that is not there and puts another one out.
func BenchmarkLRU(b *testing.B) {
	const size = 1 << 14
	run := func(name string, do func(l *lru[uint64, uint64], i uint64, now time.Time)) {
		b.Run(name, func(b *testing.B) {
			l := newLRU[uint64, uint64](size, time.Hour)
			for i := range uint64(size) {
				l.put(i, i, 1, time.Now())
			}
			var streams atomic.Uint64
			b.ReportAllocs()
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				i := streams.Add(1) << 40
				for now := time.Now(); pb.Next(); i++ {
					do(l, i, now)
					now = now.Add(time.Nanosecond)
				}
			})
		})
	}
	run("Hit", func(l *lru[uint64, uint64], i uint64, now time.Time) { l.get(i*0x9E37%size, now) })
	run("Session", func(l *lru[uint64, uint64], i uint64, now time.Time) {
		if v, ok := l.get(i*0x9E37%size, now); ok {
			l.put(i*0x9E37%size, v, 1, now)
		}
	})
	run("New", func(l *lru[uint64, uint64], i uint64, now time.Time) {
		if _, ok := l.get(i, now); !ok {
			l.put(i, i, 1, now)
		}
	})
}

// TestLRULetsGo: what is too old takes no room any more as soon as something else is put, or
// the room is asked for.
func TestLRULetsGo(t *testing.T) {
	now := time.Unix(1e9, 0)
	l := newLRU[int, string](1000, time.Minute)
	for i := range 10 {
		l.put(i, "", 10, now)
	}
	now = now.Add(40 * time.Second)
	l.get(3, now)
	l.put(10, "", 10, now)
	if now = now.Add(30 * time.Second); l.used(now) != 10 {
		t.Errorf("%d are used", l.used(now))
	}
	if now = now.Add(time.Minute); l.used(now) != 0 || len(l.at) != 0 {
		t.Errorf("%d are used", l.used(now))
	}
	l.put(1, "", 10, now)
	l.put(2, "", 10, now.Add(2*time.Minute))
	if l.sum != 10 {
		t.Errorf("%d are used", l.sum)
	}
}
