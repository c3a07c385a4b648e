package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// asking is a fleet that is asked. Requests are whole answers.
type asking struct {
	t *testing.T
	*Router
	*clock
	n int
}

func (f *asking) send(worker uint64) (id string) {
	f.n++
	id = fmt.Sprint("request", f.n)
	best(f.t, f.Router, Prompt{Local: numbers(100*f.n, 2)}, Options{RequestID: id, Watched: true, Whole: true, Worker: &worker})
	return id
}

func (f *asking) ends(id string) {
	f.Succeeded(id, Whole)
	f.Succeeded(id, Whole)
	f.Free(id)
}

// question books what a worker is asked with.
func (f *asking) question(worker uint64) (free func()) {
	f.n++
	id := fmt.Sprint("question", f.n)
	if a := best(f.t, f.Router, Prompt{Length: 1, Guessed: true}, Options{RequestID: id, Watched: true, Question: true, Worker: &worker}); a.Overdue < f.settings.OverdueAfter {
		f.t.Fatalf("the question has %v", a.Overdue)
	}
	return func() { f.Free(id) }
}

// chosen returns which workers get requests.
func (f *asking) chosen() (list []uint64) {
	for i := range 12 {
		f.n++
		a, err := f.BestWorker(f.t.Context(), Prompt{Local: numbers(100*f.n, 2)}, Options{RequestID: fmt.Sprint("probe", i)})
		if err != nil {
			f.t.Fatal(err)
		}
		if !slices.Contains(list, a.Worker) {
			list = append(list, a.Worker)
		}
	}
	for i := range 12 {
		f.Free(fmt.Sprint("probe", i))
	}
	slices.Sort(list)
	return list
}

func (f *asking) want(when string, list ...uint64) {
	f.t.Helper()
	if got := f.chosen(); !slices.Equal(got, list) {
		f.t.Fatalf("%s: %v get requests, want %v", when, got, list)
	}
}

// TestAsk: a worker that gives nothing to the router either gets nothing, and who waits there is told, until it answers.
func TestAsk(t *testing.T) {
	r, _, c := open(t, nil, workers(3)...)
	f := asking{t: t, Router: r, clock: c}
	a, b := f.send(1), f.send(2)
	if _, due := r.Ask(a, Whole); due {
		t.Fatal("it is asked at once")
	}
	c.add(10 * time.Second)
	f.ends(b)
	if id, due := r.Ask(a, Whole); id != 1 || !due {
		t.Fatal(id, due)
	}
	free := f.question(1)
	if _, due := r.Ask(a, Whole); due {
		t.Fatal("it is asked twice at once")
	}
	f.want("while it is asked", 1, 2, 3)
	c.add(21 * time.Second)
	f.want("when its request is overdue", 2, 3)
	if r.Mute(a, Whole) {
		t.Fatal("its request goes elsewhere before anybody knows")
	}
	free()
	again := r.Asked(1, AskSilent, 0)
	if again <= 0 || again > time.Second || !r.Mute(a, Whole) {
		t.Fatal(again, r.Mute(a, Whole))
	}
	r.Failed(a, Whole, Failure{})
	r.Free(a)
	c.add(again)
	f.want("when it is to be asked again", 2, 3)
	if h := r.Health()[0]; !h.Silent || h.LeftOut != 1 {
		t.Fatalf("%+v", h)
	}
	if !r.AskAgain(1) || r.AskAgain(1) {
		t.Fatal("it is not asked again, or twice")
	}
	free = f.question(1)
	c.add(20 * time.Second)
	free()
	if longer := r.Asked(1, AskSilent, 0); longer < again {
		t.Fatalf("it is asked again in %v, and then in %v", again, longer)
	}
	c.add(time.Minute)
	f.want("after a minute", 2, 3)
	if !r.AskAgain(1) {
		t.Fatal("it is not asked again")
	}
	f.question(1)()
	if again := r.Asked(1, AskAnswered, 0); again != 0 || r.AskAgain(1) {
		t.Fatal(again)
	}
	f.want("when it has answered", 1, 2, 3)
	if h := r.Health()[0]; h.State != breaker.HalfOpen || h.Silent {
		t.Fatalf("%+v", h)
	}
	x, y := f.send(1), f.send(1)
	f.want("while it is probed", 2, 3)
	f.ends(x)
	f.ends(y)
	if h := r.Health()[0]; h.State != breaker.Closed {
		t.Fatalf("%+v", h)
	}
}

// TestAskAnswered: a worker that answers the router only gets few requests, and all as soon as one of them is answered,
// or one from before.
func TestAskAnswered(t *testing.T) {
	for _, before := range []bool{false, true} {
		r, _, c := open(t, nil, workers(3)...)
		f := asking{t: t, Router: r, clock: c}
		a := f.send(1)
		c.add(21 * time.Second)
		f.want("when its request is overdue", 2, 3)
		for range 9 {
			if _, due := r.Ask(a, Whole); !due {
				t.Fatal("it is not asked")
			}
			f.question(1)()
			if again := r.Asked(1, AskAnswered, 0); again != 0 || r.Mute(a, Whole) {
				t.Fatal(again)
			}
			for r.Health()[0].State == breaker.HalfOpen && slices.Contains(f.chosen(), 1) {
				f.send(1)
			}
			c.add(21 * time.Second)
		}
		if n := f.n; before {
			f.ends(a)
			f.want("when its old request has ended", 1, 2, 3)
		} else if r.times == nil || n == 0 || r.workers[1].under[0] != 3 {
			t.Fatalf("it has %v requests", r.workers[1].under)
		}
	}
}

// TestAskUnclear: nothing comes of a question that tells nothing, and none is asked of the only one, nor of
// more than may be left out.
func TestAskUnclear(t *testing.T) {
	r, _, c := open(t, nil, workers(3)...)
	f := asking{t: t, Router: r, clock: c}
	waits := []string{f.send(1), f.send(2), f.send(3)}
	for i, id := range waits {
		c.add(10 * time.Second)
		worker := uint64(i + 1)
		if _, due := r.Ask(id, Whole); !due {
			t.Fatalf("worker %d is not asked", worker)
		}
		f.question(worker)()
		if again := r.Asked(worker, AskUnclear, time.Minute); again != 0 || r.Mute(id, Whole) {
			t.Fatal(again)
		}
		c.add(59 * time.Second)
		if _, due := r.Ask(id, Whole); due {
			t.Fatalf("worker %d is asked though it refuses that", worker)
		}
	}
	c.add(time.Hour)
	mute := 0
	for i, id := range waits {
		r.Ask(id, Whole)
		if r.Asked(uint64(i+1), AskSilent, 0) > 0 {
			mute++
		}
	}
	if mute != 2 {
		t.Errorf("%d of 3 are mute", mute)
	}
	r, _, c = open(t, nil, workers(1)...)
	f = asking{t: t, Router: r, clock: c}
	a := f.send(1)
	c.add(time.Hour)
	if _, due := r.Ask(a, Whole); due {
		t.Error("the only one is asked")
	}
}

// TestAskSpeaks: what a worker gives to anybody meanwhile speaks for it.
func TestAskSpeaks(t *testing.T) {
	r, _, c := open(t, nil, workers(2)...)
	f := asking{t: t, Router: r, clock: c}
	a, b := f.send(1), f.send(1)
	c.add(15 * time.Second)
	if _, due := r.Ask(a, Whole); !due {
		t.Fatal("it is not asked")
	}
	free := f.question(1)
	c.add(15 * time.Second)
	f.ends(b)
	free()
	if again := r.Asked(1, AskSilent, 0); again != 0 || r.Mute(a, Whole) {
		t.Fatal("it is mute, and has just spoken")
	}
	f.want("when it has spoken", 1, 2)
}

// TestAskHistories: whatever happens, no worker is mute without somebody who asks it on, no more are than may be
// left out, and one that answers is chosen again.
func TestAskHistories(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r, _, c := open(t, nil, workers(4)...)
		f := asking{t: t, Router: r, clock: c}
		type question struct {
			free  func()
			again time.Time
		}
		asked := map[uint64]*question{}
		var live []string
		for range 300 {
			c.add(time.Duration(rng.ExpFloat64() * float64(3*time.Second)))
			worker := uint64(rng.IntN(4) + 1)
			q := asked[worker]
			switch {
			case q != nil && q.free != nil:
				q.free()
				q.free = nil
				again := r.Asked(worker, Asked(rng.IntN(3)), time.Duration(rng.IntN(2))*time.Minute)
				if q.again = c.Now().Add(again); again == 0 {
					delete(asked, worker)
				}
			case q != nil && !c.Now().Before(q.again):
				if delete(asked, worker); r.AskAgain(worker) {
					asked[worker] = &question{free: f.question(worker)}
				}
			case len(live) > 0 && rng.IntN(3) > 0:
				i := rng.IntN(len(live))
				switch rng.IntN(4) {
				case 0:
					f.ends(live[i])
				case 1:
					r.Failed(live[i], Whole, Failure{Full: rng.IntN(2) == 0})
					r.Free(live[i])
				case 2:
					r.Free(live[i])
				default:
					if id, due := r.Ask(live[i], Whole); due {
						delete(asked, id) // who waits to ask on finds that it is being asked
						asked[id] = &question{free: f.question(id)}
					}
					continue
				}
				live = slices.Delete(live, i, i+1)
			default:
				live = append(live, f.send(worker))
			}
			mute := 0
			for id, w := range r.workers {
				if w.mute {
					if mute++; asked[id] == nil {
						t.Fatalf("seed %d: worker %d is mute, and nobody asks it", seed, id)
					}
				}
			}
			if mute > 2 {
				t.Fatalf("seed %d: %d of 4 are mute", seed, mute)
			}
		}
		for _, id := range live {
			f.ends(id)
		}
		for id, q := range asked {
			if q.free == nil && r.AskAgain(id) {
				q.free = f.question(id)
			}
			if q.free != nil {
				q.free()
				r.Asked(id, AskAnswered, 0)
			}
		}
		c.add(time.Minute)
		for _, h := range r.Health() {
			if h.Silent {
				t.Fatalf("seed %d: %+v", seed, h)
			}
		}
		if got := f.chosen(); len(got) != 4 {
			t.Fatalf("seed %d: %v get requests when all are well", seed, got)
		}
	}
}

// TestAskInVain: where questions tell nothing, as of a slow fleet, that they are asked keeps nobody from who is probed.
func TestAskInVain(t *testing.T) {
	r, _, c := open(t, nil, workers(3)...)
	f := asking{t: t, Router: r, clock: c}
	for i := range 2 {
		a := f.send(1)
		c.add(21 * time.Second)
		f.want("when its request is overdue", 2, 3)
		r.Failed(a, Whole, Failure{})
		r.Free(a)
		c.add(time.Minute)
		b := f.send(1)
		c.add(10 * time.Second)
		if _, due := r.Ask(b, Whole); !due {
			t.Fatal("it is not asked")
		}
		free := f.question(1)
		if got := slices.Contains(f.chosen(), 1); got != (i > 0) {
			t.Fatalf("it is chosen, %v, while it is asked for the %d. time", got, i+1)
		}
		free()
		r.Asked(1, AskUnclear, 0)
		r.Free(b)
	}
}
