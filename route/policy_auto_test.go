package route

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// autoFleet is a router of mode auto whose first worker holds the prompt.
func autoFleet(tb testing.TB, n int, local []uint64) (*Router, *auto, *clock) {
	tb.Helper()
	r, space, c := open(tb, func(c *Config) { c.Settings.Mode = "auto" }, workers(n)...)
	if len(local) > 0 {
		b := &event.Batch{Space: space.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Engine: local, Local: local}}}
		if _, err := space.ApplyWait(context.Background(), b); err != nil {
			tb.Fatal(err)
		}
	}
	return r, r.policy.(*auto), c
}

func numbers(from, n int) []uint64 {
	l := make([]uint64, n)
	for i := range l {
		l[i] = uint64(from + i)
	}
	return l
}

// TestAutoWeighsTimes: a cached prompt draws its requests until the wait for it
// is longer than computing it elsewhere; what waits is computed as time passes.
func TestAutoWeighsTimes(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens: about 140 ms
	r, _, c := autoFleet(t, 2, local)
	p := Prompt{Local: local}
	if got := best(t, r, p, Options{}); got.Worker != 1 {
		t.Fatalf("an idle fleet: worker %d, want 1, which holds the prompt", got.Worker)
	}
	pin := ptr(uint64(1))
	for i := range 2 {
		best(t, r, Prompt{Local: numbers(10_000*(i+1), 2000)}, Options{RequestID: fmt.Sprint("other", i), Worker: pin})
	}
	if got := best(t, r, p, Options{}); got.Worker != 2 {
		t.Fatalf("with 16,000 tokens to wait for: worker %d, want 2", got.Worker)
	}
	c.add(150 * time.Millisecond)
	r.MarkPrefillComplete("other0")
	c.add(140 * time.Millisecond)
	if got := best(t, r, p, Options{}); got.Worker != 1 {
		t.Fatalf("with most of them computed: worker %d, want 1", got.Worker)
	}
	ranks := best(t, r, p, Options{Explain: true}).Ranks
	for _, e := range ranks {
		if !strings.Contains(e.Formula, "ms to") && !strings.Contains(e.Formula, " ms = ") {
			t.Errorf("the formula does not give times: %q", e.Formula)
		}
	}
	if n := following(r); n != 2 {
		t.Errorf("%d requests are followed, want 2", n)
	}
}

// TestAutoWaitsForBlocks: a cached prompt draws its requests until the blocks in use leave
// too few for them; then the wait for answers to end is longer than computing it elsewhere.
func TestAutoWaitsForBlocks(t *testing.T) {
	local := numbers(1, 250) // 1,000 tokens: about 34 ms
	for _, free := range []bool{true, false} {
		r, _, c := autoFleet(t, 2, local)
		for w := range uint64(2) {
			blocks := 2000
			if free || w == 1 {
				blocks = 20_000
			}
			if err := r.SetWorker(Worker{ID: w + 1, TotalBlocks: blocks}); err != nil {
				t.Fatal(err)
			}
			id := fmt.Sprint(w)
			best(t, r, Prompt{Local: numbers(100_000*int(w+1), 1900)}, Options{RequestID: id, Worker: ptr(w + 1)})
			r.MarkPrefillComplete(id)
		}
		c.add(time.Second)
		want := uint64(2)
		if free {
			want = 1
		}
		if got := best(t, r, Prompt{Local: local}, Options{}); got.Worker != want {
			t.Errorf("room for all blocks is %v: worker %d, want %d", free, got.Worker, want)
		}
		a := best(t, r, Prompt{Local: numbers(1, 300)}, Options{Worker: ptr(uint64(1)), Explain: true})
		if waits := strings.Contains(a.Ranks[0].Formula, "waiting"); !free && !waits {
			t.Errorf("the wait for blocks is not named: %q", a.Ranks[0].Formula)
		}
	}
}

// TestAutoSparesDecodes: of two ranks without the prompt, that whose requests
// attend to less gets it; idle ones tie and take turns by what they hold.
func TestAutoSparesDecodes(t *testing.T) {
	r, _, c := autoFleet(t, 2, nil)
	for w, n := range []int{3000, 30} {
		id := fmt.Sprint(w)
		best(t, r, Prompt{Local: numbers(100_000*(w+1), n)}, Options{RequestID: id, Worker: ptr(uint64(w + 1))})
		r.MarkPrefillComplete(id)
	}
	c.add(time.Second)
	if got := best(t, r, Prompt{Local: numbers(7, 20)}, Options{}); got.Worker != 2 {
		t.Errorf("worker %d is chosen, want 2, whose request is short", got.Worker)
	}
	r.Free("0")
	r.Free("1")
	count := map[uint64]int{}
	for range 200 {
		count[best(t, r, Prompt{Local: numbers(7, 20)}, Options{}).Worker]++
	}
	if count[1] < 60 || count[2] < 60 {
		t.Errorf("idle workers are chosen %v times of 200", count)
	}
}

// TestAutoWeightZero: it is load balancing, which looks up nothing.
func TestAutoWeightZero(t *testing.T) {
	local := numbers(1, 2000)
	r, _, _ := autoFleet(t, 2, local)
	if got := best(t, r, Prompt{Local: local}, Options{Weight: ptr(0.0)}); got.CachedTokens != 0 {
		t.Errorf("%d tokens count as cached", got.CachedTokens)
	}
}

// serve lets requests come to a rank that computes a token in perToken ms and
// gives one out in each ms, one at a time.
func serve(r *Router, c *clock, a Answer, id string, tokens int, perToken, each float64) {
	const step, output = 10.0, 50
	dur := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	c.add(dur(perToken * (step/0.02 + float64(a.NewTokens))))
	r.MarkPrefillComplete(id)
	c.add(dur(each * (output - 1)))
	r.Output(id, output)
	r.Free(id)
	_ = tokens
}

// following counts the requests of which trips are kept.
func following(r *Router) (n int) {
	for _, a := range r.attempts {
		if a.trip.steps > 0 {
			n++
		}
	}
	return n
}

// TestAutoLearns: times of a fleet, a rank that is three times slower, and one
// that lies; neither moves what is learned of the others.
func TestAutoLearns(t *testing.T) {
	for name, odd := range map[string]float64{"all alike": 1, "one is slow": 3, "one is a snail": 1000, "one answers at once": 1e-6} {
		t.Run(name, func(t *testing.T) {
			r, a, c := autoFleet(t, 5, nil)
			rng := rand.New(rand.NewPCG(1, 7))
			for i := range 1500 {
				n := 10 + rng.IntN(3000)
				worker := uint64(1 + i%5)
				id := fmt.Sprint(i)
				got := best(t, r, Prompt{Local: numbers(10_000*i, n)}, Options{RequestID: id, Worker: &worker})
				f := 0.8 + 0.4*rng.Float64() // times vary
				if worker == 3 {
					f *= odd
				}
				serve(r, c, got, id, n, 0.05*f, 20*f)
			}
			if b := a.speeds.prefill.b; b < 0.045 || b > 0.055 {
				t.Errorf("a prompt token takes %.4f ms, want 0.05", b)
			}
			if e := a.speeds.decode.at(1, 6000); e < 18 || e > 22 {
				t.Errorf("a token takes %.2f ms, want 20", e)
			}
			for w := range uint64(5) {
				slot, _ := r.table.Find(shard.RankID{Worker: w + 1})
				v := a.speeds.of(slot, rankKey{w + 1, 0})
				f := v.prefillToken / a.speeds.prefill.b
				want := 1.0
				if w == 2 {
					want = math.Min(math.Max(odd, 0.25), 16)
				}
				if f < want*0.8 || f > want*1.25 {
					t.Errorf("worker %d is %.2f times slower, want %.2f", w+1, f, want)
				}
			}
			if n := following(r); n != 0 {
				t.Errorf("%d ended requests are still followed", n)
			}
		})
	}
}

// onHost lets a worker hold the prompt on the tier below its device.
func onHost(t *testing.T, r *Router, worker uint64, local []uint64) {
	t.Helper()
	space := r.cfg.Index.(*shard.Space)
	b := &event.Batch{Space: space.Key(), Worker: worker, Events: []event.Event{{Kind: event.Stored, Tier: event.HostPinned, Engine: local, Local: local}}}
	if _, err := space.ApplyWait(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

// TestAutoFormulasAddUp: what a formula names is the cost that the choice went by, and says
// what of it is waiting.
func TestAutoFormulasAddUp(t *testing.T) {
	r, _, _ := autoFleet(t, 3, nil)
	waiting := 0
	for i := range 6 {
		got := best(t, r, Prompt{Local: numbers(1000*(i+1), 2000)}, Options{RequestID: fmt.Sprint(i), Explain: true})
		for _, e := range got.Ranks {
			var cost, first, displaced, decoding, wait float64
			said, inside, _ := strings.Cut(e.Formula, " (")
			if inside != "" {
				inside, rest, _ := strings.Cut(inside, ")")
				said += rest
				if _, err := fmt.Sscanf(inside, "%f waiting", &wait); err != nil {
					t.Fatal(e.Formula, err)
				}
				waiting++
			}
			if _, err := fmt.Sscanf(said, "%f ms = %f to the first token + %f displaced + %f decoding", &cost, &first, &displaced, &decoding); err != nil {
				t.Fatal(e.Formula, err)
			}
			if math.Abs(first+displaced+decoding-cost) > 0.2 || wait > first || math.Abs(cost-e.Cost) > 0.1 {
				t.Errorf("request %d, worker %d: %s", i, e.Worker, e.Formula)
			}
		}
	}
	if waiting == 0 {
		t.Error("no rank is waited for")
	}
}

// TestAutoCountsLoads: a prompt on the host is worth the way there, and less
// than one on the device; its booking counts the time to load it.
func TestAutoCountsLoads(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens
	r, _, _ := autoFleet(t, 3, nil)
	onHost(t, r, 2, local)
	got := best(t, r, Prompt{Local: local}, Options{RequestID: "a", Explain: true})
	if f := got.Ranks[1].Formula; !strings.Contains(f, "(35.0 loading)") {
		t.Errorf("the formula does not say what loading takes: %q", f)
	}
	if got.Worker != 2 || got.NewTokens < 1500 || got.NewTokens > 2500 || got.CachedTokens != 8000 {
		t.Fatalf("worker %d with %d tokens cached and %d to compute, want 2, which loads 8,000 in the time of 2,000", got.Worker, got.CachedTokens, got.NewTokens)
	}
	slot, _ := r.table.Find(got.RankID)
	if l := r.table.Load(slot); l.PrefillTokens != got.NewTokens {
		t.Errorf("%d tokens are booked, want %d", l.PrefillTokens, got.NewTokens)
	}
	r.Free("a")
	r, _, _ = autoFleet(t, 3, local)
	onHost(t, r, 2, local)
	if got := best(t, r, Prompt{Local: local}, Options{}); got.Worker != 1 || got.NewTokens != 0 {
		t.Errorf("worker %d with %d tokens to compute, want 1, which has all on its device", got.Worker, got.NewTokens)
	}
}

// inPool has all workers but the last read from a pool that has the prompts, which the first
// one put there and no longer has.
func inPool(t *testing.T, r *Router, prompts ...[]uint64) {
	t.Helper()
	space := r.cfg.Index.(*shard.Space)
	workers := r.Workers()
	for i := range workers[:len(workers)-1] {
		if err := space.SetPools(t.Context(), workers[i].ID, []uint32{0}, []event.Pool{{Name: "p"}}); err != nil {
			t.Fatal(err)
		}
		workers[i].Pooled = true
		if err := r.SetWorker(workers[i]); err != nil {
			t.Fatal(err)
		}
	}
	for _, local := range prompts {
		b := &event.Batch{Space: space.Key(), Worker: workers[0].ID, Events: []event.Event{
			{Kind: event.Stored, Engine: local, Local: local}, {Kind: event.Stored, Tier: event.External, Engine: local}, {Kind: event.Removed, Engine: local},
		}}
		if _, err := space.ApplyWait(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAutoPricesPools: what a pool has costs its loading on the workers that name it, and all
// of it on the others; so an idle one that names it is better than one that does not, and one
// that is busy for longer than computing takes is not.
func TestAutoPricesPools(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens: about 140 ms
	r, _, _ := autoFleet(t, 3, nil)
	inPool(t, r, local)
	a := best(t, r, Prompt{Local: local}, Options{Explain: true})
	for _, e := range a.Ranks {
		pooled := e.Worker < 3
		if want := map[bool]int{true: 8000, false: 0}[pooled]; e.CachedTokens != want || strings.Contains(e.Formula, "loading") != pooled {
			t.Errorf("worker %d: %d tokens cached, want %d: %s", e.Worker, e.CachedTokens, want, e.Formula)
		}
	}
	if a.Worker == 3 || a.NewTokens < 3500 || a.NewTokens > 4500 {
		t.Errorf("worker %d with %d tokens to compute: want 1 or 2, and half of 8,000", a.Worker, a.NewTokens)
	}
	for w := range uint64(2) {
		best(t, r, Prompt{Local: numbers(100_000*int(w+1), 3000)}, Options{RequestID: fmt.Sprint(w), Worker: ptr(w + 1)})
	}
	if got := best(t, r, Prompt{Local: local}, Options{}); got.Worker != 3 {
		t.Errorf("with 12,000 tokens to wait for: worker %d, want 3", got.Worker)
	}
	r.mu.Lock()
	r.settings.PoolCredit = 0
	r.mu.Unlock()
	if got := best(t, r, Prompt{Local: local}, Options{Worker: ptr(uint64(1))}); got.CachedTokens != 0 || got.NewTokens != 8000 {
		t.Errorf("without credit %d tokens are cached, %d to compute", got.CachedTokens, got.NewTokens)
	}
}

// TestAutoLearnsWhatPoolsTake: as for other tiers, whatever the credit says.
func TestAutoLearnsWhatPoolsTake(t *testing.T) {
	racetest.Without(t, "one goroutine makes all choices")
	for _, part := range []float64{0.02, 1.5} {
		r, a, c := autoFleet(t, 3, nil)
		rng := rand.New(rand.NewPCG(1, 9))
		inPool(t, r)
		for i := range 400 {
			n, worker := 10+rng.IntN(3000), uint64(1+i%2)
			local := numbers(10_000*(i+1), n)
			if i%3 == 0 {
				inPool(t, r, local)
			}
			got := best(t, r, Prompt{Local: local}, Options{RequestID: fmt.Sprint(i), Worker: &worker})
			got.NewTokens = 4*n - got.CachedTokens + int(part*float64(got.CachedTokens))
			serve(r, c, got, fmt.Sprint(i), n, 0.05*(0.8+0.4*rng.Float64()), 20)
		}
		if v := a.speeds.loads[event.External].value(0.5); v < part*0.8-0.05 || v > part*1.2+0.05 {
			t.Errorf("loading takes %.3f of computing, want %.3f", v, part)
		}
	}
}

// TestAutoDoesNotQueueBehindBlocks: a rank's one request leaves too few blocks for the next, and what a third one has cached
// there is not worth that. For how long the one ahead has waited says nothing of how long the wait is still.
func TestAutoDoesNotQueueBehindBlocks(t *testing.T) {
	local := numbers(1, 250) // 1,000 tokens
	for _, full := range []bool{true, false} {
		r, _, c := autoFleet(t, 2, local)
		blocks := 20_000
		if full {
			blocks = 2000
		}
		if err := r.SetWorker(Worker{ID: 1, TotalBlocks: blocks}); err != nil {
			t.Fatal(err)
		}
		best(t, r, Prompt{Local: numbers(100_000, 1500)}, Options{RequestID: "long", Worker: ptr(uint64(1))})
		r.MarkPrefillComplete("long")
		best(t, r, Prompt{Local: numbers(200_000, 400)}, Options{RequestID: "waits", Worker: ptr(uint64(1))})
		cost := func() float64 {
			return best(t, r, Prompt{Local: local}, Options{Worker: ptr(uint64(1)), Explain: true}).Cost
		}
		atFirst := cost()
		const waited = 50_000 // ms
		c.add(waited * time.Millisecond)
		if later := cost(); later > atFirst {
			t.Errorf("full is %v: %.0f ms at first, %.0f when the one ahead has waited for %d", full, atFirst, later, waited)
		}
		want := uint64(1)
		if full {
			want = 2
		}
		if got := best(t, r, Prompt{Local: local}, Options{}); got.Worker != want {
			t.Errorf("full is %v: worker %d, want %d", full, got.Worker, want)
		}
	}
	// A request as large as the hundred there needs nearly all of them to end.
	a, e, settings := newAuto(), estimate{}, DefaultSettings()
	a.estimate(&e, &Weighing{BlockSize: 16, Settings: &settings}, &Candidate{Requests: 100, TotalBlocks: 1100, DecodeBlocks: 2000, NewBlocks: 1000}, 0)
	if answer := a.speeds.output * a.speeds.of(0, rankKey{}).decodeStep; math.Abs(e.blocks-untilEnd(96, 100)*answer) > 1 {
		t.Errorf("it waits for %.0f ms, want %.0f", e.blocks, untilEnd(96, 100)*answer)
	}
	for _, x := range []struct {
		of, n int
		want  float64
	}{
		{0, 3, 0}, {1, 1, 1}, {1, 4, 0.25}, {2, 2, 1.5}, {9, 2, 1.5}, {9, 0, 0},
		{1, 257, 1.0 / 257}, {2, 257, 1.0/257 + 1.0/256}, {1000, 1000, 7.485470860550345}, {1 << 28, 1 << 28, 19.985336722},
	} {
		if got := untilEnd(x.of, x.n); math.Abs(got-x.want) > 2e-6 {
			t.Errorf("%d of %d answers end after %v, want %v", x.of, x.n, got, x.want)
		}
	}
}

// TestAutoLearnsLoads: how long a block takes to load is learned from first
// tokens, whatever the credit says.
func TestAutoLearnsLoads(t *testing.T) {
	for _, part := range []float64{0.02, 0.5, 1.5} {
		r, a, c := autoFleet(t, 2, nil)
		rng := rand.New(rand.NewPCG(1, 9))
		for i := range 600 {
			n, worker := 10+rng.IntN(3000), uint64(1+i%2)
			local := numbers(10_000*(i+1), n)
			if i%3 == 0 {
				onHost(t, r, worker, local)
			}
			got := best(t, r, Prompt{Local: local}, Options{RequestID: fmt.Sprint(i), Worker: &worker})
			// What loading takes, as tokens that take as long.
			got.NewTokens = 4*n - got.CachedTokens + int(part*float64(got.CachedTokens))
			serve(r, c, got, fmt.Sprint(i), n, 0.05*(0.8+0.4*rng.Float64()), 20)
		}
		if v := a.speeds.loads[event.HostPinned].value(0.75); v < part*0.8-0.03 || v > part*1.2+0.03 {
			t.Errorf("loading takes %.3f of computing, want %.3f", v, part)
		}
		if b := a.speeds.prefill.b; b < 0.045 || b > 0.055 {
			t.Errorf("a prompt token takes %.4f ms, want 0.05", b)
		}
	}
}

// TestAutoWholeAnswers: an answer that comes all at once does not say when its
// first token came, and teaches nothing where nobody said that it would.
func TestAutoWholeAnswers(t *testing.T) {
	r, a, c := autoFleet(t, 2, nil)
	before := a.speeds.prefill
	for i := range 50 {
		id := fmt.Sprint(i)
		best(t, r, Prompt{Local: numbers(1000*i, 100)}, Options{RequestID: id})
		c.add(5 * time.Second)
		r.MarkPrefillComplete(id)
		r.Output(id, 300)
		r.Free(id)
	}
	if a.speeds.prefill != before {
		t.Errorf("%+v became %+v", before, a.speeds.prefill)
	}
}

// TestAutoForgets: however a booking ends, nothing is kept of it.
func TestAutoForgets(t *testing.T) {
	ws := append(workers(3), Worker{ID: 9, Role: Prefill})
	r, _, c := open(t, func(c *Config) { c.Settings.Mode = "auto" }, ws...)
	pair := func(id string) {
		if _, err := r.BestPair(context.Background(), Prompt{Local: numbers(1, 30)}, Options{RequestID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for name, end := range map[string]func(id string){
		"free":         func(id string) { r.Free(id) },
		"prefill":      func(id string) { r.MarkPrefillComplete(id); r.Output(id, 3); r.Free(id) },
		"stages":       func(id string) { r.FreeStage(id, PrefillStage); r.FreeStage(id, DecodeStage) },
		"expire":       func(string) { c.add(time.Hour); r.Expire() },
		"workers gone": func(string) { r.RemoveWorker(1); r.RemoveWorker(2); r.RemoveWorker(3); r.RemoveWorker(9) },
	} {
		for _, w := range ws {
			if err := r.SetWorker(w); err != nil {
				t.Fatal(err)
			}
		}
		pair(name)
		if n := following(r); n != 2 {
			t.Errorf("%s: %d bookings are followed, want 2", name, n)
		}
		end(name)
		if n := following(r); n != 0 || r.table.Len() != 0 {
			t.Errorf("%s: %d bookings are followed, %d live", name, n, r.table.Len())
		}
	}
}

// TestSpeedsStayUsable: whatever is observed, what is learned are numbers above
// 0 that a time can be.
func TestSpeedsStayUsable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 8))
	odd := []float64{0, -1, 1e-300, 1e300, math.Inf(1), math.Inf(-1), math.NaN(), 1, 50, 1e6}
	for range 50 {
		s := newSpeeds()
		for range 400 {
			t := &trip{
				slot: uint32(rng.IntN(4)), steps: 1 + float64(rng.IntN(3)), tokens: float64(rng.IntN(1e5)), stalls: 1,
				context: float64(rng.IntN(1e6)), begun: float64(rng.IntN(1e6)), ended: float64(rng.IntN(1e6)),
			}
			s.learnPrefill(t, odd[rng.IntN(len(odd))])
			s.learnDecode(t, odd[rng.IntN(len(odd))], 1+rng.IntN(1000))
		}
		for slot := range uint32(5) {
			v := s.of(slot, rankKey{})
			for _, x := range []float64{v.prefillStep, v.prefillToken, v.decodeStep, v.decodeToken, s.output} {
				if !(x > 0 && x < 1e9) {
					t.Fatalf("slot %d: %+v, %v tokens", slot, v, s.output)
				}
			}
		}
	}
}

// TestObserverOfOwnPolicy: a policy of the caller's own is told too.
func TestObserverOfOwnPolicy(t *testing.T) {
	w := &watcher{Policy: kv{}}
	r, _, _ := open(t, func(c *Config) { c.Policy = w }, workers(2)...)
	best(t, r, Prompt{Local: numbers(1, 5)}, Options{RequestID: "a"})
	best(t, r, Prompt{Local: numbers(1, 5)}, Options{})
	r.MarkPrefillComplete("a")
	r.Output("a", 7)
	r.Free("a")
	r.Free("a")
	if got, want := strings.Join(w.seen, " "), "booked first(20) ended(7,0)"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

type watcher struct {
	Policy
	seen []string
}

func (w *watcher) Booked(*Weighing, load.Key, *Candidate) { w.seen = append(w.seen, "booked") }
func (w *watcher) FirstToken(_ load.Key, _ time.Time, l load.Load) {
	w.seen = append(w.seen, fmt.Sprintf("first(%d)", l.PromptTokens))
}
func (w *watcher) Ended(_ load.Key, _ time.Time, l load.Load, tokens int) {
	w.seen = append(w.seen, fmt.Sprintf("ended(%d,%d)", tokens, l.PromptTokens))
}

// TestPatientRequestsWait: who can wait is told to where the prompts ahead take longer than a
// step of its own, and which part of its prompt is new; not once the first token ahead is out.
func TestPatientRequestsWait(t *testing.T) {
	r, _, c := autoFleet(t, 1, nil)
	best(t, r, Prompt{Local: numbers(100_000, 2000)}, Options{RequestID: "ahead"}) // 8,000 tokens: about 150 ms
	p := Prompt{Local: numbers(1, 100)}
	a, err := r.BestWorker(context.Background(), p, Options{RequestID: "late", Patient: true})
	if !errors.Is(err, ErrLater) || a.NewTokens != 400 || r.Holds("late") || r.Stats().Later != 1 {
		t.Fatalf("behind a long prompt: %v, %d new tokens, %d put off", err, a.NewTokens, r.Stats().Later)
	}
	for _, o := range []Options{{RequestID: "pinned", Patient: true, Worker: ptr(uint64(1))}, {RequestID: "not patient"}} {
		if _, err := r.BestWorker(context.Background(), p, o); err != nil {
			t.Errorf("%s: %v", o.RequestID, err)
		}
		r.Free(o.RequestID)
	}
	c.add(150 * time.Millisecond)
	best(t, r, p, Options{RequestID: "nearly done", Patient: true})
	r.Free("nearly done")
	r.MarkPrefillComplete("ahead")
	best(t, r, p, Options{RequestID: "late", Patient: true})
}

// TestFastEnginesHoldNobody: where the prompts ahead take no longer than the way between router and
// worker, nobody waits at the router for them.
func TestFastEnginesHoldNobody(t *testing.T) {
	for times, want := range map[float64]error{10: ErrLater, 100: nil} {
		r, a, _ := autoFleet(t, 1, nil)
		for _, l := range []*line{&a.speeds.prefill, &a.speeds.decode} {
			l.a, l.b = l.a/times, l.b/times
		}
		best(t, r, Prompt{Local: numbers(100_000, 2000)}, Options{RequestID: "ahead"}) // 150 ms by the first guess
		if _, err := r.BestWorker(context.Background(), Prompt{Local: numbers(1, 100)}, Options{RequestID: "late", Patient: true}); !errors.Is(err, want) {
			t.Errorf("%v times as fast: %v, want %v", times, err, want)
		}
	}
}

// TestWaitsForBlocksAreNoSlowness: a first token that came late because a rank's cache was full
// of live requests tells nothing of how fast the rank computes prompts.
func TestWaitsForBlocksAreNoSlowness(t *testing.T) {
	r, _, c := open(t, func(c *Config) { c.Settings.Mode = "auto" }, Worker{ID: 1, TotalBlocks: 100})
	a := r.policy.(*auto)
	best(t, r, Prompt{Local: numbers(1000, 150)}, Options{RequestID: "there"})
	r.MarkPrefillComplete("there")
	before := a.speeds.prefill
	best(t, r, Prompt{Local: numbers(1, 10)}, Options{RequestID: "waits"})
	c.add(time.Minute)
	r.MarkPrefillComplete("waits")
	c.add(time.Second)
	r.Output("waits", 20)
	r.Free("waits")
	if f := a.speeds.ranks[0].prefill; f.samples != 0 || a.speeds.prefill != before {
		t.Errorf("learnt from a wait for blocks: %+v, the line %+v", f, a.speeds.prefill)
	}
	if f := a.speeds.ranks[0].decode; f.samples == 0 {
		t.Error("nothing was learnt of its decoding")
	}
}

// TestFewWaitBesideFreeRanks: what is cached on a rank with a long prompt ahead is waited for also
// while another has none, but not where many wait already.
func TestFewWaitBesideFreeRanks(t *testing.T) {
	p := Prompt{Local: numbers(1, 4000)}
	r, _, _ := autoFleet(t, 2, p.Local)
	best(t, r, Prompt{Local: numbers(100_000, 2000)}, Options{RequestID: "ahead", Worker: ptr(uint64(1))})
	for waiting, want := range map[int]error{0: ErrLater, 1: nil} {
		a, err := r.BestWorker(context.Background(), p, Options{RequestID: "late", Patient: true, Waiting: waiting})
		if !errors.Is(err, want) || a.Worker != 1 {
			t.Errorf("beside %d: %v, worker %d", waiting, err, a.Worker)
		}
		r.Free("late")
	}
	best(t, r, Prompt{Local: numbers(200_000, 2000)}, Options{RequestID: "none is free", Worker: ptr(uint64(2))})
	if _, err := r.BestWorker(context.Background(), p, Options{RequestID: "late", Patient: true, Waiting: 1}); !errors.Is(err, ErrLater) {
		t.Errorf("all have a prompt: %v", err)
	}
	r, _, _ = open(t, nil, workers(1)...) // kv
	best(t, r, Prompt{Local: numbers(100_000, 2000)}, Options{RequestID: "ahead"})
	best(t, r, p, Options{RequestID: "not weighed in time", Patient: true})
}

// TestDecodingIsCapped: what it costs to share a batch, and to be computed between others' tokens, never counts more than two prompts
// of that length, however many requests there are and however much they attend to, but where the ends of requests are the objective.
func TestDecodingIsCapped(t *testing.T) {
	for objective, capped := range map[string]bool{"ttft": true, "balanced": true, "e2e": false} {
		a := newAuto()
		w := &Weighing{BlockSize: 4, PromptTokens: 4000, Settings: &Settings{Objective: objective}}
		most := 2 * a.speeds.prefill.b * 4000
		last := 0.0
		for _, context := range []int{1000, 10_000, 100_000, 1_000_000, 100_000_000} {
			var e estimate
			a.estimate(&e, w, &Candidate{Requests: 1, Prefilling: 1, Context: context}, 0)
			if !(e.decoding > last) {
				t.Errorf("%s: %v ms with %d tokens attended to, %v with fewer", objective, e.decoding, context, last)
			}
			last = e.decoding
		}
		for _, decodes := range []int{1, 10, 100, 10_000} {
			var less, more estimate
			a.estimate(&less, w, &Candidate{Requests: decodes, NewTokens: 1000}, 0)
			a.estimate(&more, w, &Candidate{Requests: decodes, NewTokens: 4000}, 0)
			if !(more.decoding > less.decoding) || decodes == 10_000 && (more.decoding < most) != capped {
				t.Errorf("%s: %v ms for 4000 tokens between those of %d, %v for 1000, two such prompts take %v", objective, more.decoding, decodes, less.decoding, most)
			}
		}
		var few, usual estimate
		c := &Candidate{Requests: 1, Prefilling: 1, Context: 10_000}
		a.estimate(&usual, w, c, 0)
		w.expected = 1
		if a.estimate(&few, w, c, 0); few.decoding > usual.decoding/10 {
			t.Errorf("%s: one token is expected: %v ms, for a usual answer %v", objective, few.decoding, usual.decoding)
		}
		if (last < most) != capped {
			t.Errorf("%s: %v ms, two such prompts take %v", objective, last, most)
		}
	}
}

// TestClaimedOutputs: what a request says of its answer counts as far as that is plausible, and a limit no more than a usual answer,
// but how long the answer may take goes by either.
func TestClaimedOutputs(t *testing.T) {
	a := newAuto()
	usual := int(a.speeds.output)
	weigh := func(o Options) (decoding, answer float64) {
		w := &Weighing{BlockSize: 4, PromptTokens: 4000, Settings: &Settings{}}
		w.override(&o)
		c := &Candidate{Requests: 1, Prefilling: 1, Context: 10_000}
		var e estimate
		a.estimate(&e, w, c, 0)
		_, answer = a.alone(w, c)
		return e.decoding, answer
	}
	for _, c := range []struct {
		says, as Options
		answers  float64 // usual ones
	}{
		{Options{ExpectedOutput: math.MaxInt32}, Options{ExpectedOutput: plausibleOutputs * usual}, math.MaxInt32 / float64(usual)},
		{Options{MostOutput: math.MaxInt32}, Options{}, math.MaxInt32 / float64(usual)},
		{Options{MostOutput: 1}, Options{ExpectedOutput: 1}, 1 / float64(usual)},
		{Options{ExpectedOutput: 3 * usual, MostOutput: 4 * usual}, Options{ExpectedOutput: 3 * usual}, 3},
		{Options{ExpectedOutput: -1, MostOutput: -1}, Options{}, 1},
	} {
		got, answer := weigh(c.says)
		want, _ := weigh(c.as)
		_, one := weigh(Options{})
		if got != want || math.Abs(answer/(c.answers*one)-1) > 1e-9 {
			t.Errorf("%d and at most %d tokens: decoding counts %v ms, want %v; the answer may take %v ms, want %v", c.says.ExpectedOutput, c.says.MostOutput, got, want, answer, c.answers*one)
		}
	}
}

// TestLongPromptsKeepApart: a prompt that is twice as long pays nearly twice for what is attended to on a rank, and it matters less
// whose tokens these are, of a few with long prompts or of many with short ones: those with long prompts end last. But where all ms
// count alike. Prompts without tokens cost nothing, and not a number.
func TestLongPromptsKeepApart(t *testing.T) {
	decoding := func(objective string, prompt int, c Candidate) float64 {
		a := newAuto()
		var e estimate
		a.estimate(&e, &Weighing{BlockSize: 4, PromptTokens: prompt, Settings: &Settings{Objective: objective}}, &c, 0)
		return e.decoding
	}
	few, many := Candidate{Requests: 2, Context: 20_000}, Candidate{Requests: 20, Context: 20_000}
	for objective, tail := range map[string]bool{"ttft": true, "balanced": true, "e2e": false} {
		if ratio := decoding(objective, 8000, many) / decoding(objective, 8000, few); !(ratio > 1) || (ratio < 3.5) != tail {
			t.Errorf("%s: twenty requests cost %v times as much as two with as many tokens", objective, ratio)
		}
		if ratio := decoding(objective, 16_000, few) / decoding(objective, 8000, few); !(ratio > 1) || (ratio > 1.6) != tail {
			t.Errorf("%s: a prompt of twice the length costs %v times as much", objective, ratio)
		}
		if got := decoding(objective, 0, Candidate{}); got != 0 {
			t.Errorf("%s: nothing beside nothing costs %v ms", objective, got)
		}
	}
}

// TestObjective: for first tokens a rank with few prompt tokens ahead and many decodes is better,
// for the ends of requests the other way about.
func TestObjective(t *testing.T) {
	for objective, want := range map[string]uint64{"ttft": 1, "balanced": 1, "": 1, "e2e": 2} {
		r, _, c := open(t, func(c *Config) { c.Settings.Mode, c.Settings.Objective = "auto", objective }, workers(2)...)
		for i := range 20 {
			id := fmt.Sprint("decodes", i)
			best(t, r, Prompt{Local: numbers(100_000*(i+1), 250)}, Options{RequestID: id, Worker: ptr(uint64(1))})
			r.MarkPrefillComplete(id)
		}
		c.add(time.Second)
		best(t, r, Prompt{Local: numbers(5_000_000, 1000)}, Options{RequestID: "prompt", Worker: ptr(uint64(2))})
		if got := best(t, r, Prompt{Local: numbers(6_000_000, 250)}, Options{}); got.Worker != want {
			t.Errorf("objective %q: worker %d, want %d", objective, got.Worker, want)
		}
	}
	s := DefaultSettings()
	if s.Objective = "cheap"; !errors.Is(s.Check(), ErrSettings) {
		t.Error("an objective that there is not is taken")
	}
}
