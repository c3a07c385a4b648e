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
