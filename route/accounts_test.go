package route

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// lose makes the index believe that a rank has let go of blocks.
func lose(tb testing.TB, space *shard.Space, worker uint64, published time.Time, hashes ...uint64) {
	tb.Helper()
	b := &event.Batch{Space: space.Key(), Worker: worker, Published: published.UnixNano(), Events: []event.Event{{Kind: event.Removed, Engine: hashes}}}
	if _, err := space.ApplyWait(context.Background(), b); err != nil {
		tb.Fatal(err)
	}
}

// Each reason for which another than the best one is chosen, once.
func TestShortfalls(t *testing.T) {
	const blocks = 10
	p := prompt(blocks)
	ask := Options{RequestID: "r", Name: "n"}
	cases := map[string]struct {
		change  func(*Config)
		prepare func(t *testing.T, r *Router, o *Options)
		why     account.Shortfall
		at      uint64 // who has most: 1 has all, 2 half, 3 nothing
		got     int    // blocks that the chosen one has
	}{
		"none": {at: 1, got: blocks},
		"load": {at: 1, got: 5, why: account.Load, prepare: func(t *testing.T, r *Router, _ *Options) {
			for i := range 20 {
				if err := r.Reserve(Reservation{RequestID: fmt.Sprint(i), Rank: a1(1), PromptTokens: 4000, NewTokens: 4000}); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"busy": {at: 1, got: 5, why: account.Busy, change: func(c *Config) { c.Settings.Busy.PrefillTokens = ptr(100) }, prepare: func(t *testing.T, r *Router, _ *Options) {
			if err := r.ReportLoad(a1(1), Report{PrefillTokens: 101}); err != nil {
				t.Fatal(err)
			}
		}},
		"no room": {at: 1, got: 5, why: account.NoRoom, prepare: func(t *testing.T, r *Router, _ *Options) {
			best(t, r, Prompt{Local: p}, Options{RequestID: "before", Watched: true, Worker: ptr(uint64(1))})
			r.Failed("before", Whole, Failure{Full: true, RetryAfter: time.Minute})
			r.Free("before")
		}},
		"excluded":    {at: 1, got: 5, why: account.Excluded, prepare: func(_ *testing.T, _ *Router, o *Options) { o.Excluded = []uint64{1} }},
		"not allowed": {at: 1, got: 0, why: account.Excluded, prepare: func(_ *testing.T, _ *Router, o *Options) { o.Allowed = []uint64{3} }},
		"pinned":      {at: 1, got: 5, why: account.Excluded, prepare: func(_ *testing.T, _ *Router, o *Options) { o.Worker = ptr(uint64(2)) }},
		"session": {at: 1, got: 5, why: account.Session, change: func(c *Config) { c.Settings.OverlapWeight = 1e6 }, prepare: func(t *testing.T, r *Router, o *Options) {
			for i := range 20 {
				if err := r.Reserve(Reservation{RequestID: fmt.Sprint(i), Rank: a1(1), PromptTokens: 4000, NewTokens: 4000}); err != nil {
					t.Fatal(err)
				}
			}
			r.settings.PrefillLoadScale = 0
			r.policy = mostCached{}
			o.Session = &Session{Rank: a1(2)}
		}},
		"stale, not chosen": {at: 1, got: 5, why: account.Stale, change: func(c *Config) { c.Settings.StaleCredit = 0.2 }, prepare: func(_ *testing.T, r *Router, _ *Options) {
			r.SetStale(map[shard.RankID]bool{a1(1): true})
		}},
		"stale, chosen": {at: 1, got: 6, why: account.Stale, change: func(c *Config) { c.Settings.StaleCredit = 0.6 }, prepare: func(_ *testing.T, r *Router, _ *Options) {
			r.SetStale(map[shard.RankID]bool{a1(1): true})
		}},
		"dead": {at: 2, got: 5, prepare: func(t *testing.T, r *Router, _ *Options) { // who cannot be asked has nothing to reach
			if err := r.SetDead(1, true); err != nil {
				t.Fatal(err)
			}
		}},
		"draining": {at: 2, got: 5, prepare: func(t *testing.T, r *Router, _ *Options) {
			if err := r.Drain(1, true); err != nil {
				t.Fatal(err)
			}
		}},
	}
	var provoked [account.NumShortfalls]bool
	for _, f := range cases {
		provoked[f.why] = true
	}
	if i := slices.Index(provoked[:], false); i >= 0 {
		t.Errorf("%q is not provoked", account.Shortfall(i))
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "t"})
			r, space, _ := open(t, func(c *Config) {
				c.Decisions, c.Space = log, event.Space{Model: "m", BlockSize: testBlock, Group: "g"}
				if f.change != nil {
					f.change(c)
				}
			}, workers(3)...)
			store(t, space, 1, 0, event.Device, p...)
			store(t, space, 2, 0, event.Device, p[:5]...)
			o := ask
			if f.prepare != nil {
				f.prepare(t, r, &o)
			}
			a := best(t, r, Prompt{Local: p}, o)
			at := map[uint64]int{1: blocks, 2: 5}[f.at]
			want := account.Choice{Known: true, Prompt: blocks * testBlock, Reachable: at * testBlock, Selected: f.got * testBlock, Best: a1(f.at), Why: f.why}
			if a.Account != want {
				t.Errorf("%+v, want %+v", a.Account, want)
			}
			r.MarkPrefillComplete("r")
			r.Free("r")
			sum := r.Totals()
			if got := sum.Short[f.why]; f.why != account.NoShortfall && got != (account.Sum{Requests: 1, Tokens: uint64((at - f.got) * testBlock)}) {
				t.Errorf("%+v", sum)
			}
			d := log.Find(account.Query{RequestID: "n"})
			if len(d) != 1 || d[0].ID != a.Decision || d[0].Short != f.why.String() || *d[0].Reachable != want.Reachable || d[0].Rows != 3 || d[0].Group != "g" {
				t.Fatalf("%+v", d)
			}
			for _, row := range d[0].Ranks {
				if row.Chosen != (row.Worker == a.Worker) || (row.Left == "") == (row.Formula == "") || row.Chosen && row.CachedTokens != a.CachedTokens {
					t.Errorf("%+v", row)
				}
			}
		})
	}
}

// mostCached is a policy that goes by nothing else.
type mostCached struct{}

func (mostCached) UsesIndex(*Weighing) bool             { return true }
func (mostCached) Formula(*Weighing, *Candidate) string { return "cached" }
func (mostCached) Choose(_ *Weighing, cands []Candidate) (most int, _ error) {
	for i := range cands {
		if cands[i].CachedTokens > cands[most].CachedTokens {
			most = i
		}
	}
	return most, nil
}

// Each reason for which an engine finds other than was expected, once: the index after
// the answer is compared with what was seen at the choice.
func TestMisses(t *testing.T) {
	const blocks, has = 10, 8
	p := prompt(blocks)
	cases := map[string]struct {
		meanwhile func(t *testing.T, r *Router, space *shard.Space, now time.Time)
		usage     Usage
		tokens    bool // the prompt was given as tokens
		want      account.Miss
	}{
		"as expected":       {usage: Usage{40, has * testBlock}},
		"all but a block":   {usage: Usage{40, (has - 1) * testBlock}},
		"nobody knows":      {usage: Usage{40, 8}, want: account.Unknown},
		"more than is said": {usage: Usage{40, 40}, want: account.Unknown},
		"evicted": {usage: Usage{40, 8}, want: account.Evicted, meanwhile: func(t *testing.T, _ *Router, space *shard.Space, now time.Time) {
			lose(t, space, 1, now.Add(time.Second), p[2:has]...)
		}},
		"evicted and stored again": {usage: Usage{40, 8}, want: account.Evicted, meanwhile: func(t *testing.T, _ *Router, space *shard.Space, now time.Time) {
			lose(t, space, 1, now.Add(time.Second), p[2:has]...)
			store(t, space, 1, 0, event.Device, p...)
		}},
		"gone before": {usage: Usage{40, 8}, want: account.Late, meanwhile: func(t *testing.T, _ *Router, space *shard.Space, now time.Time) {
			lose(t, space, 1, now.Add(-time.Second), p[2:has]...)
			store(t, space, 1, 0, event.Device, p...)
		}},
		"stored since": {usage: Usage{40, 40}, want: account.Stored, meanwhile: func(t *testing.T, _ *Router, space *shard.Space, _ time.Time) {
			store(t, space, 1, 0, event.Device, p...)
		}},
		"read anew": {usage: Usage{40, 0}, want: account.Late, meanwhile: func(t *testing.T, _ *Router, space *shard.Space, _ time.Time) {
			if err := space.RemoveWorker(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			store(t, space, 1, 0, event.Device, p...)
		}},
		"stale": {usage: Usage{40, 8}, want: account.Late, meanwhile: func(_ *testing.T, r *Router, _ *shard.Space, _ time.Time) {
			r.SetStale(map[shard.RankID]bool{a1(1): true})
		}},
		"another text": {tokens: true, usage: Usage{44, 0}, want: account.TokensDiffer},
	}
	var provoked [account.NumMisses]bool
	provoked[account.NotPulled] = true // by TestPullsThatDoNotCome
	for _, f := range cases {
		provoked[f.want] = true
	}
	if i := slices.Index(provoked[:], false); i >= 0 {
		t.Errorf("%q is not provoked", account.Miss(i))
	}
	for name, f := range cases {
		t.Run(name, func(t *testing.T) {
			log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "t"})
			r, space, clock := open(t, func(c *Config) { c.Decisions = log }, workers(2)...)
			ask := Prompt{Local: p, Length: 40}
			if f.tokens {
				ask = Prompt{}
				for i := range uint32(40) {
					ask.Tokens = append(ask.Tokens, i)
				}
				local, err := blockhash.LocalHashes(nil, ask.Tokens, testBlock, blockhash.Options{})
				if err != nil {
					t.Fatal(err)
				}
				store(t, space, 1, 0, event.Device, local[:has]...)
			}
			store(t, space, 1, 0, event.Device, p[:has]...)
			a := best(t, r, ask, Options{RequestID: "r", Watched: true})
			if a.Worker != 1 || a.Account.Selected != has*testBlock || a.Account.Why != account.NoShortfall {
				t.Fatalf("%+v", a.Account)
			}
			at := clock.Now()
			clock.add(2 * time.Second)
			r.MarkPrefillComplete("r")
			if f.meanwhile != nil {
				f.meanwhile(t, r, space, at)
			}
			clock.add(time.Second)
			got, ok := r.Reported("r", Whole, ask, f.usage)
			if !ok || got.Miss != f.want || got.Actual != f.usage.Cached || got.Selected != has*testBlock {
				t.Errorf("%+v %v, want %q", got, ok, f.want)
			}
			if _, twice := r.Reported("r", Whole, ask, f.usage); twice {
				t.Error("it is counted twice")
			}
			r.Free("r")
			sum := r.Totals()
			if sum.Reported.Actual.Sum != uint64(f.usage.Cached) || sum.Reported.Actual.Count() != 1 || sum.Silent.Prompt.Count() != 0 ||
				f.want != account.NoMiss && sum.Fewer[f.want].Requests+sum.More[f.want].Requests != 1 {
				t.Errorf("%+v", sum)
			}
			d := log.Find(account.Query{})
			if len(d) != 1 || *d[0].Actual != f.usage.Cached || d[0].Miss != f.want.String() || *d[0].First != 2000 || d[0].Total != 3000 ||
				!slices.Equal(d[0].Kept, []account.Kind{account.Last, account.Slowest, account.Worst}) {
				t.Errorf("%+v", d)
			}
		})
	}
}

// Tokens that were estimated count in proportion to those that the engine has counted.
func TestEstimatedTokensAreScaled(t *testing.T) {
	r, space, _ := open(t, nil, workers(1)...)
	p := prompt(10)
	store(t, space, 1, 0, event.Device, p[:5]...)
	best(t, r, Prompt{Local: p, Length: 40}, Options{RequestID: "r"})
	got, ok := r.Reported("r", Whole, Prompt{Local: p, Length: 40}, Usage{Prompt: 80, Cached: 40})
	if !ok || got.Prompt != 80 || got.Reachable != 40 || got.Selected != 40 || got.Miss != account.NoMiss {
		t.Errorf("%+v", got)
	}
}

// Whatever the fleet, the policy and the request: prompt ≥ reachable ≥ selected, the best
// one is who has most of those that the choice shows, and a reason is there where one is
// due. What is over is counted once.
func TestReachableIsAtLeastSelected(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 16))
		modes := Modes()
		mode := modes[rng.IntN(len(modes))]
		log := account.New(account.Config{Keep: 1000, Memory: 64 << 20, Rows: 1 << 30, Run: "t"})
		n := 1 + rng.IntN(8)
		r, space, clock := open(t, func(c *Config) {
			c.Settings.Mode, c.Decisions, c.Settings.Seed = mode, log, seed
			c.Settings.Temperature = float64(rng.IntN(2)) * 0.5
			c.Settings.Busy.PrefillTokens = ptr(100 + rng.IntN(400))
			c.Settings.StaleCredit = rng.Float64()
		}, workers(n)...)
		p := prompt(40)
		stale := map[shard.RankID]bool{}
		for w := range n {
			id := uint64(w + 1)
			store(t, space, id, 0, event.Tier(rng.IntN(event.NumTiers)), p[:rng.IntN(len(p)+1)]...)
			store(t, space, id, 0, event.Device, p[:rng.IntN(len(p)+1)]...)
			stale[a1(id)] = rng.IntN(4) == 0
			w := Worker{ID: id, Draining: rng.IntN(8) == 0, Dead: rng.IntN(8) == 0, Role: Role(rng.IntN(10) / 8)}
			if err := r.SetWorker(w); err != nil {
				t.Fatal(err)
			}
		}
		r.SetStale(stale)
		booked := uint64(0)
		for i := range 60 {
			o := Options{RequestID: fmt.Sprint(i), Explain: true, Watched: true, Whole: rng.IntN(3) == 0}
			if mode == "direct" || rng.IntN(6) == 0 {
				o.Worker = ptr(uint64(1 + rng.IntN(n)))
			}
			if rng.IntN(5) == 0 {
				o.Excluded = []uint64{uint64(1 + rng.IntN(n))}
			}
			if rng.IntN(3) == 0 {
				o.Session = &Session{Rank: a1(uint64(1 + rng.IntN(n))), Tokens: 1000}
			}
			local := p[:rng.IntN(len(p)+1)]
			a, err := r.BestWorker(t.Context(), Prompt{Local: local}, o)
			clock.add(time.Duration(rng.IntN(1000)) * time.Millisecond)
			if err != nil {
				if !errors.Is(err, ErrOverloaded) && !errors.Is(err, ErrNoWorker) {
					t.Fatal(err)
				}
				continue
			}
			c := a.Account
			if !c.Known {
				continue
			}
			booked++
			most := 0
			for _, e := range a.Ranks {
				if e.Left == Eligible || e.Left.shortfall() != account.NoShortfall {
					// A stale one has at least what it counts for.
					most = max(most, e.CachedTokens)
				}
			}
			if c.Selected != a.CachedTokens || c.Reachable < c.Selected || c.Prompt < c.Reachable || c.Reachable < most || c.Reachable > most && len(stale) == 0 ||
				(c.Why == account.NoShortfall) != (c.Reachable == c.Selected) {
				t.Errorf("seed %d, %s: %+v, of %d", seed, mode, c, most)
			}
			if rng.IntN(2) == 0 {
				r.MarkPrefillComplete(o.RequestID)
				r.Reported(o.RequestID, Whole, Prompt{Local: local}, Usage{Cached: rng.IntN(c.Prompt + 1)})
				r.Free(o.RequestID)
			}
		}
		for i := range 60 {
			r.Free(fmt.Sprint(i))
		}
		sum := r.Totals()
		if got := sum.Reported.Prompt.Count() + sum.Silent.Prompt.Count(); got != booked {
			t.Errorf("seed %d, %s: %d of %d requests are counted", seed, mode, got, booked)
		}
		for _, k := range [...]*account.Kept{&sum.Reported, &sum.Silent} {
			if k.Prompt.Sum < k.Reachable.Sum || k.Reachable.Sum < k.Selected.Sum {
				t.Errorf("seed %d, %s: %+v", seed, mode, k)
			}
		}
		if text, err := json.Marshal(log.Find(account.Query{})); err != nil || strings.Contains(string(text), "NaN") {
			t.Errorf("%v: %s", err, text)
		}
	}
}

// A pair's prompt is the prefill worker's; a choice of which nothing came is none.
func TestAccountsOfPairs(t *testing.T) {
	log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000})
	r, space, _ := open(t, func(c *Config) { c.Decisions = log }, Worker{ID: 1, Role: Prefill}, Worker{ID: 2, Role: Decode})
	p := prompt(10)
	store(t, space, 1, 0, event.Device, p[:4]...)
	store(t, space, 2, 0, event.Device, p[:9]...)
	pair, err := r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "r", Name: "n"})
	if err != nil || pair.Prefill == nil {
		t.Fatal(err)
	}
	if c := pair.Prefill.Account; !c.Known || c.Reachable != 16 || c.Selected != 16 || pair.Decode.Account.Known {
		t.Errorf("%+v, %+v", c, pair.Decode.Account)
	}
	if _, ok := r.Reported("r", PrefillStage, Prompt{Local: p}, Usage{Prompt: 40, Cached: 16}); !ok {
		t.Error("the prefill worker's report is of nothing")
	}
	if _, ok := r.Reported("r", DecodeStage, Prompt{Local: p}, Usage{Prompt: 40, Cached: 36}); ok {
		t.Error("a decode worker's report counts")
	}
	r.Succeeded("r", PrefillStage)
	r.FreeStage("r", PrefillStage)
	r.MarkPrefillComplete("r")
	r.Free("r")
	d := log.Find(account.Query{RequestID: "n"})
	if len(d) != 2 || d[0].Phase != "decode" || d[0].Reachable != nil || d[1].Phase != "prefill" || *d[1].Actual != 16 || d[1].First == nil {
		t.Errorf("%+v", d)
	}
	if err := r.Drain(2, true); err != nil {
		t.Fatal(err)
	}
	before := r.Totals()
	if _, err := r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "s"}); err == nil {
		t.Error("chosen without a decode worker")
	}
	if r.Totals() != before || len(log.Find(account.Query{})) != 2 {
		t.Error("a choice of which nothing came is counted")
	}
}

// What a choice keeps of itself takes no memory beside the booking's own, but where its
// table is written: as much is allocated with a log of decisions as without.
func TestAccountsAllocateNothing(t *testing.T) {
	racetest.Without(t, "the race detector allocates")
	local := prompt(64)
	allocated := func(log *account.Log) float64 {
		r, _ := fleet(t, 8, local, nil)
		r.cfg.Decisions = log
		ctx, p := t.Context(), Prompt{Local: local}
		one := func() {
			a, err := r.BestWorker(ctx, p, Options{RequestID: "r", Name: "n"})
			if err != nil {
				t.Fatal(err)
			}
			r.MarkPrefillComplete("r")
			if log != nil {
				r.Reported("r", Whole, p, Usage{Cached: a.CachedTokens})
			}
			r.Free("r")
		}
		one()
		return testing.AllocsPerRun(200, one)
	}
	without := allocated(nil)
	with := allocated(account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1})) // the first table only
	if with > without || without > 3 {                                                 // those of load.Table
		t.Errorf("%v allocations, %v without a log", with, without)
	}
}

// hasty is a policy whose requests are over before the table of their choice is written.
type hasty struct {
	mostCached
	over func()
}

func (h *hasty) Formula(*Weighing, *Candidate) string {
	h.over()
	return "cached"
}

// Tables are written without the lock, so that others choose meanwhile; a decision whose
// request is over before it has its table is kept with it all the same.
func TestTablesAreWrittenWithoutTheLock(t *testing.T) {
	for _, before := range []bool{true, false} {
		log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "t"})
		p := new(hasty)
		r, space, _ := open(t, func(c *Config) { c.Decisions, c.Policy = log, p }, workers(3)...)
		p.over = func() {
			r.Stats()
			if before {
				r.Free("r")
			}
		}
		chain := prompt(4)
		store(t, space, 1, 0, event.Device, chain...)
		a := best(t, r, Prompt{Local: chain}, Options{RequestID: "r", Explain: true})
		if !before {
			r.Free("r")
		}
		d := log.Find(account.Query{ID: a.Decision})
		if len(d) != 1 || d[0].Rows != 3 || len(d[0].Ranks) != 3 || len(a.Ranks) != 3 || a.Ranks[0].Formula != "cached" || d[0].Worker != 1 {
			t.Errorf("over before: %t: %+v, %+v", before, d, a.Ranks)
		}
		for _, row := range d[0].Ranks {
			if row.Chosen != (row.Worker == 1) || row.Formula != "cached" {
				t.Errorf("%+v", row)
			}
		}
	}
}
