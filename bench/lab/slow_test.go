package lab

import (
	"testing"
	"time"
)

// worked runs a fleet of 8 until the time and returns what part of the work that is done
// from then on worker 0 does, and the mean time to the first token in ms.
func worked(t *testing.T, c Config, rate float64, from time.Duration) (part, mean float64) {
	t.Helper()
	src, err := Workload("uniform", 3000, rate, 1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newSim(c, src)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	before := make([]time.Duration, len(s.workers))
	for {
		more, err := s.step()
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		if s.now < from {
			for i, w := range s.workers {
				before[i] = w.worked
			}
		}
	}
	all := time.Duration(0)
	for i, w := range s.workers {
		all += w.worked - before[i]
	}
	part = float64(s.workers[0].worked-before[0]) / float64(all)
	r, err := s.finish()
	if err != nil {
		t.Fatal(err)
	}
	return part, r.Summary().TTFT.Mean
}

// TestSlowForAMinute: a worker that is slow for a minute has its part of the work again
// after it.
func TestSlowForAMinute(t *testing.T) {
	c := Default()
	_, usual := worked(t, c, 20, 0)
	for _, factor := range []float64{3, 10} {
		c.Faults = []Fault{{At: 20 * time.Second, Kind: Slows, Factor: factor}, {At: 80 * time.Second, Kind: Slows, Factor: 1}}
		part, mean := worked(t, c, 20, 100*time.Second)
		t.Logf("%v times slower: %.3f of the work after it, mean %.1f ms, %.1f without", factor, part, mean, usual)
		if part < 0.06 || mean > 2*usual {
			t.Errorf("%v times slower for a minute: %.3f of the work after it, mean %.1f ms, %.1f without", factor, part, mean, usual)
		}
	}
}

// TestWrongFirstGuess: engines ten times faster or slower than the routers begin with
// share the work, as others do, and first tokens come in proportion.
func TestWrongFirstGuess(t *testing.T) {
	_, usual := worked(t, Default(), 20, 0)
	for factor, rate := range map[float64]float64{0.1: 200, 10: 2} {
		c := Default()
		c.Slow = map[int]float64{}
		for w := range c.Workers {
			c.Slow[w] = factor
		}
		part, mean := worked(t, c, rate, 0)
		t.Logf("%v times the first guess: worker 0 does %.3f, mean %.1f ms, %.1f as guessed", factor, part, mean, usual)
		if part < 0.08 || part > 0.18 || mean > 1.3*factor*usual {
			t.Errorf("%v times the first guess: worker 0 does %.3f of the work, mean %.1f ms, %.1f as guessed", factor, part, mean, usual)
		}
	}
}

// TestSpeedsOfTheDay: where each worker is three times slower once a day, and another one
// each hour, auto has its first tokens sooner than what does not know of speeds, and no later
// than two and a half times what they take at its best time, where steps take twice as long in the mean.
func TestSpeedsOfTheDay(t *testing.T) {
	means := map[string]float64{}
	for _, mode := range []string{"auto", "round-robin", "dynamo"} {
		c := Default()
		c.Route.Mode = mode
		c.Day, c.DaySlow = time.Minute, 3
		_, means[mode] = worked(t, c, 20, 0)
	}
	_, usual := worked(t, Default(), 20, 0)
	t.Logf("%v, %.1f without", means, usual)
	if means["auto"] > means["round-robin"] || means["auto"] > means["dynamo"] || means["auto"] > 2.5*usual {
		t.Errorf("mean first tokens after %v ms, of auto %.1f without", means, usual)
	}
}

// TestHour: a worker's steps take once to DaySlow times as long, and each a whole period.
func TestHour(t *testing.T) {
	s := &sim{cfg: Config{Day: time.Minute, DaySlow: 3}, workers: make([]*worker, 4)}
	for _, c := range []struct {
		at   time.Duration
		i    int
		want float64
	}{{0, 0, 1}, {30 * time.Second, 0, 3}, {15 * time.Second, 0, 2}, {0, 2, 3}, {15 * time.Second, 1, 3}, {time.Minute, 0, 1}} {
		if got := s.hour(c.i, c.at); got < c.want-1e-9 || got > c.want+1e-9 {
			t.Errorf("worker %d at %v: %v, want %v", c.i, c.at, got, c.want)
		}
	}
}
