package route

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// TestTrials: who can try only one worker is sent to none that is half open or has proved nothing, as long as
// another one may be chosen, and nobody is tried twice at once.
func TestTrials(t *testing.T) {
	const within = time.Second
	r, _, now := open(t, nil, workers(3)...)
	n := 0
	try := func(worker uint64, end func(id string)) {
		n++
		id := fmt.Sprint("trial", n)
		best(t, r, Prompt{Local: numbers(1, 1)}, Options{RequestID: id, Watched: true, Worker: &worker})
		end(id)
		r.Free(id)
		r.Tried(worker, 0)
	}
	well := func(id string) { r.Succeeded(id, Whole); r.Succeeded(id, Whole) }
	fails := func(id string) { r.Failed(id, Whole, Failure{}) }
	want := func(list []uint64, wait bool) {
		t.Helper()
		if got, w := r.Trials(within, 16); !slices.Equal(got, list) || w != wait {
			t.Fatalf("%v are to be tried, wait %v; want %v, %v", got, w, list, wait)
		}
	}
	chosen := func() (list []uint64) {
		for i := range 30 {
			a, err := r.BestWorker(t.Context(), Prompt{Local: numbers(100+i, 2)}, Options{Trial: within})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Contains(list, a.Worker) {
				list = append(list, a.Worker)
			}
			best(t, r, Prompt{Local: numbers(100+i, 2)}, Options{RequestID: fmt.Sprint(i), Worker: &a.Worker})
		}
		for i := range 30 {
			r.Free(fmt.Sprint(i))
		}
		slices.Sort(list)
		return list
	}
	if list, wait := r.Trials(within, 2); !slices.Equal(list, []uint64{1, 2}) || !wait {
		t.Fatal(list, wait)
	}
	want([]uint64{3}, true)
	want(nil, true)
	if got := chosen(); len(got) != 3 {
		t.Fatalf("%v are chosen while nothing is known of any", got)
	}
	try(1, well)
	if got := chosen(); !slices.Equal(got, []uint64{1}) {
		t.Fatalf("%v are chosen", got)
	}
	try(2, fails)
	now.add(-time.Millisecond) // as a choice reads the clock before it has the lock
	if got := chosen(); !slices.Equal(got, []uint64{1}) {
		t.Fatalf("%v are chosen at once after a trial that failed", got)
	}
	now.add(time.Millisecond)
	want([]uint64{2}, false)
	try(2, fails)
	want([]uint64{2}, false)
	try(2, fails) // which leaves it out
	want(nil, false)
	now.add(within) // worker 3 has said nothing in time
	if got := chosen(); !slices.Equal(got, []uint64{1}) {
		t.Fatalf("%v are chosen while the trial of one that may hang is under way", got)
	}
	try(3, func(string) {})
	if got := chosen(); !slices.Contains(got, 1) || !slices.Contains(got, 3) {
		t.Fatalf("%v are chosen", got)
	}
	now.add(time.Minute)
	want([]uint64{2}, false)
	if got := chosen(); slices.Contains(got, 2) {
		t.Fatalf("%v are chosen with a half open one", got)
	}
	try(2, well)
	want([]uint64{2}, false)
	try(2, well)
	if h := r.Health()[1]; h.State != breaker.Closed {
		t.Fatal(h)
	}
	want(nil, false)
	for range 3 {
		try(1, fails)
	}
	now.add(time.Minute)
	want([]uint64{1}, false)
	r.Tried(1, time.Second) // it refuses trials
	want(nil, false)
	if got := chosen(); !slices.Contains(got, 1) {
		t.Errorf("%v are chosen: nobody finds out that it is well", got)
	}
}

// TestTrialsAlone: who is alone is not tried.
func TestTrialsAlone(t *testing.T) {
	ws := workers(2)
	ws[1].Role = Prefill
	r, _, _ := open(t, nil, ws...)
	if list, wait := r.Trials(time.Second, 16); len(list) > 0 || wait {
		t.Error(list, wait)
	}
}

// TestTrialsThatFail: a worker that has proved nothing, and whose trial failed without leaving it out, gets none of those
// requests however seldom they come, but trials, once in a while; and all of them where it is the only one.
func TestTrialsThatFail(t *testing.T) {
	const within = time.Second
	r, _, now := open(t, func(c *Config) { c.Settings.OverdueAfter = 0 }, workers(2)...)
	begin := func(worker uint64) (id string) {
		best(t, r, Prompt{Local: numbers(1, 1)}, Options{RequestID: fmt.Sprint("trial", worker), Watched: true, Worker: &worker})
		return fmt.Sprint("trial", worker)
	}
	well := func(worker uint64, id string) {
		r.Succeeded(id, Whole)
		r.Succeeded(id, Whole)
		r.Free(id)
		r.Tried(worker, 0)
	}
	if list, _ := r.Trials(within, 16); !slices.Equal(list, []uint64{1, 2}) {
		t.Fatal(list)
	}
	well(1, begin(1))
	hangs := begin(2)
	now.add(20 * time.Second) // and is given up: one failure, where nothing is overdue
	r.Failed(hangs, Whole, Failure{})
	r.Free(hangs)
	r.Tried(2, 0)
	if h := r.Health()[1]; h.Failed != 1 || h.State != breaker.Closed {
		t.Fatalf("%+v after one that hung", h)
	}
	if list, _ := r.Trials(within, 16); !slices.Equal(list, []uint64{2}) {
		t.Fatalf("%v are to be tried again", list)
	}
	r.Tried(2, 0)
	if list, wait := r.Trials(within, 16); len(list) > 0 || wait {
		t.Fatalf("%v are to be tried at once again, wait %v", list, wait)
	}
	choose := func(i int) uint64 {
		a, err := r.BestWorker(t.Context(), Prompt{Local: numbers(100+i, 2)}, Options{RequestID: fmt.Sprint(i), Trial: within})
		if err != nil {
			t.Fatal(err)
		}
		return a.Worker
	}
	for i := range 20 { // each makes worker 1 busier, and none worker 2
		now.add(time.Minute)
		if got := choose(i); got != 1 {
			t.Fatalf("request %d goes to worker %d", i, got)
		}
	}
	if err := r.SetDead(1, true); err != nil {
		t.Fatal(err)
	}
	if list, wait := r.Trials(within, 16); len(list) > 0 || wait || choose(20) != 2 {
		t.Fatalf("%v are to be tried, wait %v, and the only one is not chosen", list, wait)
	}
	if err := r.SetDead(1, false); err != nil {
		t.Fatal(err)
	}
	r.Free("20")
	if list, _ := r.Trials(within, 16); !slices.Equal(list, []uint64{2}) {
		t.Fatalf("%v are to be tried", list)
	}
	well(2, begin(2))
	if got := choose(21); got != 2 {
		t.Errorf("worker %d is chosen once the other is well and idle", got)
	}
}
