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
	r.Tried(3, 0)
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
