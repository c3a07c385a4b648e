package route

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
)

// TestCuts: exchanges that end in the middle of their answers are held against a worker when they are more in
// a row than clients cut by chance, who cut as often elsewhere. Letters are exchanges, of worker 1 those in
// capitals: W(hole), C(ut).
func TestCuts(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		out    bool
	}{
		"few elsewhere":          {strings.Repeat("w", 30) + "CCC", true},
		"two":                    {strings.Repeat("w", 30) + "CC", false},
		"a whole one between":    {strings.Repeat("w", 30) + "CCWCC", false},
		"nothing is known":       {"CCC", false},
		"of a sick one at first": {"CCCwwwwCwwwwC", true},
		"half of all":            {strings.Repeat("wc", 200) + strings.Repeat("C", 9), false},
		"more than half of all":  {strings.Repeat("wc", 200) + strings.Repeat("C", 11), true},
		"clients that always go": {strings.Repeat("wcccc", 50) + strings.Repeat("Cc", 20), false},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, now := open(t, nil, workers(3)...)
			for i, k := range c.script {
				id, worker := fmt.Sprint(i), uint64(2)
				if k == 'W' || k == 'C' {
					worker = 1
				}
				best(t, r, Prompt{Local: numbers(i, 2)}, Options{RequestID: id, Watched: true, Worker: &worker})
				r.Succeeded(id, Whole) // its first token
				if now.add(time.Millisecond); k == 'w' || k == 'W' {
					r.Succeeded(id, Whole)
				} else {
					r.Cut(id, Whole)
				}
				r.Free(id)
			}
			if h := r.Health()[0]; (h.State == breaker.Open) != c.out || h.LeftOut > 1 {
				t.Errorf("%+v", h)
			}
		})
	}
}

// TestCutsOfOneClient: one client alone has no worker left out at which answers of others go on; if these are cut
// as well, or there are none, its cuts count. What is cut behind its end is whole.
func TestCutsOfOneClient(t *testing.T) {
	r, _, _ := open(t, nil, workers(3)...)
	n := 0
	begin := func(worker, client uint64) string {
		n++
		id := fmt.Sprint(n)
		best(t, r, Prompt{Local: numbers(n, 2)}, Options{RequestID: id, Watched: true, Worker: &worker, Client: client})
		r.Succeeded(id, Whole)
		return id
	}
	cut := func(id string) {
		r.Cut(id, Whole)
		r.Free(id)
	}
	for range 100 {
		id := begin(2, 2)
		r.Succeeded(id, Whole)
		cut(id)
	}
	honest := begin(1, 2)
	for range 20 {
		cut(begin(1, 1))
	}
	if h := r.Health()[0]; h.State != breaker.Closed || h.Failed > 0 {
		t.Fatalf("one client has it left out beside another's answer: %+v", h)
	}
	if cut(honest); r.Health()[0].State != breaker.Open {
		t.Errorf("%+v as the other's is cut as well", r.Health()[0])
	}
	for range 5 {
		cut(begin(3, 1))
	}
	if h := r.Health()[2]; h.State != breaker.Open || h.Failed != 1 {
		t.Errorf("%+v where only one asks", h)
	}
	if h := r.Health()[1]; h.State != breaker.Closed || h.Failed > 0 {
		t.Errorf("%+v for cuts behind the end", h)
	}
}

// TestCutProbes: a worker that was left out for its cuts is not well for answers that only begin, but for one
// that goes on.
func TestCutProbes(t *testing.T) {
	r, _, now := open(t, nil, workers(2)...)
	n := 0
	ask := func(worker uint64, end func(id string)) {
		n++
		id := fmt.Sprint(n)
		best(t, r, Prompt{Local: numbers(n, 2)}, Options{RequestID: id, Watched: true, Worker: &worker})
		r.Succeeded(id, Whole)
		end(id)
		r.Free(id)
	}
	for range 30 {
		ask(2, func(id string) { r.Succeeded(id, Whole) })
	}
	cut := func(id string) { r.Cut(id, Whole) }
	for range 3 {
		ask(1, cut)
	}
	for i, step := range []struct {
		end  func(id string)
		want breaker.State
	}{{cut, breaker.Open}, {cut, breaker.Open}, {func(id string) { now.add(firmAfter); r.Output(id, 1) }, breaker.HalfOpen}, {func(id string) { r.Succeeded(id, Whole) }, breaker.Closed}} {
		if s := r.Health()[0].State; s == breaker.Open {
			now.add(20 * time.Second)
		}
		if ask(1, step.end); r.Health()[0].State != step.want {
			t.Fatalf("step %d: %v", i, r.Health()[0])
		}
	}
}

// TestStalls: an answer that has begun and gives nothing is a failure as long as it does.
func TestStalls(t *testing.T) {
	r, _, _ := open(t, nil, workers(2)...)
	var held []Blame
	for i := range 3 {
		id := fmt.Sprint(i)
		best(t, r, Prompt{Local: numbers(i, 2)}, Options{RequestID: id, Watched: true, Worker: ptr(uint64(1))})
		if b := r.Stalled(id, Whole); !b.None() {
			t.Error("nothing has come, which is another matter")
		}
		r.Succeeded(id, Whole)
		held = append(held, r.Stalled(id, Whole))
		if b := r.Stalled(id, Whole); !b.None() {
			t.Error("it counts twice")
		}
	}
	if h := r.Health()[0]; h.State != breaker.Open || h.Failed != 3 {
		t.Fatalf("%+v", h)
	}
	for _, b := range held {
		r.Withdraw(b)
	}
	if h := r.Health()[0]; h.State != breaker.Closed {
		t.Errorf("%+v when they go on", h)
	}
}

// TestStallsThatEnd: how an answer ends that gave nothing for a while counts, as that is withdrawn.
func TestStallsThatEnd(t *testing.T) {
	r, _, _ := open(t, nil, workers(2)...)
	for i := range 3 {
		id := fmt.Sprint(i)
		best(t, r, Prompt{Local: numbers(i, 2)}, Options{RequestID: id, Watched: true, Worker: ptr(uint64(1))})
		r.Succeeded(id, Whole)
		r.WentOn(id, Whole, r.Stalled(id, Whole))
		if b := r.Failed(id, Whole, Failure{}); b.None() {
			t.Error("it breaks off, which nobody hears of")
		}
		r.Free(id)
	}
	if h := r.Health()[0]; h.State != breaker.Open {
		t.Errorf("%+v", h)
	}
}

// TestUnproven: until an answer of a worker was whole, or went on for a while, and after one that failed, its
// answers may break off.
func TestUnproven(t *testing.T) {
	ws := workers(3)
	ws[1].Role = Prefill
	r, _, now := open(t, nil, ws...)
	ask := func(id string) bool {
		return best(t, r, Prompt{Local: numbers(1, 2)}, Options{RequestID: id, Watched: true, Worker: ptr(uint64(1))}).Unproven
	}
	if !ask("a") {
		t.Error("it is proven by nothing")
	}
	r.Succeeded("a", Whole)
	r.Free("a")
	if !ask("b") {
		t.Error("it is proven by an answer that began")
	}
	r.Succeeded("b", Whole)
	now.add(firmAfter)
	r.Output("b", 1)
	if ask("c") {
		t.Error("an answer has gone on")
	}
	if r.Failed("c", Whole, Failure{}); !ask("d") {
		t.Error("the last has failed")
	}
	r.RemoveWorker(3)
	if ask("e") {
		t.Error("the other one only prefills")
	}
}

// TestUnder: what is counted under way at a worker, by client, is what a look at all requests finds, whatever
// becomes of them, and nothing in the end.
func TestUnder(t *testing.T) {
	r, _, now := open(t, nil, workers(3)...)
	rng := rand.New(rand.NewPCG(1, 2))
	live, held := map[string]bool{}, map[string]Blame{}
	for i := range 4000 {
		id := ""
		if ids := slices.Sorted(maps.Keys(live)); len(ids) > 0 {
			id = ids[rng.IntN(len(ids))]
		}
		switch n := rng.IntN(8); {
		case id == "" || n < 2 && len(live) < 20:
			id = fmt.Sprint(i)
			best(t, r, Prompt{Local: numbers(i, 2)}, Options{RequestID: id, Watched: true, Client: uint64(rng.IntN(4))})
			live[id] = true
		case n == 2:
			r.Succeeded(id, Whole)
		case n == 3:
			r.Cut(id, Whole)
		case n == 4:
			r.Failed(id, Whole, Failure{Full: rng.IntN(2) == 0})
		case n == 5:
			if b := r.Stalled(id, Whole); !b.None() {
				held[id] = b
			}
		case n == 6:
			if b, ok := held[id]; ok {
				r.WentOn(id, Whole, b)
				delete(held, id)
			}
		default:
			r.Free(id)
			delete(live, id)
			delete(held, id)
		}
		now.add(10 * time.Millisecond)
		want := map[uint64]under{}
		for _, a := range r.attempts {
			if id := a.worker.ID; !a.failed {
				if want[id] == nil {
					want[id] = under{}
				}
				want[id][a.client]++
			}
		}
		for id, w := range r.workers {
			if !maps.Equal(w.under, want[id]) {
				t.Fatalf("step %d, worker %d: %v are counted, %v are there", i, id, w.under, want[id])
			}
		}
	}
	for id := range live {
		r.Free(id)
	}
	for id, w := range r.workers {
		if len(w.under) > 0 {
			t.Errorf("worker %d: %v are left", id, w.under)
		}
	}
}
