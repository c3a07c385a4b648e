package fairqueue

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core/coretest"
)

// seeds returns how many histories are tried: more in the nightly run.
func seeds(n uint64) uint64 { return n * uint64(coretest.Scale()) }

// reference is a literal queue: a list of those that wait, and each tenant's numbers.
type reference struct {
	cfg     Config
	waiting []*Item
	out     int
	virtual float64
	start   map[string]float64
	since   map[string]time.Time
	charged map[*Item]float64
	before  map[*Item]time.Time
	number  map[*Item]int
	n       int
}

func (r *reference) of(tenant string) (list []*Item) {
	for _, i := range r.waiting {
		if i.Tenant == tenant {
			list = append(list, i)
		}
	}
	slices.SortFunc(list, func(a, b *Item) int {
		if c := a.Key.Compare(b.Key); c != 0 {
			return c
		}
		return r.number[a] - r.number[b]
	})
	return list
}

func (r *reference) insert(now time.Time, i *Item) {
	if len(r.of(i.Tenant)) == 0 {
		r.start[i.Tenant], r.since[i.Tenant] = max(r.start[i.Tenant], r.virtual), now
	}
	r.waiting = append(r.waiting, i)
}

func (r *reference) remove(i *Item) bool {
	at := slices.Index(r.waiting, i)
	if at >= 0 {
		r.waiting = slices.Delete(r.waiting, at, at+1)
	}
	return at >= 0
}

func (r *reference) push(now time.Time, i *Item) (heaviest []*Item) {
	r.n++
	r.number[i] = r.n
	r.insert(now, i)
	if len(r.waiting)+r.out <= r.cfg.Limit {
		return nil
	}
	most := 0.0
	for _, x := range r.waiting {
		list := r.of(x.Tenant)
		share, last := float64(len(list))/x.Weight, list[len(list)-1]
		switch {
		case share > most:
			most, heaviest = share, []*Item{last}
		case share == most && !slices.Contains(heaviest, last):
			heaviest = append(heaviest, last)
		}
	}
	return heaviest
}

func (r *reference) pop(now time.Time) *Item {
	top := math.MinInt
	for _, i := range r.waiting {
		top = max(top, i.Priority)
	}
	var best *Item
	rank := func(i *Item) int { return min(top, i.Priority+int(now.Sub(r.since[i.Tenant])/r.cfg.Age)) }
	for _, x := range r.waiting {
		i := r.of(x.Tenant)[0]
		switch {
		case best == nil || rank(i) > rank(best):
			best = i
		case rank(i) < rank(best) || r.start[i.Tenant] > r.start[best.Tenant]:
		case r.start[i.Tenant] < r.start[best.Tenant], i.Key.Before(best.Key), i.Key.Equal(best.Key) && r.number[i] < r.number[best]:
			best = i
		}
	}
	if best == nil {
		return nil
	}
	r.remove(best)
	r.out++
	r.virtual = max(r.virtual, r.start[best.Tenant])
	r.charged[best], r.before[best] = best.Cost/best.Weight, r.since[best.Tenant]
	r.start[best.Tenant], r.since[best.Tenant] = max(r.start[best.Tenant], r.virtual)+r.charged[best], now
	return best
}

// Whatever comes and goes, the queue says what the reference says, and nobody is lost.
func TestTheQueueIsTheReference(t *testing.T) {
	for seed := range seeds(300) {
		rng := rand.New(rand.NewPCG(seed, 14))
		cfg := Config{Limit: 1 + rng.IntN(20), Age: time.Duration(1+rng.IntN(30)) * time.Second}
		q, r := New(cfg), &reference{cfg: cfg, start: map[string]float64{}, since: map[string]time.Time{}, charged: map[*Item]float64{},
			before: map[*Item]time.Time{}, number: map[*Item]int{}}
		now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
		var out []*Item
		for step := range 400 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Second))))
			switch rng.IntN(6) {
			case 0, 1, 2:
				tenant := rng.IntN(5)
				i := &Item{Tenant: fmt.Sprint(tenant), Weight: float64(1 + tenant%3), Priority: tenant / 2, Cost: float64(1 + rng.IntN(50)),
					Key: now.Add(-time.Duration(rng.IntN(3)) * time.Second)}
				dropped, heaviest := q.Push(now, i), r.push(now, i)
				if (dropped == nil) != (heaviest == nil) || dropped != nil && !slices.Contains(heaviest, dropped) {
					t.Fatalf("seed %d, step %d: %+v has to go, want one of %v", seed, step, dropped, heaviest)
				}
				r.remove(dropped)
			case 3, 4:
				got, want := q.Pop(now), r.pop(now)
				if got != want {
					t.Fatalf("seed %d, step %d: %+v goes, want %+v", seed, step, got, want)
				}
				if got != nil {
					out = append(out, got)
				}
			default:
				if len(out) > 0 && rng.IntN(2) == 0 {
					i := out[len(out)-1]
					out = out[:len(out)-1]
					r.out--
					if rng.IntN(2) == 0 {
						q.Done(i)
						break
					}
					r.start[i.Tenant] -= r.charged[i]
					r.virtual = min(r.virtual, r.start[i.Tenant])
					r.insert(now, i)
					r.since[i.Tenant] = r.before[i]
					q.Return(now, i)
				} else if len(r.waiting) > 0 {
					i := r.waiting[rng.IntN(len(r.waiting))]
					if r.remove(i); !q.Remove(i) || q.Remove(i) {
						t.Fatalf("seed %d, step %d: %+v does not wait just once", seed, step, i)
					}
				}
			}
			if q.Len() != len(r.waiting) || q.Idle() != (len(r.waiting)+r.out == 0) || q.Len()+len(out) > cfg.Limit+1 {
				t.Fatalf("seed %d, step %d: %d wait, want %d", seed, step, q.Len(), len(r.waiting))
			}
		}
	}
}

// Tenants that always wait get what their weights say, to within a request each,
// whatever their requests cost and how many of them they bring.
func TestTenantsShareByTheirWeights(t *testing.T) {
	for seed := range seeds(50) {
		rng := rand.New(rand.NewPCG(seed, 15))
		q := New(Config{Limit: 1 << 20, Age: time.Hour})
		now := time.Unix(0, 0)
		weights, got := map[string]float64{}, map[string]float64{}
		for n := range 2 + rng.IntN(5) {
			weights[fmt.Sprint(n)] = float64(1 + rng.IntN(4))
		}
		add := func(tenant string) {
			q.Push(now, &Item{Tenant: tenant, Weight: weights[tenant], Key: now, Cost: 1 + 99*rng.Float64()})
		}
		for tenant := range weights {
			for range 4 + rng.IntN(300) {
				add(tenant)
			}
		}
		for round := range 2000 {
			// For a time several are let out at once, and any one of them finds room: what the
			// others lose by that they get back.
			out := make([]*Item, 1)
			if round < 1000 {
				out = make([]*Item, 1+seed%3)
			}
			for n := range out {
				out[n] = q.Pop(now)
			}
			rng.Shuffle(len(out), func(a, b int) { out[a], out[b] = out[b], out[a] })
			i := out[0]
			q.Done(i)
			for _, o := range out[1:] {
				q.Return(now, o)
			}
			got[i.Tenant] += i.Cost / i.Weight
			add(i.Tenant)
			for a := range weights {
				for b := range weights {
					if apart := math.Abs(got[a] - got[b]); apart > 100/weights[a]+100/weights[b]+1e-6 && (seed%3 == 0 || round >= 1500) {
						t.Fatalf("seed %d: %v by weights %v", seed, got, weights)
					}
				}
			}
		}
	}
}

// A tenant of low priority is served at least once in the time that brings it to the
// top and its turn there; without those above it always.
func TestNobodyStarves(t *testing.T) {
	q := New(Config{Limit: 1 << 20, Age: 10 * time.Second})
	now := time.Unix(0, 0)
	add := func(tenant string, priority int) {
		q.Push(now, &Item{Tenant: tenant, Weight: 1, Priority: priority, Key: now, Cost: 10})
	}
	for range 10 {
		add("high", 3)
		add("also", 3)
		add("low", 0)
	}
	last, longest, low := now, time.Duration(0), 0
	for range 100_000 {
		now = now.Add(100 * time.Millisecond)
		i := q.Pop(now)
		q.Done(i)
		if i.Tenant == "low" {
			low++
			longest, last = max(longest, now.Sub(last)), now
		}
		add(i.Tenant, i.Priority)
	}
	if longest > 31*time.Second || low == 0 {
		t.Errorf("it waits %v, and is served %d times", longest, low)
	}
	if low > 400 {
		t.Errorf("it is served %d times of 100000 beside higher ones", low)
	}
}

// The names of tenants that came once are forgotten.
func TestTenantsAreForgotten(t *testing.T) {
	q := New(Config{Limit: 10, Age: time.Second})
	for n := range 10_000 {
		q.Push(time.Unix(int64(n), 0), &Item{Tenant: fmt.Sprint(n), Weight: 1, Cost: 1, Key: time.Unix(int64(n), 0)})
		q.Done(q.Pop(time.Unix(int64(n), 0)))
	}
	if len(q.flows) > 1000 || !q.Idle() {
		t.Errorf("%d tenants are known", len(q.flows))
	}
}

// A tenant's requests that are put aside are back in their places, as if they had never been
// let out, and one that goes meanwhile is gone. (Between tenants Return sees to it.)
func TestWhoPassesKeepsItsPlace(t *testing.T) {
	for seed := range seeds(200) {
		rng := rand.New(rand.NewPCG(seed, 41))
		cfg := Config{Limit: 100, Age: time.Duration(1+rng.IntN(30)) * time.Second, Tries: 1 + rng.IntN(5)}
		q, plain := New(cfg), New(cfg)
		now := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
		pairs := map[*Item]*Item{}
		for step := range 300 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Second))))
			switch rng.IntN(3) {
			case 0:
				i := Item{Weight: 1, Cost: float64(1 + rng.IntN(50)), Key: now.Add(-time.Duration(rng.Int64N(int64(10 * time.Second))))}
				j := i
				pairs[&i] = &j
				q.Push(now, &i)
				plain.Push(now, &j)
			case 1: // a round in which nobody finds room
				var aside []*Item
				for i := q.Pop(now); i != nil; i = q.Pop(now) {
					aside = append(aside, i)
					if !q.Pass(now, i) {
						break
					}
					if rng.IntN(8) == 0 {
						gone := aside[rng.IntN(len(aside))]
						if !q.Remove(gone) || !plain.Remove(pairs[gone]) {
							t.Fatalf("seed %d, step %d: one that is aside cannot go", seed, step)
						}
						q.Settle(now)
						break
					}
				}
				if len(aside) > cfg.Tries {
					t.Fatalf("seed %d, step %d: %d were aside, %d may be", seed, step, len(aside), cfg.Tries)
				}
			default:
				i, j := q.Pop(now), plain.Pop(now)
				if i == nil && j == nil {
					continue
				}
				if i == nil || pairs[i] != j {
					t.Fatalf("seed %d, step %d: %+v goes, without passes %+v", seed, step, i, j)
				}
				q.Done(i)
				plain.Done(j)
			}
		}
	}
}

// Many that may use one worker only, which is busy, keep nobody behind them from the others.
func TestNarrowOnesHoldNobodyUp(t *testing.T) {
	q := New(Config{Limit: 1000, Age: time.Second, Tries: Tries})
	now := time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)
	for n := range 500 {
		q.Push(now, &Item{Weight: 1, Cost: 1, Key: now, Only: []string{"1", "2"}[n%2]})
	}
	wide := &Item{Weight: 1, Cost: 1, Key: now.Add(time.Second)}
	q.Push(now, wide)
	for range 2 { // and again, when something has changed
		tries := 0
		for i := q.Pop(now); i != wide; i = q.Pop(now) {
			if tries++; i == nil || !q.Pass(now, i) {
				t.Fatalf("after %d tries it is nobody's turn", tries)
			}
		}
		if tries != 2*Tries {
			t.Errorf("%d tried before it, want %d", tries, 2*Tries)
		}
		q.Return(now, wide)
		q.Settle(now)
		if q.Len() != 501 {
			t.Fatalf("%d wait", q.Len())
		}
	}
}
