package lab

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// rank is a candidate with prompts queued, so much of this one cached, blocks in use and requests.
func rank(id uint64, queued, prompt, cached int, blocks float64, requests int) route.Candidate {
	return route.Candidate{
		RankID: shard.RankID{Worker: id}, CachedTokens: cached, NewTokens: prompt - cached,
		PrefillTokens: queued + prompt - cached, DecodeBlocks: blocks, Requests: requests,
	}
}

func weighing(prompt int, scale float64) *route.Weighing {
	s := route.DefaultSettings()
	s.PrefillLoadScale = scale
	return &route.Weighing{BlockSize: 16, PromptTokens: prompt, Settings: &s, Weight: 1, Rand: rand.New(rand.NewPCG(1, 1))}
}

// TestRivalsByHand: costs worked out on paper from the published formulas. The prompt has 640
// tokens, 40 blocks of 16.
func TestRivalsByHand(t *testing.T) {
	ranks := func() []route.Candidate {
		return []route.Candidate{
			rank(0, 0, 640, 0, 10, 1),     // idle, nothing cached
			rank(1, 1280, 640, 320, 5, 4), // half cached behind two such prompts
			rank(2, 320, 640, 160, 70, 2), // a quarter cached
		}
	}
	state := func(worker int) (int, float64) { return []int{0, 4, 1}[worker], []float64{0.1, 0.5, 0.9}[worker] }
	for name, c := range map[string]struct {
		policy route.Policy
		scale  float64
		want   [3]float64
		best   int
	}{
		// 40 + 10; 80 + 20 + 5; 20 + 30 + 70.
		"dynamo": {dynamoOptions{credit: 1}, 1, [3]float64{50, 105, 120}, 0},
		// 4 × the prompt blocks.
		"scale": {dynamoOptions{credit: 1}, 4, [3]float64{170, 405, 270}, 0},
		// Three credits: 120 - 60 and 60 - 30 remain.
		"credit": {dynamoOptions{credit: 3}, 1, [3]float64{50, 65, 100}, 0},
		// More credit than there is to compute counts as nothing to compute.
		"clamped": {dynamoOptions{credit: 10}, 1, [3]float64{50, 5, 70}, 1},
		// Backlogs of 2 and 0.5 prompts: the credit counts a third and two thirds.
		"decay": {dynamoOptions{credit: 1, decay: 1}, 1, [3]float64{50, 120 - 20.0/3 + 5, 60 - 20.0/3 + 70}, 0},
		// 8 blocks a live request.
		"requests": {dynamoOptions{credit: 1, requests: 8}, 1, [3]float64{58, 137, 136}, 0},
		// Balanced, and half of the prompt is more than 0.3: the others are behind.
		"smg": {smg{}, 1, [3]float64{1 + 5, 4, 2 + 5}, 1},
		// -(2 match + 1 - use + queue): -(0 + 0.9 + 1), -(1 + 0.5 + 0), -(0.5 + 0.1 + 0.75).
		"llm-d": {&llmd{state: state}, 1, [3]float64{-1.9, -1.5, -1.35}, 0},
		// 640 × 2, 320 × 5, 480 × 3.
		"llm-d-lmetric": {llmdLMetric{}, 1, [3]float64{1280, 1600, 1440}, 0},
	} {
		w, cands := weighing(640, c.scale), ranks()
		w.Now = time.Unix(1, 0)
		best, err := c.policy.Choose(w, cands)
		if err != nil || best != c.best {
			t.Errorf("%s: chose %d, %v, want %d", name, best, err, c.best)
		}
		for i := range cands {
			if math.Abs(cands[i].Cost-c.want[i]) > 1e-9 {
				t.Errorf("%s: worker %d costs %v, want %v", name, i, cands[i].Cost, c.want[i])
			}
		}
	}
}

// TestSmgBalance: a short match is not followed, nor any while requests are uneven by more
// than 64 and 1.5 times.
func TestSmgBalance(t *testing.T) {
	for name, c := range map[string]struct {
		cached, here, there int
		want                int // worker 1 has the match, and more requests
	}{
		"0.3 exactly":        {192, 0, 10, 0},
		"more than 0.3":      {208, 0, 10, 1},
		"64 more":            {640, 10, 74, 1},
		"65 more":            {640, 10, 75, 0},
		"65 more, 1.5 times": {640, 130, 195, 1},
	} {
		cands := []route.Candidate{rank(0, 0, 640, 0, 0, c.here), rank(1, 0, 640, c.cached, 0, c.there)}
		if got, _ := (smg{}).Choose(weighing(640, 1), cands); got != c.want {
			t.Errorf("%s: worker %d, want %d", name, got, c.want)
		}
	}
}

// TestLlmdSeesOldFigures: the engine's figures are read again after 50 ms, not before.
func TestLlmdSeesOldFigures(t *testing.T) {
	waiting := []int{0, 9}
	p := &llmd{state: func(worker int) (int, float64) { return waiting[worker], 0 }}
	at := time.Unix(1, 0)
	for _, c := range []struct {
		after time.Duration
		want  int
	}{{0, 0}, {49 * time.Millisecond, 0}, {50 * time.Millisecond, 1}} {
		w := weighing(640, 1)
		w.Now = at.Add(c.after)
		if got, _ := p.Choose(w, []route.Candidate{rank(0, 0, 640, 0, 0, 0), rank(1, 0, 640, 0, 0, 0)}); got != c.want {
			t.Errorf("after %v: worker %d, want %d", c.after, got, c.want)
		}
		waiting[0], waiting[1] = 9, 0
	}
}

// TestDynamoOptionsAtRest: with its options at their defaults the full cost gives the very
// run of the mode of package route.
func TestDynamoOptionsAtRest(t *testing.T) {
	for seed := range uint64(4) {
		c := small(rand.New(rand.NewPCG(seed, 21)))
		c.Engine.HostBlocks, c.Engine.DiskBlocks = 0, 0
		if err := c.SetPolicy("dynamo-scale-4"); err != nil {
			t.Fatal(err)
		}
		want := run(t, c, requests(t, 200, seed))
		c.policy = func(*sim) route.Policy { return dynamoOptions{credit: 1} }
		if got := run(t, c, requests(t, 200, seed)); !reflect.DeepEqual(got, want) {
			t.Errorf("seed %d: %+v, want %+v", seed, got.Summary(), want.Summary())
		}
	}
}

// TestQueueByHand: one engine computes 160 tokens a step, 1 ms each, for a prompt of 160
// tokens and then three of 144, 48 and 96 that come while it does. Times to first tokens are
// worked out on paper.
func TestQueueByHand(t *testing.T) {
	for policy, want := range map[string][4]int{
		// The engine's own steps: 144 + 16 tokens, then 32 + 96.
		"round-robin": {160, 319, 446, 445},
		// One prompt at a time, in three orders.
		"round-robin+fcfs-0": {160, 303, 350, 445},
		"round-robin+lcfs-0": {160, 447, 302, 253},
		"round-robin+wspt-0": {160, 447, 206, 301},
		// Up to 144 tokens do not keep a worker busy, so the second joins the first.
		"round-robin+fcfs-0.9": {160, 319, 446, 445},
		// The second goes at once; the others are held and the shorter one joins it.
		"round-robin+wspt-1": {160, 319, 446, 445},
	} {
		c := Default()
		c.Workers = 1
		c.Engine = mock.Config{BlockSize: 16, Blocks: 1000, MaxRunning: 64, MaxBatched: 160, MaxWaiting: 100}
		c.Timing = mock.Timing{PrefillToken: 1}
		if err := c.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
		s, err := newSim(c, &script{{Input: 160, IDs: ids(10, 1)}, {Arrival: ms1, Input: 144, IDs: ids(9, 2)}, {Arrival: 2 * ms1, Input: 48, IDs: ids(3, 3)}, {Arrival: 3 * ms1, Input: 96, IDs: ids(6, 4)}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		var got [4]int
		for more := true; more; {
			if more, err = s.step(); err != nil {
				t.Fatal(err)
			}
			for n := range s.requests {
				if q := &s.requests[n]; q.begun {
					got[q.serial] = int((q.first - q.arrival) / ms1)
				}
			}
		}
		if _, err := s.finish(); err != nil {
			t.Error(err)
		}
		if got != want {
			t.Errorf("%s: first tokens after %v ms, want %v", policy, got, want)
		}
	}
}

const ms1 = time.Millisecond

// ids names n blocks that no other k has.
func ids(n int, k uint64) (ids []uint64) {
	for b := range n {
		ids = append(ids, k<<16+uint64(b))
	}
	return ids
}

// script is requests as they are written down.
type script []trace.Request

func (s *script) Next(r *trace.Request) error {
	if len(*s) == 0 {
		return io.EOF
	}
	*r = (*s)[0]
	r.Output = max(r.Output, 1)
	*s = (*s)[1:]
	return nil
}

func (*script) IDTokens() int { return 16 }

// TestQueuesEnd: whatever the order, threshold, number of routers and what becomes of
// workers, every request that is held ends.
func TestQueuesEnd(t *testing.T) {
	orders := []string{"fcfs", "lcfs", "wspt", ""}
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 22))
		c := small(rng)
		c.Workers = 2 + rng.IntN(3)
		c.Faults = []Fault{{At: 2 * time.Second, Worker: 0, Kind: Joins}, {At: 4 * time.Second, Worker: 0, Kind: Dies}, {At: 5 * time.Second, Worker: 1, Kind: Dies}}
		if seed%3 == 0 {
			c.Faults, c.PrefillWorkers = nil, 2
		}
		name := []string{"auto", "dynamo-scale-32", "smg"}[rng.IntN(3)]
		if order := orders[seed%4]; order != "" {
			name += fmt.Sprintf("+%s-%g", order, []float64{0, 0.05, 0.25, 1}[rng.IntN(4)])
		}
		if err := c.SetPolicy(name); err != nil {
			t.Fatal(err)
		}
		if r := run(t, c, requests(t, 200, seed)); r.Requests+r.Refused != 200 || r.Refused > 0 && len(c.Faults) == 0 {
			t.Errorf("seed %d, %s: %d ended and %d were refused of 200", seed, name, r.Requests, r.Refused)
		}
	}
}

// TestPolicyNames: names are taken apart, and what cannot be is refused.
func TestPolicyNames(t *testing.T) {
	c := Default()
	if err := c.SetPolicy("dynamo-scale-32+wspt-0.25+temperature-0.5+credit-1.5"); err != nil {
		t.Fatal(err)
	}
	if c.Route.Mode != "dynamo" || c.Route.PrefillLoadScale != 32 || c.Queue != (Queue{Shortest, 0.25}) || c.Route.Temperature != 0.5 || c.policy == nil {
		t.Errorf("%+v", c)
	}
	for name, want := range map[string]Queue{"auto": {Order: Late}, "auto+unheld": {}, "auto+wspt-1": {Shortest, 1}, "kv": {}, "smg": {}, "bound-wspt": {}} {
		if err := c.SetPolicy(name); err != nil || c.Queue != want {
			t.Errorf("%s: %v, %+v", name, err, c.Queue)
		}
	}
	if err := c.SetPolicy("auto+peers"); err != nil || !c.Peers {
		t.Errorf("%v, peers %v", err, c.Peers)
	}
	for _, name := range []string{"dynamo-scale-x", "kv-weight-", "auto+wspt", "auto+wspt--1", "auto+wspt-NaN", "auto+credit-2", "smg+decay-1", "dynamo+size-2", "kv+targets", "smg+targets", "dynamo+peers"} {
		if err := c.SetPolicy(name); err == nil {
			t.Errorf("%q is taken", name)
		}
	}
}
