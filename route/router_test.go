package route

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// clock is the tests' time.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

const testBlock = 4 // tokens

// open returns a router with default settings but for change, for the workers,
// and its index.
func open(tb testing.TB, change func(*Config), workers ...Worker) (*Router, *shard.Space, *clock) {
	tb.Helper()
	set := shard.New(shard.Config{})
	tb.Cleanup(set.Close)
	space, err := set.Open(event.Space{Model: "m", BlockSize: testBlock})
	if err != nil {
		tb.Fatal(err)
	}
	c := &clock{now: time.Unix(1_000_000, 0)}
	cfg := Config{BlockSize: testBlock, Index: space, Settings: DefaultSettings(), Now: c.Now, ID: 1}
	cfg.Settings.Mode = "kv" // whose costs a person can reckon
	if change != nil {
		change(&cfg)
	}
	r, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	for _, w := range workers {
		if err := r.SetWorker(w); err != nil {
			tb.Fatal(err)
		}
	}
	return r, space, c
}

func workers(n int) []Worker {
	ws := make([]Worker, n)
	for i := range ws {
		ws[i].ID = uint64(i + 1)
	}
	return ws
}

func best(tb testing.TB, r *Router, p Prompt, o Options) Answer {
	tb.Helper()
	a, err := r.BestWorker(context.Background(), p, o)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

func ptr[T any](v T) *T { return &v }

// TestTokensAndHashes: a prompt given as tokens and one given as hashes are
// the same; what is beyond the last complete block is to be computed.
func TestTokensAndHashes(t *testing.T) {
	r, space, _ := open(t, nil, workers(2)...)
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	local, err := blockhash.LocalHashes(nil, tokens, testBlock, blockhash.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store(t, space, 2, 0, event.Device, local...)
	for _, p := range []Prompt{{Tokens: tokens}, {Local: local, Length: 10}} {
		a := best(t, r, p, Options{})
		if a.Worker != 2 || a.CachedTokens != 8 || a.NewTokens != 2 || a.Blocks != 2 || a.PrefillTokens != 2 || a.DecodeBlocks != 2 || a.Cost != 0.5+2 {
			t.Errorf("%+v: %+v", p, a)
		}
	}
	if a := best(t, r, Prompt{Tokens: tokens, Hash: blockhash.Options{Seed: blockhash.Seed("", "salt")}}, Options{}); a.CachedTokens != 0 {
		t.Errorf("with another salt %d tokens count as cached", a.CachedTokens)
	}
}

// TestTierCredits: device 1, host 0.75, disk 0.25, external 0 of each block.
func TestTierCredits(t *testing.T) {
	r, space, _ := open(t, nil, workers(1)...)
	p := prompt(10)
	store(t, space, 1, 0, event.Device, p[:2]...)
	store(t, space, 1, 0, event.HostPinned, p[:4]...)
	store(t, space, 1, 0, event.Disk, p[:8]...)
	store(t, space, 1, 0, event.External, p...)
	a := best(t, r, Prompt{Local: p}, Options{})
	if want := [event.NumTiers]uint32{2, 4, 8, 10}; a.Cached != want {
		t.Errorf("cached %v, want %v", a.Cached, want)
	}
	if want := 40 - int(4*(2*1+2*0.75+4*0.25+2*0)); a.NewTokens != want {
		t.Errorf("%d tokens to compute, want %d", a.NewTokens, want)
	}
	if a.CachedTokens != 32 {
		t.Errorf("%d tokens should be found, want those to disk: 32", a.CachedTokens)
	}
}

// TestQueryOnlyAndTracked: without an id nothing changes; with one the load is
// what the contract says until Free, and then nothing.
func TestQueryOnlyAndTracked(t *testing.T) {
	r, space, _ := open(t, nil, workers(1)...)
	p := prompt(5)
	store(t, space, 1, 0, event.Device, p[:3]...)
	idle := r.Loads()
	best(t, r, Prompt{Local: p}, Options{})
	if got := r.Loads(); !slices.Equal(got, idle) {
		t.Errorf("a query changes the load to %+v", got)
	}
	best(t, r, Prompt{Local: p, Length: 21}, Options{RequestID: "a", ExpectedOutput: 7})
	want := load.Load{Requests: 1, Prefilling: 1, PrefillTokens: 9, DecodeBlocks: 5, OutputLeft: 7, PromptTokens: 21}
	if got := r.Loads()[0].Load; got != want {
		t.Errorf("load %+v, want %+v", got, want)
	}
	if _, err := r.BestWorker(t.Context(), Prompt{Local: p}, Options{RequestID: "a"}); !errors.Is(err, load.ErrDuplicate) {
		t.Errorf("the same id again: %v", err)
	}
	// A second request that shares 4 of its 6 blocks: 2 more in use with it.
	q := append(slices.Clone(p[:4]), 77, 78)
	a := best(t, r, Prompt{Local: q}, Options{})
	if a.NewBlocks != 2 || a.DecodeBlocks != 7 || a.NewTokens != 12 || a.PrefillTokens != 21 || a.Requests != 1 {
		t.Errorf("potential load %+v", a.Candidate)
	}
	if !r.MarkPrefillComplete("a") || r.MarkPrefillComplete("a") {
		t.Error("the first token comes once")
	}
	if got := r.Loads()[0].Load; got.PrefillTokens != 0 || got.Prefilling != 0 || got.DecodeBlocks != 5 {
		t.Errorf("after the first token: %+v", got)
	}
	if !r.Free("a") || r.Free("a") {
		t.Error("a request ends once")
	}
	if got := r.Loads(); !slices.Equal(got, idle) {
		t.Errorf("idle again: %+v", got)
	}
	if s := r.Stats(); s.Booked != 1 || s.Duplicate != 1 || s.Unknown != 2 || s.Live != 0 {
		t.Errorf("stats %+v", s)
	}
}

// forbidden is an index that nobody may ask.
type forbidden struct{ t testing.TB }

func (f forbidden) Find([]uint64, *shard.Result)  { f.t.Error("the index is looked up") }
func (f forbidden) EachMember(func(shard.Member)) {}

// TestWeightZeroNeedsNoIndex: pure load balancing looks nothing up, unless a
// request brings a weight of its own.
func TestWeightZeroNeedsNoIndex(t *testing.T) {
	r, _, _ := open(t, func(c *Config) { c.Index = forbidden{t}; c.Settings.OverlapWeight = 0 }, workers(2)...)
	p := Prompt{Local: prompt(6)}
	first := best(t, r, p, Options{RequestID: "a"})
	if second := best(t, r, Prompt{Local: []uint64{1, 2}}, Options{}); second.Worker == first.Worker {
		t.Error("the busier worker is chosen")
	}
	r, _, _ = open(t, func(c *Config) { c.Index = nil }, workers(2)...)
	if a := best(t, r, p, Options{}); a.CachedTokens != 0 || a.NewTokens != 24 {
		t.Errorf("without an index: %+v", a)
	}
	for _, mode := range []string{"random", "round-robin", "power-of-two", "least-loaded", "device-aware-weighted"} {
		r, _, _ = open(t, func(c *Config) { c.Index = forbidden{t}; c.Settings.Mode = mode }, workers(2)...)
		best(t, r, p, Options{RequestID: "a"})
	}
}

// TestWhoMayServe covers allowed, excluded, pinned, draining and other-role
// workers, and the error that says why nobody is left.
func TestWhoMayServe(t *testing.T) {
	ws := workers(4)
	ws[1].Ranks = 2
	ws[3].Role = Prefill
	r, _, _ := open(t, nil, ws...)
	if err := r.Drain(3, true); err != nil {
		t.Fatal(err)
	}
	p := Prompt{Local: prompt(2)}
	for _, c := range []struct {
		name string
		o    Options
		want []shard.RankID
		left map[Reason]int
	}{
		{name: "any", want: []shard.RankID{{Worker: 1}, {Worker: 2}, {Worker: 2, DPRank: 1}}},
		{name: "allowed", o: Options{Allowed: []uint64{2, 3, 99}}, want: []shard.RankID{{Worker: 2}, {Worker: 2, DPRank: 1}}},
		{name: "excluded", o: Options{Excluded: []uint64{2}}, want: []shard.RankID{{Worker: 1}}},
		{name: "allowed and excluded", o: Options{Allowed: []uint64{1, 2}, Excluded: []uint64{2}}, want: []shard.RankID{{Worker: 1}}},
		{name: "pinned", o: Options{Worker: ptr(uint64(2)), DPRank: ptr(uint32(1))}, want: []shard.RankID{{Worker: 2, DPRank: 1}}},
		{name: "pinned to a draining one", o: Options{Worker: ptr(uint64(3))}, left: map[Reason]int{Draining: 1, NotAllowed: 3, OtherRole: 1}},
		{name: "none allowed", o: Options{Allowed: []uint64{}}, left: map[Reason]int{NotAllowed: 4, OtherRole: 1}},
		{name: "prefill", o: Options{Stage: PrefillStage}, want: []shard.RankID{{Worker: 4}}},
	} {
		seen := map[shard.RankID]bool{}
		for range 60 {
			a, err := r.BestWorker(t.Context(), p, c.o)
			var none *NoWorkerError
			switch {
			case c.left != nil:
				if !errors.Is(err, ErrNoWorker) || errors.Is(err, ErrOverloaded) || !errors.As(err, &none) {
					t.Fatalf("%s: %v", c.name, err)
				}
				for why, n := range none.Left {
					if c.left[Reason(why)] != n {
						t.Fatalf("%s: %d ranks are left out as %v, want %d", c.name, n, Reason(why), c.left[Reason(why)])
					}
				}
			case err != nil:
				t.Fatalf("%s: %v", c.name, err)
			default:
				seen[a.RankID] = true
			}
		}
		for _, id := range c.want {
			if !seen[id] {
				t.Errorf("%s: %v is never chosen", c.name, id)
			}
		}
		if len(seen) != len(c.want) {
			t.Errorf("%s: chosen %v, want %v", c.name, seen, c.want)
		}
	}
	empty, _, _ := open(t, nil)
	if _, err := empty.BestWorker(t.Context(), p, Options{}); !errors.Is(err, ErrNoWorker) || !strings.Contains(err.Error(), "none is registered") {
		t.Errorf("without workers: %v", err)
	}
}

// TestBusy: each threshold, from what the router counts and from what engines
// report, changed at run time; all busy is an overload and no choice.
func TestBusy(t *testing.T) {
	w := Worker{ID: 1, TotalBlocks: 100, MaxBatchedTokens: 1000}
	r, _, c := open(t, nil, w)
	p := Prompt{Local: prompt(10)}
	set := func(change Thresholds) {
		t.Helper()
		if _, err := r.SetThresholds(change); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(step string, why Reason) {
		t.Helper()
		_, err := r.BestWorker(t.Context(), p, Options{})
		if why == Eligible {
			if err != nil {
				t.Errorf("%s: %v", step, err)
			}
			return
		}
		var none *NoWorkerError
		if !errors.Is(err, ErrOverloaded) || !errors.As(err, &none) || none.Left[why] != 1 {
			t.Errorf("%s: %v, want 1 %v", step, err, why)
		}
	}
	best(t, r, Prompt{Local: prompt(60)}, Options{RequestID: "a"}) // 60 blocks, 240 tokens
	expect("no thresholds", Eligible)
	set(Thresholds{DecodeFraction: ptr(0.6)})
	expect("60 blocks are not above 0.6 of 100", Eligible)
	set(Thresholds{DecodeFraction: ptr(0.59)})
	expect("60 blocks are above 0.59 of 100", BusyDecodeBlocks)
	got, err := r.SetThresholds(Thresholds{DecodeFraction: ptr(1.0), PrefillTokens: ptr(239)})
	if err != nil || *got.DecodeFraction != 1 || *got.PrefillTokens != 239 || got.PrefillFraction != nil {
		t.Errorf("thresholds %+v %v", got, err)
	}
	expect("240 tokens are above 239", BusyPrefillTokens)
	set(Thresholds{PrefillTokens: ptr(240), PrefillFraction: ptr(0.2)})
	expect("240 tokens are above 0.2 of 1000", BusyPrefillTokens)
	set(Thresholds{PrefillFraction: ptr(1.5)})
	expect("and below 1.5 of 1000", Eligible)

	if err := r.ReportLoad(shard.RankID{Worker: 1}, Report{ActiveBlocks: 101}); err != nil {
		t.Fatal(err)
	}
	expect("the engine reports 101 blocks of 100", BusyDecodeBlocks)
	if l := r.Loads()[0]; l.Left != BusyDecodeBlocks {
		t.Errorf("Loads shows the worker as %v", l.Left)
	}
	c.add(31 * time.Second)
	expect("the report is old", Eligible)
	set(Thresholds{DecodeFraction: ptr(0.9)})
	for usage, why := range map[float64]Reason{0.91: BusyDecodeBlocks, 0.9: Eligible} {
		if err := r.ReportLoad(shard.RankID{Worker: 1}, Report{CacheUsage: usage}); err != nil {
			t.Fatal(err)
		}
		expect(fmt.Sprintf("the engine reports %v of its cache in use", usage), why)
	}
	c.add(31 * time.Second)
	r.MarkPrefillComplete("a")
	set(Thresholds{PrefillTokens: ptr(0)})
	expect("after the first token no tokens are left", Eligible)

	for _, bad := range []Thresholds{{DecodeFraction: ptr(1.1)}, {DecodeFraction: ptr(math.NaN())}, {PrefillTokens: ptr(-1)}, {PrefillFraction: ptr(-0.1)}} {
		if _, err := r.SetThresholds(bad); !errors.Is(err, ErrSettings) {
			t.Errorf("%+v is taken: %v", bad, err)
		}
	}
	if err := r.ReportLoad(shard.RankID{Worker: 9}, Report{}); !errors.Is(err, ErrUnknownWorker) {
		t.Errorf("a report of an unknown worker: %v", err)
	}
	if s := r.Stats(); s.Overloaded != 5 {
		t.Errorf("%d requests counted as refused for load, want 5", s.Overloaded)
	}
}

// TestChoiceAndBookingAreOneStep: as many requests at once as workers, equal
// in every way; each worker gets one.
func TestChoiceAndBookingAreOneStep(t *testing.T) {
	const n = 64
	r, _, _ := open(t, nil, workers(n)...)
	var wg sync.WaitGroup
	chosen := make([]uint64, n)
	for i := range n {
		wg.Go(func() {
			p := prompt(8)
			p[0] = uint64(i) // no two share blocks
			a, err := r.BestWorker(context.Background(), Prompt{Local: p}, Options{RequestID: fmt.Sprint(i)})
			if err != nil {
				t.Error(err)
			}
			chosen[i] = a.Worker
		})
	}
	wg.Wait()
	slices.Sort(chosen)
	for i, w := range chosen {
		if w != uint64(i+1) {
			t.Fatalf("workers %v were chosen", chosen)
		}
	}
}

// TestLeases: a request that makes progress stays, one that does not ends, and
// an idle router forgets it too.
func TestLeases(t *testing.T) {
	r, _, c := open(t, func(c *Config) { c.Settings.Lease = time.Minute }, workers(2)...)
	p := Prompt{Local: prompt(4)}
	best(t, r, p, Options{RequestID: "steady"})
	best(t, r, p, Options{RequestID: "stuck"})
	best(t, r, p, Options{RequestID: "whole", Watched: true, Whole: true}) // whose caller tells of its end, and of nothing before
	for range 5 {
		c.add(30 * time.Second)
		r.Output("steady", 1)
	}
	r.Expire()
	if s := r.Stats(); s.Expired != 1 || s.Live != 2 || r.Free("stuck") || !r.Free("steady") || !r.Free("whole") {
		t.Errorf("stats %+v", s)
	}
}

// TestWorkerLeaves: its load goes with it, and comes back as zero.
func TestWorkerLeaves(t *testing.T) {
	ws := workers(2)
	ws[0].Ranks = 3
	r, _, _ := open(t, nil, ws...)
	p := prompt(3)
	for i := range 6 {
		best(t, r, Prompt{Local: append([]uint64{uint64(i)}, p...)}, Options{RequestID: fmt.Sprint(i), Allowed: []uint64{1}})
	}
	ws[0].Ranks = 2
	if err := r.SetWorker(ws[0]); err != nil {
		t.Fatal(err)
	}
	if loads := r.Loads(); len(loads) != 3 || r.Stats().Live != 4 {
		t.Errorf("with a rank less: %+v", loads)
	}
	if !r.RemoveWorker(1) || r.RemoveWorker(1) {
		t.Error("a worker leaves once")
	}
	if err := r.SetWorker(ws[0]); err != nil {
		t.Fatal(err)
	}
	for _, l := range r.Loads() {
		if l.Load != (load.Load{}) {
			t.Errorf("%+v", l)
		}
	}
	if s := r.Stats(); s.Dropped != 6 || s.Live != 0 {
		t.Errorf("stats %+v", s)
	}
	if got := r.Workers(); len(got) != 2 || got[0].ID != 1 || got[0].Ranks != 2 {
		t.Errorf("workers %+v", got)
	}
}

// TestManyRanks: a worker registers with as many ranks as it may; whatever places others have left, all stand in order.
func TestManyRanks(t *testing.T) {
	r, _, _ := open(t, nil, Worker{ID: 1, Ranks: 5}, Worker{ID: 2})
	r.RemoveWorker(1)
	if err := r.SetWorker(Worker{ID: 3, Ranks: maxRanks}); err != nil {
		t.Fatal(err)
	}
	if len(r.Loads()) != maxRanks+1 || !slices.IsSortedFunc(r.members, func(a, b *member) int { return int(a.slot) - int(b.slot) }) {
		t.Errorf("%d ranks, or in another order", len(r.Loads()))
	}
}

// TestPair: the prefill worker carries the prompt's tokens and no blocks, the
// decode worker its blocks and no tokens; without a prefill worker the decode
// worker carries all.
func TestPair(t *testing.T) {
	r, space, _ := open(t, nil,
		Worker{ID: 1, Role: Prefill}, Worker{ID: 2, Role: Prefill}, Worker{ID: 3, Role: Decode}, Worker{ID: 4, Role: Decode})
	p := prompt(6)
	store(t, space, 2, 0, event.Device, p[:5]...)
	store(t, space, 4, 0, event.Device, 1<<40) // so that ties go to 3
	pair, err := r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "a"})
	if err != nil || pair.Prefill == nil || pair.Prefill.Worker != 2 || pair.Decode.Worker != 3 {
		t.Fatalf("%+v, %v", pair, err)
	}
	loads := func() (sum map[uint64]load.Load) {
		sum = map[uint64]load.Load{}
		for _, l := range r.Loads() {
			sum[l.Worker] = l.Load
		}
		return sum
	}
	got := loads()
	if want := (load.Load{Requests: 1, Prefilling: 1, PrefillTokens: 4, PromptTokens: 24}); got[2] != want {
		t.Errorf("the prefill worker carries %+v, want %+v", got[2], want)
	}
	if want := (load.Load{Requests: 1, DecodeBlocks: 6, PromptTokens: 24}); got[3] != want {
		t.Errorf("the decode worker carries %+v, want %+v", got[3], want)
	}
	if !r.MarkPrefillComplete("a") {
		t.Error("the prefill does not end")
	}
	if got := loads(); got[2] != (load.Load{}) || got[3].DecodeBlocks != 6 {
		t.Errorf("after the prefill: %+v", got)
	}
	r.Free("a")

	for _, id := range []uint64{1, 2} {
		if err := r.Drain(id, true); err != nil {
			t.Fatal(err)
		}
	}
	pair, err = r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "b"})
	if err != nil || pair.Prefill != nil {
		t.Fatalf("%+v, %v", pair, err)
	}
	if got, want := loads()[pair.Decode.Worker], (load.Load{Requests: 1, Prefilling: 1, PrefillTokens: 24, DecodeBlocks: 6, PromptTokens: 24}); got != want {
		t.Errorf("decode-only carries %+v, want %+v", got, want)
	}
	r.Free("b")
	// One that finds nobody to decode, either, counts when it does.
	if _, err = r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "again", Allowed: []uint64{99}}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("nobody at all: %v", err)
	}
	// A decode choice that fails takes the prefill booking back.
	if err := r.Drain(1, false); err != nil {
		t.Fatal(err)
	}
	if _, err = r.BestPair(t.Context(), Prompt{Local: p}, Options{RequestID: "c", Allowed: []uint64{99}}); !errors.Is(err, ErrNoWorker) {
		t.Errorf("nobody to decode: %v", err)
	}
	if s := r.Stats(); s.Live != 0 || s.DecodeOnly != 1 || s.NoWorker != 2 {
		t.Errorf("stats %+v", s)
	}
}

// TestExplain: on request every rank is there with its formula or with why it
// was left out; at debug each is logged.
func TestExplain(t *testing.T) {
	var log strings.Builder
	r, space, _ := open(t, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}, workers(3)...)
	p := prompt(4)
	store(t, space, 2, 0, event.Device, p[:3]...)
	a := best(t, r, Prompt{Local: p}, Options{Explain: true, Excluded: []uint64{3}})
	want := []string{"8.0 = 1.0 * 4.0 + 4.0", "5.0 = 1.0 * 1.0 + 4.0", ""}
	for i, e := range a.Ranks {
		if e.Worker != uint64(i+1) || e.Formula != want[i] || (e.Left == Excluded) != (i == 2) {
			t.Errorf("rank %d: %+v", i, e)
		}
	}
	if a.Worker != 2 || len(a.Ranks) != 3 {
		t.Errorf("%+v", a)
	}
	if n := strings.Count(log.String(), "rank weighed"); n != 3 || !strings.Contains(log.String(), "5.0 = 1.0 * 1.0 + 4.0") {
		t.Errorf("the log has %d ranks: %s", n, log.String())
	}
}

// TestChoosingAllocatesNothing, once buffers have grown.
func TestChoosingAllocatesNothing(t *testing.T) {
	racetest.Without(t, "the pool of buffers is not kept whole under the race detector")
	local := prompt(64)
	for _, mode := range Modes() {
		if mode == "direct" {
			continue
		}
		r, _ := fleet(t, 16, local, func(s *Settings) { s.Mode = mode })
		n := testing.AllocsPerRun(200, func() {
			if _, err := r.BestWorker(context.Background(), Prompt{Local: local}, Options{}); err != nil {
				t.Error(err)
			}
		})
		if n >= 1 { // the pool may lose its buffers to a garbage collection
			t.Errorf("%s: %v allocations a choice", mode, n)
		}
	}
}

// TestSettings: what is out of range is refused and named.
func TestSettings(t *testing.T) {
	for _, change := range []func(*Settings){
		func(s *Settings) { s.Mode = "best" },
		func(s *Settings) { s.OverlapWeight = -1 },
		func(s *Settings) { s.OverlapWeight = math.Inf(1) },
		func(s *Settings) { s.PrefillLoadScale = math.NaN() },
		func(s *Settings) { s.Temperature = -0.1 },
		func(s *Settings) { s.DeviceRatio = 0 },
		func(s *Settings) { s.TierCredits[1] = 2 },
		func(s *Settings) { s.Lease = -1 },
		func(s *Settings) { s.Busy.DecodeFraction = ptr(2.0) },
	} {
		s := DefaultSettings()
		change(&s)
		if _, err := New(Config{BlockSize: 16, Settings: s}); !errors.Is(err, ErrSettings) {
			t.Errorf("%+v: %v", s, err)
		}
	}
	if _, err := New(Config{Settings: DefaultSettings()}); !errors.Is(err, blockhash.ErrBlockSize) {
		t.Errorf("no block size: %v", err)
	}
	r, _, _ := open(t, nil, workers(1)...)
	for _, o := range []Options{{Weight: ptr(-1.0)}, {Temperature: ptr(math.NaN())}, {Stage: 9}} {
		if _, err := r.BestWorker(t.Context(), Prompt{}, o); !errors.Is(err, ErrSettings) {
			t.Errorf("%+v: %v", o, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.BestWorker(ctx, Prompt{}, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestOverrides: a request's own weight and temperature count for it alone.
func TestOverrides(t *testing.T) {
	r, space, _ := open(t, nil, workers(2)...)
	p := prompt(10)
	store(t, space, 1, 0, event.Device, p...)
	// Worker 1 has the prompt cached and 12 other blocks in use; with weight 1
	// it costs 22, the idle worker 2 costs 20.
	best(t, r, Prompt{Local: []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}, Options{RequestID: "a", Worker: ptr(uint64(1))})
	r.MarkPrefillComplete("a")
	for _, c := range []struct {
		o    Options
		want uint64
	}{{Options{}, 2}, {Options{Weight: ptr(2.0)}, 1}, {Options{}, 2}, {Options{Weight: ptr(0.0)}, 2}} {
		if a := best(t, r, Prompt{Local: p}, c.o); a.Worker != c.want {
			t.Errorf("%+v: worker %d at %v, want %d", c.o, a.Worker, a.Cost, c.want)
		}
	}
	seen := map[uint64]int{}
	for range 100 {
		seen[best(t, r, Prompt{Local: p}, Options{Temperature: ptr(5.0)}).Worker]++
	}
	if len(seen) != 2 {
		t.Errorf("at a high temperature: %v", seen)
	}
}

// TestPotentialLoads compares every number with one summed anew from the index
// and the live requests, over random fleets; loads are never below zero, and
// zero when all is over.
func TestPotentialLoads(t *testing.T) {
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 3))
		r, space, _ := open(t, nil, Worker{ID: 1, Ranks: 2}, Worker{ID: 2}, Worker{ID: 3}, Worker{ID: 4})
		chain := func() []uint64 {
			c := make([]uint64, 1+rng.IntN(12))
			for i := range c {
				c[i] = uint64(i)<<8 | uint64(rng.IntN(2)) + 1
				if i > 0 && rng.IntN(3) > 0 {
					c[i] = uint64(i)<<8 | c[i-1]&0xff
				}
			}
			return c
		}
		for range 30 {
			store(t, space, 1+rng.Uint64N(5), rng.Uint32N(2), event.Tier(rng.IntN(3)), chain()...)
		}
		type request struct {
			rank   shard.RankID
			chain  []uint64
			tokens int
		}
		live := map[string]request{}
		for i := range 60 {
			p := chain()
			id := fmt.Sprint(i)
			a := best(t, r, Prompt{Local: p, Length: len(p)*testBlock + rng.IntN(testBlock)}, Options{RequestID: id, Temperature: ptr(3.0)})
			live[id] = request{a.RankID, p, a.NewTokens}
			for id, q := range live {
				if rng.IntN(8) == 0 {
					r.Free(id)
					delete(live, id)
				} else if rng.IntN(8) == 0 {
					r.MarkPrefillComplete(id)
					q.tokens = 0
					live[id] = q
				}
			}
			q := chain()
			loads, err := r.PotentialLoads(t.Context(), Prompt{Local: q}, Options{})
			if err != nil || len(loads) != 5 {
				t.Fatalf("%d ranks, %v", len(loads), err)
			}
			var res shard.Result
			space.Find(q, &res)
			depth := map[shard.RankID][event.NumTiers]uint32{}
			res.Each(func(id shard.RankID, d [event.NumTiers]uint32) { depth[id] = d })
			for _, c := range loads {
				d := depth[c.RankID]
				saved := float64(d[0]) + 0.75*float64(d[1]-d[0]) + 0.25*float64(d[2]-d[1])
				tokens := len(q)*testBlock - int(math.Round(saved*testBlock))
				blocks := map[string]bool{}
				for _, l := range live {
					if l.rank == c.RankID {
						tokens += l.tokens
						for i := range l.chain {
							blocks[fmt.Sprint(l.chain[:i+1])] = true
						}
					}
				}
				for i := range q {
					blocks[fmt.Sprint(q[:i+1])] = true
				}
				if c.Cached != d || c.PrefillTokens != tokens || c.DecodeBlocks != float64(len(blocks)) {
					t.Fatalf("seed %d, rank %v: %+v, want %d tokens, %d blocks", seed, c.RankID, c, tokens, len(blocks))
				}
			}
		}
		for id := range live {
			r.Free(id)
		}
		for _, l := range r.Loads() {
			if l.Load != (load.Load{}) {
				t.Fatalf("idle: %+v", l)
			}
		}
	}
}

// TestRanksThatComeBack: a holder number given to another rank is not credited
// to the one that had it.
func TestRanksThatComeBack(t *testing.T) {
	r, space, _ := open(t, nil, workers(3)...)
	p := prompt(4)
	store(t, space, 1, 0, event.Device, p...)
	if a := best(t, r, Prompt{Local: p}, Options{}); a.Worker != 1 {
		t.Fatalf("%+v", a)
	}
	if err := space.RemoveWorker(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	store(t, space, 7, 0, event.Device, p...) // gets the number, and is no member
	if a := best(t, r, Prompt{Local: p}, Options{}); a.CachedTokens != 0 {
		t.Errorf("a removed rank's blocks are credited: %+v", a)
	}
	if err := r.SetWorker(Worker{ID: 7}); err != nil {
		t.Fatal(err)
	}
	if a := best(t, r, Prompt{Local: p}, Options{}); a.Worker != 7 || a.CachedTokens != 16 {
		t.Errorf("%+v", a)
	}
}

// TestFewestHeldBreaksTies, by what the index counts.
func TestFewestHeldBreaksTies(t *testing.T) {
	r, space, _ := open(t, nil, workers(3)...)
	store(t, space, 1, 0, event.Device, 100, 101)
	store(t, space, 2, 0, event.HostPinned, 100)
	store(t, space, 3, 0, event.Device, 100, 101, 102)
	for range 20 {
		if a := best(t, r, Prompt{Local: prompt(2)}, Options{}); a.Worker != 2 {
			t.Fatalf("worker %d is chosen, worker 2 holds the fewest blocks", a.Worker)
		}
	}
}

// TestApplyAndOwn: what one router books and tells, another counts the same;
// and nobody changes bookings of another's.
func TestApplyAndOwn(t *testing.T) {
	a, _, _ := open(t, func(c *Config) { c.Settings.TrackOutputBlocks = true }, workers(2)...)
	b, _, _ := open(t, func(c *Config) { c.Settings.TrackOutputBlocks = true; c.ID = 2 }, workers(1)...)
	a.SetJournal(journal(func(c load.Change) {
		c.Request.Blocks = slices.Clone(c.Request.Blocks)
		b.Apply(c)
	}))
	p := prompt(5)
	for i := range 4 {
		best(t, a, Prompt{Local: p[i:]}, Options{RequestID: fmt.Sprint(i)})
	}
	a.MarkPrefillComplete("1")
	a.Output("1", 9)
	a.OutputBlock("2", 0.5)
	a.Free("3")
	if err := b.SetWorker(Worker{ID: 2}); err != nil { // joins later; its load counts
		t.Fatal(err)
	}
	if got, want := b.Loads(), a.Loads(); !slices.EqualFunc(got, want, func(x, y RankLoad) bool { return x.RankID == y.RankID && x.Load == y.Load }) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
	if b.Free("1") || a.Apply(load.Change{Kind: load.Freed, Key: load.Key{Owner: 1, ID: "1"}}) {
		t.Error("a router ends another's booking")
	}
	c, _, _ := open(t, func(c *Config) { c.Settings.TrackOutputBlocks = true; c.ID = 3 }, workers(2)...)
	begun := false
	a.Own(func() { begun = true }, func(ch load.Change) {
		if !begun || !c.Apply(ch) {
			t.Errorf("%+v", ch)
		}
	})
	if got, want := c.Loads(), a.Loads(); !slices.Equal(got, want) {
		t.Errorf("taken over: %+v\nwant %+v", got, want)
	}
	b.DropOwner(1)
	if s := b.Stats(); s.Live != 0 {
		t.Errorf("%d bookings of a router that is gone", s.Live)
	}
}

type journal func(load.Change)

func (j journal) Record(c load.Change) { j(c) }

// TestDumpEvents: every rank's blocks come out, with their tiers.
func TestDumpEvents(t *testing.T) {
	r, space, _ := open(t, nil)
	store(t, space, 1, 1, event.Device, 10, 11)
	store(t, space, 2, 0, event.Device, 10)
	store(t, space, 2, 0, event.Disk, 10)
	got := map[string]int{}
	dump := func(stop bool) error {
		return r.DumpEvents(t.Context(), func(id shard.RankID, d shard.Dumped) bool {
			for i, n := range d.Copies {
				got[fmt.Sprint(id.Worker, id.DPRank, d.Event.Tier, d.Event.Engine[i])] += int(n)
			}
			return !stop
		})
	}
	if err := dump(false); err != nil || len(got) != 4 || got["1 1 device 11"] != 1 || got["2 0 disk 10"] != 1 {
		t.Errorf("%v, %v", got, err)
	}
	clear(got)
	if err := dump(true); err != nil || len(got) > 2 {
		t.Errorf("stopped after one event: %v, %v", got, err)
	}
	none, _, _ := open(t, func(c *Config) { c.Index = nil })
	if err := none.DumpEvents(t.Context(), nil); !errors.Is(err, ErrNoDump) {
		t.Errorf("without an index: %v", err)
	}
}

// Thresholds in force are the router's alone, whatever callers do with what they gave or got.
func TestThresholdsAreTheRoutersOwn(t *testing.T) {
	given := Thresholds{DecodeFraction: ptr(0.5), PrefillTokens: ptr(5), PrefillFraction: ptr(0.5)}
	r, _, _ := open(t, func(c *Config) { c.Settings.Busy = given })
	spoil := func(h Thresholds) { *h.DecodeFraction, *h.PrefillTokens, *h.PrefillFraction = 7, -7, -7 }
	unchanged := func(after string) {
		if got := r.Thresholds(); *got.DecodeFraction != 0.5 || *got.PrefillTokens != 5 || *got.PrefillFraction != 0.5 {
			t.Errorf("after %s: %v %v %v", after, *got.DecodeFraction, *got.PrefillTokens, *got.PrefillFraction)
		}
	}
	spoil(given)
	unchanged("New")
	spoil(r.Thresholds())
	unchanged("Thresholds")
	change := Thresholds{DecodeFraction: ptr(0.5), PrefillTokens: ptr(5), PrefillFraction: ptr(0.5)}
	got, err := r.SetThresholds(change)
	if err != nil {
		t.Fatal(err)
	}
	spoil(change)
	spoil(got)
	unchanged("SetThresholds")
}
