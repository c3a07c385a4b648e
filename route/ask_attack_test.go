package route

import (
	"fmt"
	"math/rand/v2"
	"slices"
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

// TestAskHistoriesOfFleets: TestAskHistories where workers come, go, and are others afterwards, are tried by those who can ask
// one only, and clocks stand still: whoever is mute is asked on, what is under way of a worker is known to who does it, and no
// worker is two things at once.
func TestAskHistoriesOfFleets(t *testing.T) {
	mutes, tries := 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		const n = 5
		r, _, c := open(t, nil, workers(n)...)
		f := asking{t: t, Router: r, clock: c}
		type asker struct {
			free  func() // of the question under way
			of    *workerState
			again time.Time
		}
		type trial struct {
			of *workerState
			id uint64
		}
		var askers []*asker
		var trials []trial
		type waiting struct {
			id string
			at uint64
		}
		var live []waiting
		mixed := make(map[*workerState]bool) // who came while another of its id was asked or tried: what is told of that may be taken for its
		book := func(worker uint64, o Options) (id string, ok bool) {
			f.n++
			id = fmt.Sprint("request", f.n)
			o.RequestID, o.Watched, o.Worker = id, true, &worker
			_, err := r.BestWorker(t.Context(), Prompt{Local: numbers(100*f.n, 2)}, o)
			return id, err == nil
		}
		asks := func(id uint64) *asker {
			question, ok := book(id, Options{Question: true})
			return &asker{free: func() {
				if ok {
					r.Free(question)
				}
			}, of: r.workers[id]}
		}
		end := func(a *asker, what Asked) {
			a.free()
			a.free = nil
			again := r.Asked(a.of.ID, what, time.Duration(rng.IntN(2))*time.Minute)
			if a.again = c.Now().Add(again); again == 0 {
				askers = slices.DeleteFunc(askers, func(b *asker) bool { return a == b })
			}
		}
		for range 400 {
			if rng.IntN(3) > 0 {
				c.add(time.Duration(rng.ExpFloat64() * float64(4*time.Second)))
			}
			worker := uint64(rng.IntN(n) + 1)
			switch rng.IntN(12) {
			case 0:
				switch on := rng.IntN(3) == 0; rng.IntN(5) {
				case 0:
					_ = r.Drain(worker, on)
				case 1:
					_ = r.SetDead(worker, on)
				case 2:
					r.RemoveWorker(worker)
					live = slices.DeleteFunc(live, func(w waiting) bool { return w.at == worker })
				default:
					is := r.workers[worker] != nil
					if err := r.SetWorker(Worker{ID: worker, Role: Role(rng.IntN(8) / 6)}); err != nil {
						t.Fatal(err)
					}
					if !is && (slices.ContainsFunc(askers, func(a *asker) bool { return a.of.ID == worker }) ||
						slices.ContainsFunc(trials, func(x trial) bool { return x.id == worker })) {
						mixed[r.workers[worker]] = true
					}
				}
			case 1:
				list, _ := r.Trials(10*time.Second, 2)
				for _, id := range list {
					tries++
					trials = append(trials, trial{r.workers[id], id})
				}
			case 2, 3:
				if len(trials) > 0 {
					i := rng.IntN(len(trials))
					r.Tried(trials[i].id, time.Duration(rng.IntN(2))*time.Second)
					trials = slices.Delete(trials, i, i+1)
				}
			case 4, 5, 6:
				if len(askers) == 0 {
					break
				}
				switch a := askers[rng.IntN(len(askers))]; {
				case a.free != nil:
					end(a, Asked(rng.IntN(3)))
				case !c.Now().Before(a.again):
					askers = slices.DeleteFunc(askers, func(b *asker) bool { return a == b })
					if r.AskAgain(a.of.ID) {
						askers = append(askers, asks(a.of.ID))
					}
				}
			case 7, 8:
				if len(live) > 0 {
					if id, due := r.Ask(live[rng.IntN(len(live))].id, Whole); due {
						askers = append(askers, asks(id))
					}
				}
			case 9:
				if len(live) == 0 {
					break
				}
				i := rng.IntN(len(live))
				switch rng.IntN(7) {
				case 0:
					f.ends(live[i].id)
				case 1:
					r.Failed(live[i].id, Whole, Failure{Full: rng.IntN(2) == 0})
					r.Free(live[i].id)
				case 2:
					blame := r.Failed(live[i].id, Whole, Failure{Wrong: rng.IntN(2) == 0, Alone: rng.IntN(2) == 0, Shared: rng.IntN(2) == 0})
					if r.Free(live[i].id); rng.IntN(2) == 0 {
						r.Withdraw(blame)
					}
				case 3:
					r.Succeeded(live[i].id, Whole)
					continue
				case 4:
					r.Cut(live[i].id, Whole)
					r.Free(live[i].id)
				case 5:
					if r.Renew(worker); rng.IntN(2) == 0 {
						r.mu.Lock()
						r.failsElsewhere(worker, c.Now())
						r.mu.Unlock()
					}
					continue
				default:
					r.Free(live[i].id)
				}
				live = slices.Delete(live, i, i+1)
			default:
				if id, ok := book(worker, Options{Whole: rng.IntN(2) == 0}); ok {
					live = append(live, waiting{id, worker})
				}
			}
			for id, w := range r.workers {
				asked, tried, asleep := 0, 0, 0
				for _, a := range askers {
					if a.of == w && a.free != nil {
						asked++
					} else if a.of.ID == id {
						asleep++
					}
				}
				for _, x := range trials {
					if x.of == w {
						tried++
					}
				}
				if w.mute {
					mutes++
				}
				switch {
				case w.mute && asked+asleep == 0:
					t.Fatalf("seed %d: worker %d is mute, and nobody asks it", seed, id)
				case mixed[w]:
				case asked+tried > 1:
					t.Fatalf("seed %d: worker %d is asked %d times and tried %d times at once", seed, id, asked, tried)
				case w.trying.live && asked+tried == 0:
					t.Fatalf("seed %d: worker %d is never asked again", seed, id)
				}
			}
		}
		for _, x := range trials {
			r.Tried(x.id, 0)
		}
		for len(askers) > 0 {
			if a := askers[0]; a.free != nil {
				end(a, AskAnswered)
			} else {
				c.now = later(c.now, a.again)
				askers = askers[1:]
				if r.AskAgain(a.of.ID) {
					askers = append(askers, asks(a.of.ID))
				}
			}
		}
		for id := range uint64(n) {
			if err := r.SetWorker(Worker{ID: id + 1}); err != nil {
				t.Fatal(err)
			}
		}
		for _, w := range live {
			f.ends(w.id)
		}
		c.add(time.Minute)
		if got := f.chosen(); len(got) != n {
			t.Fatalf("seed %d: %v get requests when all are well: %+v", seed, got, r.Health())
		}
	}
	if mutes < 1000 || tries < 1000 {
		t.Errorf("%d times one was mute, %d trials: it shows little", mutes, tries)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
