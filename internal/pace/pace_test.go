package pace

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Waits double from the least to the most, are shortened by chance and by a half
// at most, are the same for the same seed, and begin anew after progress or a
// pause.
func TestPace(t *testing.T) {
	const least, most = time.Second, time.Minute
	begun := time.Unix(1e9, 0)
	waits := func(seed uint64, p *Pace, n int) (list []time.Duration) {
		now := begun
		for range n {
			d := p.Later(now, now, least, most, seed)
			if p.Ready(now.Add(d-1)) || !p.Ready(now.Add(d)) {
				t.Errorf("a wait of %v ends at another time: %+v", d, p)
			}
			now = now.Add(d)
			list = append(list, d)
		}
		return list
	}
	different := false
	for seed := range uint64(1000) {
		var p Pace
		if !p.Ready(begun) {
			t.Fatal("the first try waits")
		}
		one, two := waits(seed, &p, 9), waits(seed, new(Pace), 9)
		for i, d := range one {
			if whole := min(least<<i, most); d > whole || d < whole/2 || d != two[i] {
				t.Errorf("seed %d, wait %d: %v of %v, and %v the second time", seed, i, d, whole, two[i])
			}
			different = different || d != waits(seed+1, new(Pace), i+1)[i]
		}
		later := p.from.Add(most + 1)
		if d := p.Later(later, later, least, most, seed); d > least {
			t.Errorf("%v after a pause", d)
		}
		p.Later(later, later, least, most, seed)
		if p.Progress(); !p.Ready(begun) || p.Later(p.from, begun, least, most, seed) > least {
			t.Error("progress does not begin anew")
		}
	}
	if !different {
		t.Error("all seeds have the same waits")
	}
}

// However requests come, no span has more than a burst and its share, and who
// waits as long as told is let through.
func TestQuota(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		most, now := 1+rng.IntN(50), time.Unix(1e9, 0)
		var q Quota
		var taken []time.Time
		for range 2000 {
			switch wait := q.Take(now, most, time.Second); {
			case wait <= 0:
				taken = append(taken, now)
			case rng.IntN(3) == 0:
				if now = now.Add(wait); q.Take(now, most, time.Second) > 0 {
					t.Fatalf("seed %d: still no room after %v", seed, wait)
				}
				taken = append(taken, now)
			}
			if rng.IntN(4) == 0 {
				now = now.Add(time.Duration(rng.Int64N(int64(time.Second) / int64(1+rng.IntN(most)))))
			}
		}
		for i := range taken {
			j := min(len(taken)-1, i+rng.IntN(200))
			span := taken[j].Sub(taken[i])
			if n, bound := j-i+1, most+int(span*time.Duration(most)/time.Second)+1; n > bound {
				t.Fatalf("seed %d: %d requests in %v, want at most %d", seed, n, span, bound)
			}
		}
	}
}
