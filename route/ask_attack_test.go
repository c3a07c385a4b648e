package route

import (
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// mutes has worker 1 of a fleet be mute, with a request that waits there, and returns when it is to be asked again.
func mutes(t *testing.T, n int) (f asking, waits string, again time.Duration) {
	t.Helper()
	r, _, c := open(t, nil, workers(n)...)
	f = asking{t: t, Router: r, clock: c}
	waits = f.send(1)
	c.add(21 * time.Second)
	if _, due := r.Ask(waits, Whole); !due {
		t.Fatal("it is not asked")
	}
	f.question(1)()
	if again = r.Asked(1, AskSilent, 0); again <= 0 || !r.Mute(waits, Whole) {
		t.Fatal("it is not mute")
	}
	return f, waits, again
}

// TestMuteIsAskedOn: where a mute worker is not asked on, as its role is another, it is tried already or nobody else is
// left, it is mute no more: nobody else would find out that it is well.
func TestMuteIsAskedOn(t *testing.T) {
	t.Run("role", func(t *testing.T) {
		f, waits, again := mutes(t, 3)
		f.Failed(waits, Whole, Failure{})
		f.Free(waits)
		if err := f.SetWorker(Worker{ID: 1, Role: Prefill}); err != nil {
			t.Fatal(err)
		}
		f.clock.add(again)
		if f.AskAgain(1) {
			t.Fatal("a prefill worker is asked")
		}
		f.clock.add(time.Hour)
		a, err := f.BestWorker(t.Context(), Prompt{Local: numbers(1, 2)}, Options{Stage: PrefillStage})
		if err != nil || a.Worker != 1 {
			t.Fatal("the only prefill worker gets nothing, for ever:", err)
		}
	})
	t.Run("trial", func(t *testing.T) {
		f, waits, again := mutes(t, 3)
		f.Failed(waits, Whole, Failure{})
		f.Free(waits)
		f.clock.add(again)
		for range 9 {
			f.n++
			if list, _ := f.Trials(time.Second, 8); len(list) == 0 {
				break
			}
		}
		if f.AskAgain(1) {
			t.Fatal("it is asked while it is tried")
		}
		f.Tried(1, time.Minute) // and nothing was to be learnt
		f.clock.add(time.Hour)
		f.want("when nobody asks it", 1, 2, 3)
	})
	t.Run("alone", func(t *testing.T) {
		f, waits, _ := mutes(t, 2)
		if err := f.SetDead(2, true); err != nil {
			t.Fatal(err)
		}
		if f.Mute(waits, Whole) {
			t.Error("who waits is to go elsewhere, and there is nobody else")
		}
	})
}

// TestAskedOfAnother: what is told of a worker that came after the one that was asked, under its id, says nothing of it.
func TestAskedOfAnother(t *testing.T) {
	r, _, c := open(t, nil, workers(3)...)
	f := asking{t: t, Router: r, clock: c}
	waits := f.send(1)
	c.add(21 * time.Second)
	if _, due := r.Ask(waits, Whole); !due {
		t.Fatal("it is not asked")
	}
	r.RemoveWorker(1)
	if err := r.SetWorker(Worker{ID: 1}); err != nil {
		t.Fatal(err)
	}
	if again := r.Asked(1, AskSilent, 0); again != 0 {
		t.Error("a new worker is mute for what the one before it did not answer")
	}
	f.want("when it is new", 1, 2, 3)
	if list, _ := r.Trials(time.Second, 8); len(list) != 3 {
		t.Fatal(list)
	}
	r.Asked(1, AskUnclear, 0)
	if list, _ := r.Trials(time.Second, 8); len(list) != 0 {
		t.Error(list, "is tried twice at once")
	}
}

// TestTriedWhileAsked: that others refuse no more, which Tried tells of a worker, ends no question to it.
func TestTriedWhileAsked(t *testing.T) {
	r, _, c := open(t, nil, workers(3)...)
	f := asking{t: t, Router: r, clock: c}
	waits := f.send(1)
	c.add(21 * time.Second)
	if _, due := r.Ask(waits, Whole); !due {
		t.Fatal("it is not asked")
	}
	r.Tried(1, 0)
	c.add(21 * time.Second)
	if _, due := r.Ask(waits, Whole); due {
		t.Error("it is asked twice at once")
	}
}

// TestRelented: that a worker answers, after which it was doubted for silence alone, takes back no word of another router
// that came later.
func TestRelented(t *testing.T) {
	r, _, c := open(t, nil, workers(4)...)
	f := asking{t: t, Router: r, clock: c}
	waits, other := f.send(1), f.send(1)
	c.add(21 * time.Second)
	f.want("when its request is overdue", 2, 3, 4)
	if _, due := r.Ask(waits, Whole); !due {
		t.Fatal("it is not asked")
	}
	f.question(1)()
	r.Asked(1, AskAnswered, 0)
	if h := r.Health()[0]; h.State != breaker.HalfOpen {
		t.Fatalf("%+v", h)
	}
	w := r.workers[1]
	// Others are out, too, and so it is doubted no more.
	for _, id := range []uint64{2, 3, 4} {
		r.workers[id].breaker.Trip(&r.settings.Breaker, c.Now())
	}
	r.mu.Lock()
	r.leftOut(w, c.Now())
	r.mu.Unlock()
	if h := r.Health()[0]; h.State != breaker.Closed {
		t.Fatalf("%+v", h)
	}
	c.add(time.Minute)
	for _, id := range []uint64{2, 3, 4} {
		for range 2 {
			f.ends(f.send(id))
		}
	}
	r.mu.Lock()
	heard := r.failsElsewhere(1, c.Now())
	r.mu.Unlock()
	if !heard {
		t.Fatalf("%+v", r.Health())
	}
	r.Output(other, 1)
	if h := r.Health()[0]; h.State != breaker.HalfOpen {
		t.Errorf("a word of another router is taken back by one token: %+v", h)
	}
}
