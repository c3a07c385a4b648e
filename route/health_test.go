package route

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// bench lets clients ask a router's workers one after the other, in virtual time.
type benchEvent struct {
	at     time.Time
	client int
}

type benchAgenda []benchEvent

func (a benchAgenda) Len() int           { return len(a) }
func (a benchAgenda) Less(i, j int) bool { return a[i].at.Before(a[j].at) }
func (a benchAgenda) Swap(i, j int)      { a[i], a[j] = a[j], a[i] }
func (a *benchAgenda) Push(x any)        { *a = append(*a, x.(benchEvent)) }
func (a *benchAgenda) Pop() any {
	l := len(*a) - 1
	x := (*a)[l]
	*a = (*a)[:l]
	return x
}

// sickWorker is what the first of three workers does with requests.
type sickWorker struct {
	full  bool
	after time.Duration // of a full one
	until time.Duration // it is well from then on; 0: never
}

// askAll runs so many requests by clients at once through three workers, of which the
// first fails at once, each tried at up to three, and returns how often the sick one was
// asked and how many requests found no other.
func askAll(t *testing.T, r *Router, c *clock, clients, requests int, sick sickWorker) (asked, failed, served int) {
	t.Helper()
	start := c.Now()
	rng := rand.New(rand.NewPCG(1, 2))
	type live struct {
		id       string
		worker   uint64
		excluded []uint64
		first    bool // is out
	}
	state := make([]live, clients)
	var agenda benchAgenda
	for i := range clients {
		heap.Push(&agenda, benchEvent{c.Now(), i})
	}
	next := 0
	place := func(i int) {
		s := &state[i]
		a, err := r.BestWorker(context.Background(), Prompt{Local: numbers(1000*next+7, 20)}, Options{RequestID: s.id, Excluded: s.excluded, Watched: true})
		if err != nil {
			if !errors.Is(err, ErrNoWorker) && !errors.Is(err, ErrOverloaded) {
				t.Fatal(err)
			}
			failed++
			s.id = ""
			heap.Push(&agenda, benchEvent{c.Now().Add(time.Millisecond), i})
			return
		}
		s.worker, s.first = a.Worker, false
		d := 20 * time.Millisecond
		if a.Worker == 1 {
			asked++
			if sick.until == 0 || c.Now().Sub(start) < sick.until {
				d = time.Millisecond
			}
		}
		heap.Push(&agenda, benchEvent{c.Now().Add(d + time.Duration(rng.IntN(1e6))), i})
	}
	for agenda.Len() > 0 {
		e := heap.Pop(&agenda).(benchEvent)
		c.add(e.at.Sub(c.Now()))
		s := &state[e.client]
		switch {
		case s.id == "":
			if next++; next > requests {
				continue
			}
			*s = live{id: fmt.Sprint(next, "-", c.Now().UnixNano())}
			place(e.client)
		case s.worker == 1 && !s.first && (sick.until == 0 || c.Now().Sub(start) < sick.until):
			r.Failed(s.id, Whole, Failure{Full: sick.full, RetryAfter: sick.after})
			r.Free(s.id)
			s.excluded = append(s.excluded, 1)
			place(e.client)
		case !s.first:
			s.first = true
			r.MarkPrefillComplete(s.id)
			heap.Push(&agenda, benchEvent{c.Now().Add(200 * time.Millisecond), e.client})
		default:
			served++
			r.Output(s.id, 20)
			r.Free(s.id)
			s.id = ""
			heap.Push(&agenda, benchEvent{c.Now(), e.client})
		}
	}
	return asked, failed, served
}

// TestSickWorker: a worker that answers at once, and not as it should, does not draw the
// traffic for being idle; when it is well it gets its part again.
func TestSickWorker(t *testing.T) {
	for name, sick := range map[string]sickWorker{
		"fails": {}, "is full": {full: true}, "is full for 3 s": {full: true, after: 3 * time.Second},
	} {
		for _, mode := range []string{"auto", "kv", "least-loaded", "round-robin"} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				r, _, c := open(t, func(c *Config) { c.Settings.Mode = mode }, workers(3)...)
				asked, failed, served := askAll(t, r, c, 16, 600, sick)
				if asked > 24 || failed > 0 || served != 600 {
					t.Errorf("of 600 requests %d were sent to the sick worker, %d found no other, %d were served", asked, failed, served)
				}
				if asked, failed, _ = askAll(t, r, c, 16, 300, sick); asked > 8 || failed > 0 {
					t.Errorf("of the next 300 %d, %d", asked, failed)
				}
				c.add(31 * time.Second)
				asked, failed, _ = askAll(t, r, c, 16, 600, sickWorker{until: time.Nanosecond})
				if asked < 120 || failed > 0 {
					t.Errorf("when it was well again it got %d of 600, %d failed", asked, failed)
				}
			})
		}
	}
}

// TestLeftOutShare: what fails everywhere leaves workers enough, and one alone is never
// left out.
func TestLeftOutShare(t *testing.T) {
	for n, most := range map[int]int{1: 0, 2: 1, 3: 2, 4: 2, 10: 6} {
		r, _, _ := open(t, nil, workers(n)...)
		for round := range 5 {
			for w := range uint64(n) {
				id := fmt.Sprint(round, w)
				if _, err := r.BestWorker(t.Context(), Prompt{Local: numbers(1, 3)}, Options{RequestID: id, Worker: ptr(w + 1)}); err != nil {
					t.Fatal(err)
				}
				r.Failed(id, Whole, Failure{Full: w%2 == 0})
				r.Free(id)
			}
		}
		out, spared := 0, uint64(0)
		for _, h := range r.Health() {
			if h.State != breaker.Closed {
				out++
			}
			spared += h.Spared
		}
		if out != most || spared == 0 {
			t.Errorf("%d of %d workers are left out, want %d; %d times it was not done", out, n, most, spared)
		}
	}
}

// TestLeftOutPrefill: prefill workers may all be left out, the only one as well, for failures and
// for silence, unless no worker that decodes is well.
func TestLeftOutPrefill(t *testing.T) {
	for name, c := range map[string]struct {
		share float64
		alone bool // decode workers fail
		want  string
	}{"usual": {0.67, false, "failing"}, "none may": {0, false, "eligible"}, "nobody else": {1, true, "eligible"}} {
		for _, silent := range []bool{false, true} {
			ws := workers(2)
			ws[0].Role, ws[1].Role = Prefill, Decode
			r, _, clock := open(t, func(cfg *Config) { cfg.Settings.LeftOutShare = c.share }, ws...)
			fail := func(id uint64, stage Stage) {
				for i := range 5 {
					name := fmt.Sprint(id, i)
					best(t, r, Prompt{Local: numbers(1, 3)}, Options{RequestID: name, Stage: stage, Worker: ptr(id)})
					r.Failed(name, stage, Failure{})
					r.Free(name)
					if r.Loads()[id-1].Left != Eligible {
						return
					}
				}
			}
			if c.alone {
				r.settings.LeftOutShare = 1
				fail(2, DecodeStage)
				r.settings.LeftOutShare = 0.67
			}
			if silent {
				best(t, r, Prompt{Local: numbers(1, 3)}, Options{RequestID: "a", Stage: PrefillStage, Watched: true, Worker: ptr(uint64(1))})
				clock.add(21 * time.Second)
				if out := r.Overdue("a", PrefillStage); out != (c.want == "failing") {
					t.Errorf("%s: overdue is %v", name, out)
				}
			} else {
				fail(1, PrefillStage)
			}
			if got := r.Loads()[0].Left.String(); got != c.want {
				t.Errorf("%s, silent %v: the prefill worker is %s", name, silent, got)
			}
			if c.want == "eligible" {
				continue
			}
			pair, err := r.BestPair(t.Context(), Prompt{Local: numbers(1, 3)}, Options{RequestID: "b"})
			if err != nil || pair.Prefill != nil || pair.Decode.Worker != 2 {
				t.Errorf("%s, silent %v: %+v, %v", name, silent, pair, err)
			}
		}
	}
}

// TestRequestsOwnFault: a request that fails at two workers is held against neither,
// though it opened a breaker.
func TestRequestsOwnFault(t *testing.T) {
	r, _, _ := open(t, func(c *Config) { c.Settings.Breaker.Failures = 1 }, workers(4)...)
	for i := range 20 {
		id := fmt.Sprint(i)
		var blames []Blame
		var tried []uint64
		for range 2 {
			a := best(t, r, Prompt{Local: numbers(1, 3)}, Options{RequestID: id, Excluded: tried})
			blames, tried = append(blames, r.Failed(id, Whole, Failure{})), append(tried, a.Worker)
			r.Free(id)
		}
		for _, b := range blames {
			r.Withdraw(b)
		}
		for _, h := range r.Health() {
			if h.State != breaker.Closed {
				t.Fatalf("after request %d worker %d is %v", i, h.Worker, h.State)
			}
		}
	}
	r.Withdraw(Blame{}) // nobody's
}

// A worker that calls three requests in a row wrong is doubted, until it serves one; where others
// agree it is doubted for twice as many, and stays in.
func TestCallsAllWrong(t *testing.T) {
	r, _, c := open(t, nil, workers(1)...)
	n := 0
	ask := func(f func(id string)) {
		n++
		id := fmt.Sprint(n)
		if _, err := r.BestWorker(t.Context(), Prompt{Local: numbers(n, 2)}, Options{RequestID: id, Watched: true}); err != nil {
			t.Fatal(err)
		}
		f(id)
		r.Free(id)
		c.add(time.Millisecond)
	}
	until := func(agreed bool) (calls int) {
		for doubted := false; !doubted && calls < 200; calls++ {
			ask(func(id string) {
				b := r.Failed(id, Whole, Failure{Wrong: true})
				if doubted = !b.None(); doubted && agreed {
					r.Withdraw(b)
				}
			})
		}
		return calls
	}
	for i, want := range []int{3, 6, 12, 24, 48, 64, 64} {
		if calls := until(true); calls != want {
			t.Errorf("round %d: doubted after %d, want %d", i, calls, want)
		}
	}
	if h := r.Health()[0]; h.LeftOut+h.Spared != 0 {
		t.Errorf("%+v", h)
	}
	ask(func(id string) { r.MarkPrefillComplete(id) })
	if calls := until(false); calls != 3 {
		t.Errorf("after an answer: doubted after %d", calls)
	}
	for range 2 {
		if calls := until(false); calls != 1 {
			t.Errorf("doubted still: %d", calls)
		}
	}
	if h := r.Health()[0]; h.Spared != 1 { // the only one
		t.Errorf("%+v", h)
	}
}

// Where no other worker can be asked, one that calls sixteen requests in a row wrong is doubted if the
// others serve more of theirs in the meantime than they call wrong.
func TestCallsAllWrongAlone(t *testing.T) {
	for _, c := range []struct {
		well, wrong int // of the others, for each that worker 1 calls wrong
		doubted     bool
	}{{1, 0, true}, {3, 2, true}, {1, 1, false}, {0, 1, false}, {0, 0, false}} {
		r, _, now := open(t, nil, workers(3)...)
		n, doubted := 0, 0
		ask := func(worker uint64, f func(id string)) {
			n++
			id := fmt.Sprint(n)
			if _, err := r.BestWorker(t.Context(), Prompt{Local: numbers(n, 2)}, Options{RequestID: id, Watched: true, Worker: &worker}); err != nil {
				t.Fatal(err)
			}
			f(id)
			r.Free(id)
			now.add(time.Millisecond)
		}
		calls := func(id string) bool {
			b := r.Failed(id, Whole, Failure{Wrong: true, Alone: true})
			return !b.None()
		}
		for i := range 200 {
			for range c.well {
				ask(2, func(id string) { r.Succeeded(id, Whole) })
			}
			for range c.wrong {
				ask(3, func(id string) { calls(id) })
			}
			ask(1, func(id string) {
				if calls(id) && doubted == 0 {
					doubted = i + 1
				}
			})
		}
		if want := map[bool]int{true: wrongAlone}[c.doubted]; doubted != want {
			t.Errorf("%+v: doubted at request %d, want %d", c, doubted, want)
		}
	}
}

// TestSilentWorker: one that takes requests and gives nothing is left out by its oldest
// one, as long as that waits, and then as one that failed; anything that it gives ends
// that. Who does not watch is not judged by.
func TestSilentWorker(t *testing.T) {
	open3 := func() (*Router, *clock) {
		r, _, c := open(t, nil, workers(3)...)
		return r, c
	}
	left := func(r *Router) string { return r.Loads()[0].Left.String() }
	send := func(r *Router, id string, o Options) Answer {
		o.RequestID, o.Worker = id, ptr(uint64(1))
		return best(t, r, Prompt{Local: numbers(1, 3)}, o)
	}
	r, c := open3()
	a := send(r, "a", Options{Watched: true})
	if a.Overdue != 20*time.Second {
		t.Errorf("a short prompt may take %v", a.Overdue)
	}
	c.add(a.Overdue)
	if left(r) != "eligible" || r.Overdue("a", Whole) {
		t.Error("judged too early")
	}
	c.add(time.Millisecond)
	if left(r) != "failing" || !r.Overdue("a", Whole) || r.Overdue("b", Whole) {
		t.Errorf("after %v it is %s", a.Overdue, left(r))
	}
	for range 50 {
		if got := best(t, r, Prompt{Local: numbers(1, 3)}, Options{}); got.Worker == 1 {
			t.Fatal("it is still chosen")
		}
	}
	c.add(time.Hour)
	if left(r) != "failing" {
		t.Error("it is tried again while nothing came")
	}
	r.Free("a")
	if left(r) != "failing" {
		t.Error("a client that gives up makes it well")
	}
	if c.add(time.Second); left(r) != "eligible" || r.Health()[0].State != breaker.HalfOpen {
		t.Errorf("it is never tried: %s", left(r))
	}

	for name, speak := range map[string]func(r *Router){
		"a first token": func(r *Router) { r.MarkPrefillComplete("a") },
		"another's":     func(r *Router) { r.MarkPrefillComplete("b") },
		"output":        func(r *Router) { r.Output("c", 1) },
	} {
		r, c := open3()
		for _, id := range []string{"a", "b", "c"} {
			send(r, id, Options{Watched: true})
		}
		r.MarkPrefillComplete("c")
		if c.add(21 * time.Second); left(r) != "failing" {
			t.Fatalf("it is %s", left(r))
		}
		if speak(r); left(r) != "eligible" || r.Overdue("a", Whole) {
			t.Errorf("after %s it is %s", name, left(r))
		}
	}

	r, c = open3()
	send(r, "a", Options{})
	if c.add(time.Minute); left(r) != "eligible" {
		t.Error("judged by a request that nobody watches")
	}
	if r.Free("a"); left(r) != "eligible" {
		t.Error("judged by the end of a request that nobody watches")
	}
	r, _ = open3()
	if a := send(r, "a", Options{Watched: true, Whole: true, ExpectedOutput: 1000}); a.Overdue < 40*time.Second || a.Overdue > 80*time.Second {
		t.Errorf("a whole answer of 1,000 tokens may take %v", a.Overdue)
	}
}

// TestLeftOutPrefillShared: where it is not known which of a pair has failed, prefill workers are left out no
// further than decode workers: a sick decode worker, or requests at which all fail, would leave none.
func TestLeftOutPrefillShared(t *testing.T) {
	for shared, most := range map[bool]int{true: 2, false: 3} {
		ws := workers(4)
		for i := range 3 {
			ws[i].Role = Prefill
		}
		ws[3].Role = Decode
		r, _, _ := open(t, nil, ws...)
		for i := range 30 {
			id := fmt.Sprint(i)
			best(t, r, Prompt{Local: numbers(1, 3)}, Options{RequestID: id, Stage: PrefillStage, Worker: ptr(uint64(i%3 + 1))})
			r.Failed(id, PrefillStage, Failure{Shared: shared})
			r.Free(id)
		}
		out := 0
		for _, h := range r.Health() {
			if h.State != breaker.Closed {
				out++
			}
		}
		if out != most {
			t.Errorf("shared %v: %d of 3 prefill workers are left out, want %d", shared, out, most)
		}
	}
}

// TestFailsElsewhere: another router's word that a worker fails makes it half open here, once in a while, and no more
// of them than may be left out; own word is given
// once each time that one is left out, or fails a probe.
func TestFailsElsewhere(t *testing.T) {
	r, _, now := open(t, func(c *Config) { c.Settings.Breaker.MaxWait = 10 * time.Second }, workers(6)...)
	told := map[uint64]int{}
	r.SetJournal(journal(func(c load.Change) {
		if c.Kind == load.Failing {
			told[c.Rank.Worker]++
		}
	}))
	says := func(owner, worker uint64) bool {
		return r.Apply(load.Change{Kind: load.Failing, Key: load.Key{Owner: owner}, Rank: shard.RankID{Worker: worker}})
	}
	careful := func() (n int) {
		for _, h := range r.Health() {
			if h.State == breaker.HalfOpen {
				n++
			}
		}
		return n
	}
	if says(1, 1) || says(2, 99) || careful() > 0 {
		t.Error("a word of its own, or of nobody, counts")
	}
	for owner := range uint64(3) { // all of it lies
		for w := range uint64(6) {
			says(2+owner, 1+w)
		}
	}
	if n := careful(); n != 4 {
		t.Fatalf("%d of 6 are half open, the share that may be left out is 4", n)
	}
	n := 0
	serve := func(worker uint64, ends func(id string)) {
		n++
		id := fmt.Sprint("request ", n)
		best(t, r, Prompt{Local: numbers(1, 1)}, Options{RequestID: id, Worker: &worker})
		ends(id)
		r.Free(id)
	}
	well := func(id string) { r.Succeeded(id, Whole); r.Succeeded(id, Whole) }
	for w := range uint64(6) {
		serve(1+w, well)
		serve(1+w, well)
	}
	if n := careful(); n > 0 || says(3, 1) {
		t.Fatalf("%d of 6 are half open after what shows that all are well, or it is said again at once", n)
	}
	now.add(r.settings.Breaker.MaxWait - 1)
	if says(3, 1) {
		t.Error("it counts again before the longest time that one is left out")
	}
	now.add(1)
	if !says(3, 1) || careful() != 1 || len(told) > 0 {
		t.Fatalf("%d are half open, told are %v", careful(), told)
	}
	serve(1, func(id string) { r.Failed(id, Whole, Failure{}) })
	if h := r.Health()[0]; h.State != breaker.Open || h.Told != 2 {
		t.Errorf("%+v after one failure", h)
	}
	for range 5 {
		serve(2, func(id string) { r.Failed(id, Whole, Failure{}) })
	}
	if len(told) != 2 || told[1] != 1 || told[2] != 1 {
		t.Errorf("told are %v", told)
	}
}

// TestFailsElsewhereAndHere: a word that is wrong keeps in no worker that fails here: what is said yields to what is seen, and
// both leave out no more than the share.
func TestFailsElsewhereAndHere(t *testing.T) {
	for _, all := range []int{2, 6} {
		r, _, _ := open(t, nil, workers(all)...)
		says := func(worker int) {
			r.Apply(load.Change{Kind: load.Failing, Key: load.Key{Owner: 2}, Rank: shard.RankID{Worker: uint64(worker)}})
		}
		in := func(state breaker.State) (n int) {
			for _, h := range r.Health() {
				if h.State == state {
					n++
				}
			}
			return n
		}
		n := 0
		fails := func(worker int) {
			id, at := fmt.Sprint("request ", n), uint64(worker)
			n++
			best(t, r, Prompt{Local: numbers(1, 1)}, Options{RequestID: id, Worker: &at})
			r.Failed(id, Whole, Failure{})
			r.Free(id)
		}
		most := int(DefaultSettings().LeftOutShare * float64(all))
		for w := range most {
			says(1 + w)
		}
		if got := in(breaker.HalfOpen); got != most {
			t.Fatalf("%d of %d are half open, not %d", got, all, most)
		}
		for range 3 {
			fails(all)
		}
		if h := r.Health()[all-1]; h.State != breaker.Open {
			t.Fatalf("of %d, one that fails is %v while others are said to", all, h.State)
		}
		took := map[uint64]bool{}
		for i := range 8 * all { // under way at once: more than are admitted as probes
			id := fmt.Sprint("chosen ", i)
			took[best(t, r, Prompt{Local: numbers(100+i, 2)}, Options{RequestID: id}).Worker] = true
			t.Cleanup(func() { r.Free(id) })
		}
		if got := in(breaker.Open) + in(breaker.HalfOpen); got != most || took[uint64(all)] {
			t.Errorf("%d of %d are out, not %d; chosen are %v", got, all, most, took)
		}
		for w := range all { // all of them fail
			for range 3 {
				fails(1 + w)
			}
		}
		if got := in(breaker.Closed); got != all-most {
			t.Errorf("%d of %d that all fail are closed, not %d", got, all, all-most)
		}
	}
}
