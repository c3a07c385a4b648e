package lab

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// TestClosedLoop: of each session one request is under way at a time, in the order of the
// source, all end, and none comes before it has been thought about; two runs are the same.
func TestClosedLoop(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 31))
		c := small(rng)
		c.Workers = max(c.Workers, 2)
		c.ClosedLoop, c.Think = true, time.Duration(rng.IntN(3))*time.Second
		c.Requests = 200
		c.Faults = []Fault{{At: 3 * time.Second, Worker: 0, Kind: Dies}}
		if rng.IntN(2) == 0 {
			c.Queue = Queue{Shortest, 0.25}
		}
		source, err := readAll(requests(t, 250, seed), 0)
		if err != nil {
			t.Fatal(err)
		}
		serials := map[string][]uint64{}
		for _, r := range source[:200] {
			serials[r.Session] = append(serials[r.Session], r.Serial)
		}
		s, err := newSim(c, &listed{slices.Clone(source), 4})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		for more := true; more; {
			if more, err = s.step(); err != nil {
				t.Fatal(err)
			}
			live := map[string]bool{}
			for n := range s.requests {
				if q := &s.requests[n]; q.present {
					if live[q.session] {
						t.Fatalf("seed %d: two requests of session %s at once", seed, q.session)
					}
					live[q.session] = true
				}
			}
		}
		a, err := s.finish()
		if err != nil {
			t.Fatal(err)
		}
		if a.Requests+a.Refused != 200 || len(a.session) != len(serials) || a.Summary().Session.Mean <= 0 {
			t.Errorf("seed %d: %d ended and %d were refused of 200, %d sessions ended of %d", seed, a.Requests, a.Refused, len(a.session), len(serials))
		}
		if b := run(t, c, &listed{slices.Clone(source), 4}); !reflect.DeepEqual(a, b) {
			t.Errorf("seed %d: %+v, then %+v", seed, a.Summary(), b.Summary())
		}
	}
}

// TestClosedLoopByHand: two turns of 100 ms each on an idle engine take 200 ms and what the
// session thinks; in an open loop both come at once.
func TestClosedLoopByHand(t *testing.T) {
	for _, closed := range []bool{true, false} {
		c := Default()
		c.Workers, c.Engine.BlockSize, c.ClosedLoop = 1, 16, closed
		c.Timing = mock.Timing{PrefillToken: 1, DecodeBase: 1}
		r := run(t, c, &script{{Input: 96, IDs: ids(6, 1), Session: "a", Output: 5}, {Input: 96, IDs: ids(6, 2), Session: "a", Output: 5}, {Input: 96, IDs: ids(6, 3), Arrival: time.Hour, Output: 5}})
		want := []float64{100, 100, 100}
		if !closed {
			want = []float64{100, 196, 196}
		}
		if !slices.Equal(r.e2e, want) {
			t.Errorf("closed %v: ended after %v ms, want %v", closed, r.e2e, want)
		}
	}
}

// TestRestart: sessions keep their requests and the times between them, and start elsewhere,
// within the span of starts; another seed gives other starts.
func TestRestart(t *testing.T) {
	shape := func(all []trace.Request) (shape map[string][]time.Duration, starts map[string]time.Duration) {
		shape, starts = map[string][]time.Duration{}, map[string]time.Duration{}
		for i, r := range all {
			if i > 0 && r.Arrival < all[i-1].Arrival {
				t.Fatal("times go back")
			}
			if _, ok := starts[r.Session]; !ok {
				starts[r.Session] = r.Arrival
			}
			shape[r.Session] = append(shape[r.Session], r.Arrival-starts[r.Session], time.Duration(r.Serial))
		}
		return shape, starts
	}
	before, _ := readAll(requests(t, 300, 1), 0)
	want, was := shape(before)
	last := time.Duration(0)
	for _, at := range was {
		last = max(last, at)
	}
	var other map[string]time.Duration
	for seed := range uint64(3) {
		src, err := Restart(requests(t, 300, 1), seed)
		if err != nil {
			t.Fatal(err)
		}
		after, _ := readAll(src, 0)
		got, starts := shape(after)
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: sessions have become others", seed)
		}
		for name, at := range starts {
			if at < before[0].Arrival || at > last {
				t.Errorf("seed %d: session %s starts at %v, the last did at %v", seed, name, at, last)
			}
		}
		if reflect.DeepEqual(starts, was) || reflect.DeepEqual(starts, other) {
			t.Errorf("seed %d: the same starts", seed)
		}
		other = starts
	}
}

// TestSessionsAreKnown: where routers know a session they find more of what it has cached, if nothing is looked up;
// where it is, sessions change nothing.
func TestSessionsAreKnown(t *testing.T) {
	reuse := func(policy string) *Result {
		c := Default()
		c.ClosedLoop, c.Think = true, 2*time.Second
		if err := c.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		src, err := Workload("uniform", 600, 20, 1)
		if err != nil {
			t.Fatal(err)
		}
		return run(t, c, src)
	}
	without, with := reuse("round-robin"), reuse("round-robin+sessions")
	if a, b := without.Summary().Reuse, with.Summary().Reuse; b < a+0.05 {
		t.Errorf("%.3f is reused without sessions, %.3f with", a, b)
	}
	if a, b := reuse("auto"), reuse("auto+sessions"); !reflect.DeepEqual(a, b) {
		t.Errorf("in mode auto: %+v, with sessions %+v", a.Summary(), b.Summary())
	}
}
