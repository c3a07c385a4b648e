package lab

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/bench/workload"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// small is a fleet of engines with caches so small that prefixes are evicted
// and requests preempted, drawn from the seed.
func small(rng *rand.Rand) Config {
	c := Default()
	modes := slices.DeleteFunc(route.Modes(), func(m string) bool { return m == "direct" })
	c.Workers = 1 + rng.IntN(4)
	c.Engine = mock.Config{BlockSize: 4, Blocks: 96 + rng.IntN(200), MaxRunning: 2 + rng.IntN(8), MaxBatched: 32 + rng.IntN(100), MaxWaiting: 1 << 20}
	c.Route.Mode = modes[rng.IntN(len(modes))]
	c.Routers = 1 + rng.IntN(3)
	c.SyncDelay = time.Duration(rng.IntN(50)) * time.Millisecond
	c.Seed = rng.Uint64()
	if rng.IntN(2) == 0 {
		c.Engine.HostBlocks = 1 + rng.IntN(300)
	}
	if rng.IntN(3) == 0 {
		c.Engine.DiskBlocks = 1 + rng.IntN(300)
	}
	return c
}

// requests generates n small ones.
func requests(t *testing.T, n int, seed uint64) trace.Source {
	t.Helper()
	w := workload.Default()
	w.Seed, w.Requests, w.Rate, w.IDTokens, w.MaxTokens = seed, n, 30, 4, 256
	w.SystemPrompts, w.SystemTokens = 3, 24
	w.Conversation.Turn, w.Conversation.Answer = 20, 16
	w.Agent.Context, w.Agent.Turn, w.Agent.Answer = 80, 12, 6
	w.OneOff.Context, w.OneOff.Turn, w.OneOff.Answer = 30, 10, 10
	g, err := workload.New(w)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func run(t *testing.T, c Config, src trace.Source) *Result {
	t.Helper()
	r, err := Run(context.Background(), c, src)
	if err != nil {
		t.Fatalf("%+v: %v", c, err)
	}
	return r
}

// TestConservation: every request ends; what prompts and outputs need is what
// was reused and computed, less what preemptions threw away.
func TestConservation(t *testing.T) {
	preempted := false
	var loaded [event.NumTiers]int
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		c := small(rng)
		c.EventDelay, c.EventLoss = time.Duration(rng.IntN(200))*time.Millisecond, float64(rng.IntN(2))*0.1
		if rng.IntN(3) == 0 {
			c.PrefillWorkers = 1 + rng.IntN(2)
		}
		const n = 300
		needed := 0
		src := tap{requests(t, n, seed), func(r *trace.Request) { needed += r.Input + max(r.Output-1, 0) }}
		r := run(t, c, src)
		if s := r.Summary(); math.Abs(s.Spent[Waiting]+s.Spent[Computing]+s.Spent[Decoding]+s.Spent[Preempted]-s.E2E.Mean) > 1e-6*s.E2E.Mean {
			t.Errorf("seed %d: %v is spent of %v", seed, s.Spent, s.E2E.Mean)
		} else if preempted := s.Spent[Preempted] > 0; preempted && r.Lost == 0 || s.Spent[Computing] == 0 {
			t.Errorf("seed %d: %v, with %d tokens lost", seed, s.Spent, r.Lost)
		}
		if r.Requests != n || r.Refused != 0 {
			t.Fatalf("seed %d: %d of %d requests ended, %d refused", seed, r.Requests, n, r.Refused)
		}
		if got := r.Reused + r.ReusedAgain + r.Computed + r.Decoded - r.Lost; got != needed && c.PrefillWorkers == 0 {
			t.Errorf("seed %d: reused %d + %d, computed %d + %d, lost %d: %d tokens, the requests have %d",
				seed, r.Reused, r.ReusedAgain, r.Computed, r.Decoded, r.Lost, got, needed)
		}
		preempted = preempted || r.Lost > 0
		for tier, n := range r.Loaded {
			loaded[tier] += n
		}
		if s := r.Summary(); s.TTFT.Mean <= 0 || s.TTFT.Mean > s.E2E.Mean || s.TTFT.P50 > s.TTFT.P99 || s.LoadMaxOverMean < 1 {
			t.Errorf("seed %d: times that cannot be: %+v", seed, s)
		}
	}
	if !preempted {
		t.Error("no request was preempted: the caches are too large for this test")
	}
	if loaded[event.HostPinned] == 0 || loaded[event.Disk] == 0 {
		t.Errorf("blocks were loaded from tiers %v: want some from host and disk", loaded)
	}
}

// tap shows each request of a source.
type tap struct {
	trace.Source
	see func(*trace.Request)
}

func (s tap) Next(r *trace.Request) error {
	err := s.Source.Next(r)
	if err == nil {
		s.see(r)
	}
	return err
}

// TestIndexIsWhatEnginesHold: with no delay the index has at every moment the
// blocks that the engines have on each tier, and no tier is above its size.
func TestIndexIsWhatEnginesHold(t *testing.T) {
	for seed := range uint64(11) {
		rng := rand.New(rand.NewPCG(seed, 2))
		c := small(rng)
		if seed >= 4 {
			c.Engine.HostBlocks, c.Engine.DiskBlocks = 1+rng.IntN(200), rng.IntN(200)
		}
		c.Faults = []Fault{{At: 2 * time.Second, Worker: 0, Kind: Joins}, {At: 4 * time.Second, Worker: 0, Kind: Dies}}
		c.Workers = max(c.Workers, 2)
		if seed%2 == 1 && seed < 8 {
			c.Engine.Groups = []mock.Group{{Kind: "sliding_window", Span: 10, Blocks: 40}, {Kind: "mamba", BlockSize: 8, Blocks: 20}}
		}
		if seed >= 8 { // who dies says no more what it has just put into the pool
			c.PoolBlocks, c.Faults = 50+rng.IntN(500), c.Faults[:1]
		}
		s, err := newSim(c, requests(t, 200, seed))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		for n := 0; ; n++ {
			more, err := s.step()
			if err != nil {
				t.Fatal(err)
			}
			if !more {
				break
			}
			if n%37 == 0 {
				compare(t, s)
			}
		}
		compare(t, s)
	}
}

func compare(t *testing.T, s *sim) {
	t.Helper()
	if err := s.feed.sync(s.now); err != nil {
		t.Fatal(err)
	}
	size := [event.NumTiers]int{s.cfg.Engine.Blocks, s.cfg.Engine.HostBlocks, s.cfg.Engine.DiskBlocks}
	for i, w := range s.workers {
		dump, err := s.feed.space.DumpRank(context.Background(), shard.RankID{Worker: uint64(i)})
		if err != nil {
			t.Fatal(err)
		}
		if s.cfg.PoolBlocks > 0 && w.present { // what all have is the pool's
			comparePool(t, s, w.engine.AppendHeldOn(nil, event.External))
		}
		for tier := range event.Tier(event.NumTiers) {
			var got, want []uint64
			if w.present && tier != event.External {
				want = w.engine.AppendHeldOn(nil, tier)
			}
			if len(want) > size[tier] {
				t.Fatalf("worker %d holds %d blocks of %d on tier %v", i, len(want), size[tier], tier)
			}
			for _, d := range dump {
				for k, hash := range d.Event.Engine {
					if d.Event.Kind == event.Stored && d.Event.Group == 0 && d.Event.Tier == tier && d.Copies[k] > 0 {
						got = append(got, hash)
					}
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("at %v the index has %d blocks of worker %d on tier %v, which holds %d", s.now, len(got), i, tier, len(want))
			}
		}
		for _, g := range s.cfg.Engine.CacheGroups()[min(1, len(s.cfg.Engine.Groups)):] {
			var got, want []uint64
			if w.present {
				want = w.engine.AppendHeldBy(nil, g.Number)
			}
			for _, d := range dump {
				if d.Event.Group == g.Number {
					got = append(got, d.Event.Engine...)
				}
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("at %v the index has %d blocks of worker %d in cache group %d, which holds %d", s.now, len(got), i, g.Number, len(want))
			}
		}
	}
}

func comparePool(t *testing.T, s *sim, want []uint64) {
	t.Helper()
	dump, err := s.feed.space.DumpRank(t.Context(), shard.RankID{Worker: event.WorkerID("pool"), DPRank: event.PoolRank})
	if err != nil {
		t.Fatal(err)
	}
	var got []uint64
	for _, d := range dump {
		for k, hash := range d.Event.Engine {
			if d.Copies[k] > 0 {
				got = append(got, hash)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) > s.cfg.PoolBlocks {
		t.Fatalf("at %v the index has %d blocks of the pool, which holds %d", s.now, len(got), len(want))
	}
}

// TestSameSeedSameResult: two runs give the same figures, down to the samples,
// and another seed of the requests others.
func TestSameSeedSameResult(t *testing.T) {
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 3))
		c := small(rng)
		c.EventDelay, c.EventLoss, c.Routers = 30*time.Millisecond, 0.05, 2
		c.Faults = []Fault{{At: 3 * time.Second, Worker: 0, Kind: Dies}, {At: 5 * time.Second, Worker: 0, Kind: Joins}}
		c.Workers = max(c.Workers, 2)
		c.Faults = c.Faults[:1]
		a, b := run(t, c, requests(t, 200, seed)), run(t, c, requests(t, 200, seed))
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("seed %d: %+v, then %+v", seed, a.Summary(), b.Summary())
		}
		if o := run(t, c, requests(t, 200, seed+100)); reflect.DeepEqual(a.Summary(), o.Summary()) {
			t.Errorf("seed %d: other requests give the same figures", seed)
		}
		if a.Requests != 200 {
			t.Errorf("seed %d: %d requests ended", seed, a.Requests)
		}
	}
}

// TestLostEventsAreReadAnew: where events are lost for ever, engines' reports contradict the index, and
// what they hold is read anew, after which they agree for longer.
func TestLostEventsAreReadAnew(t *testing.T) {
	wrong, dumps := map[bool]uint64{}, map[bool]uint64{}
	for seed := range uint64(4) {
		for _, doubt := range []bool{false, true} {
			c := small(rand.New(rand.NewPCG(seed, 18)))
			c.Workers, c.Route.Mode, c.Route.Doubt, c.Routers, c.EventLoss = 3, "auto", doubt, 1, 0.1
			r := run(t, c, requests(t, 400, seed))
			_, fewer, more, _ := accounts(r)
			wrong[doubt] += fewer[account.Unknown] + more[account.Unknown]
			dumps[doubt] += r.Dumps
		}
	}
	if dumps[false] != 0 || dumps[true] == 0 || 2*wrong[true] > wrong[false] {
		t.Errorf("%v reports contradict the index, read anew %v times, without and with doubt", wrong, dumps)
	}
}

// TestEventDelay: what the index learns late or never, it does not tell.
func TestEventDelay(t *testing.T) {
	c := small(rand.New(rand.NewPCG(1, 4)))
	c.Workers, c.Route.Mode, c.Route.Doubt, c.Routers = 3, "kv", false, 1
	reuse := map[string]float64{}
	for name, change := range map[string]func(*Config){
		"now": func(*Config) {}, "late": func(c *Config) { c.EventDelay = time.Hour }, "lost": func(c *Config) { c.EventLoss = 1 },
	} {
		c := c
		change(&c)
		r := run(t, c, requests(t, 400, 1))
		reuse[name] = r.Summary().Reuse
		if name == "lost" && (r.EventsLost != r.Events || r.Index.Stored != 0) {
			t.Errorf("of %d events %d were lost, the index stored %d blocks", r.Events, r.EventsLost, r.Index.Stored)
		}
	}
	if reuse["late"] != reuse["lost"] || reuse["now"] <= reuse["late"] {
		t.Errorf("reuse %v: want the same for late and lost, and more for now", reuse)
	}
}

// TestDeath: the requests of a worker that dies end elsewhere; with all workers
// dead, none does.
func TestDeath(t *testing.T) {
	c := small(rand.New(rand.NewPCG(5, 5)))
	c.Workers, c.Route.Mode = 3, "round-robin"
	c.Slow = map[int]float64{0: 9, 1: 9, 2: 9} // so that all have requests at any time
	c.Faults = []Fault{{At: 2 * time.Second, Worker: 1, Kind: Dies}}
	r := run(t, c, requests(t, 300, 1))
	if r.Requests != 300 || r.SentAgain == 0 {
		t.Errorf("%d of 300 ended, %d were sent again", r.Requests, r.SentAgain)
	}
	c.Faults = append(c.Faults, Fault{At: 2 * time.Second, Worker: 0, Kind: Dies}, Fault{At: 3 * time.Second, Worker: 2, Kind: Dies})
	if r = run(t, c, requests(t, 300, 1)); r.Requests+r.Refused != 300 || r.Refused == 0 {
		t.Errorf("with all workers dead %d ended and %d were refused", r.Requests, r.Refused)
	}
}

// TestSettings: each one out of range is refused by its name.
func TestSettings(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no workers":        func(c *Config) { c.Workers = 0 },
		"too many prefill":  func(c *Config) { c.PrefillWorkers = 1 << 20 },
		"no router":         func(c *Config) { c.Routers = 0 },
		"no speed":          func(c *Config) { c.SpeedUp = 0 },
		"loss above 1":      func(c *Config) { c.EventLoss = 2 },
		"a negative delay":  func(c *Config) { c.SyncDelay = -1 },
		"negative requests": func(c *Config) { c.Requests = -1 },
		"a slow stranger":   func(c *Config) { c.Slow = map[int]float64{99: 2} },
		"a fault of nobody": func(c *Config) { c.Faults = []Fault{{At: 0, Worker: 99, Kind: Dies}} },
		"a fault of no kind": func(c *Config) {
			c.Faults = []Fault{{At: 0, Worker: 0, Kind: 0}}
		},
		"a mode that there is not": func(c *Config) { c.Route.Mode = "best" },
		"a fault of a pair":        func(c *Config) { c.PrefillWorkers, c.Faults = 1, []Fault{{At: 0, Worker: 0, Kind: Dies}} },
		"blocks of nothing":        func(c *Config) { c.Engine.BlockSize = -1 },
		"a cache of nothing":       func(c *Config) { c.Engine.Blocks = -1 },
	} {
		c := Default()
		change(&c)
		if _, err := Run(context.Background(), c, requests(t, 1, 1)); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, Default(), requests(t, 1, 1)); err == nil {
		t.Error("a run goes on without its context")
	}
}

// TestWorkloads: each generated workload runs, and only that without sharing
// has no reuse.
func TestWorkloads(t *testing.T) {
	for _, name := range Workloads() {
		src, err := Workload(name, 150, 5, 1)
		if err != nil {
			t.Fatal(err)
		}
		c := Default()
		c.Workers, c.Route.Mode = 2, "kv"
		r := run(t, c, src)
		if r.Requests != 150 || (r.Reused > 0) != (name != "unshared") {
			t.Errorf("%s: %d requests, %d tokens reused", name, r.Requests, r.Reused)
		}
	}
	if _, err := Workload("no such", 1, 1, 1); err == nil {
		t.Error("an unknown workload is accepted")
	}
}

// TestAgendaOrder: by time, then kind, then order of entry.
func TestAgendaOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 6))
	var a agenda
	for i := range 1000 {
		a.add(0, time.Duration(rng.IntN(20)), kind(rng.IntN(5)), i)
		if i%3 == 0 {
			a.next()
		}
	}
	var last happening
	for n := 0; ; n++ {
		h, ok := a.next()
		if !ok {
			break
		}
		if n > 0 && h.before(&last) {
			t.Fatal(fmt.Sprint(h, " comes after ", last))
		}
		last = h
	}
}

// TestPrefillPool: the pool computes the prompts; those that decode compute one
// token of each, and first tokens do not wait for them.
func TestPrefillPool(t *testing.T) {
	c := Default()
	c.Workers, c.PrefillWorkers, c.Route.Mode = 2, 2, "auto"
	src, err := Workload("unshared", 100, 3, 1)
	if err != nil {
		t.Fatal(err)
	}
	needed := 0
	r := run(t, c, tap{src, func(q *trace.Request) { needed += q.Input }})
	if r.Requests != 100 || r.Computed > needed+100 || r.Computed < needed {
		t.Errorf("%d requests ended, %d tokens of %d were computed", r.Requests, r.Computed, needed)
	}
	for w, worked := range r.Worked {
		if worked == 0 {
			t.Errorf("worker %d did nothing", w)
		}
	}
}
