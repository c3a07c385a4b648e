package route

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// TestDrainingIsSilent: a worker that gets nothing more, as it is drained, may be silent like others, so that who waits
// there is told. It is not asked, as it gets no requests.
func TestDrainingIsSilent(t *testing.T) {
	r, _, c := open(t, nil, workers(2)...)
	f := asking{t: t, Router: r, clock: c}
	waits := f.send(1)
	if err := r.Drain(1, true); err != nil {
		t.Fatal(err)
	}
	c.add(21 * time.Second)
	if !r.Overdue(waits, Whole) {
		t.Error("who waits at a worker that is drained waits for ever")
	}
	if _, due := r.Ask(waits, Whole); due {
		t.Error("it is asked")
	}
}

// TestProbesGiveUp: probes that are given up when too many others are out have failed, as others have, and keep no place for ever.
func TestProbesGiveUp(t *testing.T) {
	r, _, c := open(t, nil, workers(5)...)
	f := asking{t: t, Router: r, clock: c}
	for worker := range uint64(3) {
		for range r.settings.Breaker.Failures {
			id := f.send(worker + 1)
			r.Failed(id, Whole, Failure{})
			r.Free(id)
		}
	}
	f.want("when three have failed", 4, 5)
	c.add(time.Minute)
	var probes []string
	for range r.settings.Breaker.Probes {
		probes = append(probes, f.send(1))
	}
	if err := r.SetDead(4, true); err != nil {
		t.Fatal(err)
	}
	c.add(time.Hour)
	for _, id := range probes {
		r.Free(id)
	}
	if h := r.Health()[0]; h.State == breaker.Closed {
		t.Fatalf("%+v", h)
	}
	c.add(time.Hour)
	f.want("an hour later", 1, 2, 3, 5)
}

// TestQuestionsFail: a question that fails counts as any failure, and where a worker has failed before and was well again, too.
func TestQuestionsFail(t *testing.T) {
	for _, before := range []bool{false, true} {
		r, _, c := open(t, nil, workers(3)...)
		f := asking{t: t, Router: r, clock: c}
		if before {
			for range r.settings.Breaker.Failures {
				id := f.send(1)
				r.Failed(id, Whole, Failure{})
				r.Free(id)
			}
			c.add(time.Minute)
			for range r.settings.Breaker.Probes {
				f.ends(f.send(1))
			}
		}
		if h := r.Health()[0]; h.State != breaker.Closed {
			t.Fatalf("%+v", h)
		}
		waits := f.send(1)
		for range r.settings.Breaker.Failures {
			c.add(21 * time.Second)
			if _, due := r.Ask(waits, Whole); !due {
				t.Fatal("it is not asked")
			}
			free := f.question(1)
			r.Failed(fmt.Sprint("question", f.n), Whole, Failure{})
			free()
			r.Asked(1, AskUnclear, 0)
		}
		if h := r.Health()[0]; h.State == breaker.Closed {
			t.Errorf("before %v: it fails all that it is asked, and gets requests", before)
		}
	}
}

// TestHugeOutput: a request that may be as long as any has no less time than one that may be long.
func TestHugeOutput(t *testing.T) {
	r, _, _ := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(2)...)
	last := time.Duration(0)
	for i := range 63 {
		a := best(t, r, Prompt{Local: numbers(1, 2)}, Options{RequestID: "a", Watched: true, Whole: true, MostOutput: 1 << i})
		r.Free("a")
		if a.Overdue < last {
			t.Fatalf("with at most %d tokens it has %v, with half of them %v", 1<<i, a.Overdue, last)
		}
		last = a.Overdue
	}
	if a := best(t, r, Prompt{Local: numbers(1, 2)}, Options{RequestID: "a", Watched: true, Whole: true, MostOutput: math.MaxInt}); a.Overdue < last {
		t.Fatal(a.Overdue)
	}
}
