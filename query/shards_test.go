package query

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/client"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/shard"
)

// identify spreads the oracle's holders over workers of two ranks, with ids
// that need all of 64 bits.
func identify(h core.Holder) shard.RankID {
	return shard.RankID{Worker: 1<<64 - 1 - uint64(h)/2, DPRank: h % 2}
}

// TestHTTPAnswersAreTheOracles applies histories to shards and asks over HTTP:
// the answers are those of the reference index.
func TestHTTPAnswersAreTheOracles(t *testing.T) {
	id := event.Space{Model: "m", BlockSize: 16}
	for _, g := range coretest.Generators() {
		for _, seed := range coretest.Seeds(2) {
			set := shard.New(shard.Config{Shards: 3})
			sp, err := set.Open(id)
			if err != nil {
				t.Fatal(err)
			}
			s := serve(t, Shards{set}, testConfig(t))
			o := core.NewOracle()
			prompts := coretest.NewPrompts(rand.New(rand.NewPCG(seed, 1)))
			for i, op := range g.History(seed) {
				if op.Event.Kind == 0 { // Forget is no event
					continue
				}
				b := event.Batch{Space: id, Worker: identify(op.Holder).Worker, CountCopies: op.Count, Events: []event.Event{op.Event}}
				b.Events[0].DPRank = identify(op.Holder).DPRank
				if _, err := sp.ApplyWait(t.Context(), &b); err != nil {
					t.Fatal(err)
				}
				op.Apply(o)
				prompts.Note(&op)
				if (i+1)%g.Interval != 0 {
					continue
				}
				for range 7 {
					compareAnswer(t, s, o, prompts.Next(o))
				}
				compareForms(t, s, o, prompts.Next(o))
				compareHeld(t, s, o)
				if t.Failed() {
					t.Fatalf("%s, seed %d, operation %d", g.Name, seed, i)
				}
			}
			set.Close()
		}
	}
}

func compareAnswer(t *testing.T, s *served, o *core.Oracle, prompt []uint64) {
	t.Helper()
	hashes := make([]string, len(prompt))
	for i, h := range prompt {
		hashes[i] = strconv.FormatUint(h, 10)
	}
	_, data := s.do(t, "POST", "/v1/find_matches", `{"model":"m","hashes":[`+strings.Join(hashes, ",")+`]}`)
	var m matchesJSON
	if err := json.Unmarshal(data, &m); err != nil || len(m.Spaces) != 1 {
		t.Fatalf("%v in %s", err, data)
	}
	have := map[shard.RankID]coretest.Depths{}
	for _, w := range m.Spaces[0].Workers {
		worker, err := strconv.ParseUint(w.ID, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		longest := 0
		for _, r := range w.Ranks {
			longest = max(longest, r.External)
			have[shard.RankID{Worker: worker, DPRank: uint32(r.DPRank)}] =
				coretest.Depths{uint32(r.Device), uint32(r.HostPinned), uint32(r.Disk), uint32(r.External)}
		}
		if w.Longest != longest || w.Tokens != 16*longest {
			t.Errorf("worker %d: longest %d and tokens %d, of ranks %+v", worker, w.Longest, w.Tokens, w.Ranks)
		}
	}
	want := map[shard.RankID]coretest.Depths{}
	for h, d := range coretest.OracleAnswer(o, prompt) {
		want[identify(h)] = d
	}
	if !maps.Equal(have, want) {
		t.Errorf("prompt %d:\n have %v\n want %v", prompt, have, want)
	}
}

// compareHeld compares what /v1/workers says with the oracle's counts.
func compareHeld(t *testing.T, s *served, o *core.Oracle) {
	t.Helper()
	_, data := s.do(t, "GET", "/v1/workers?model=m", "")
	var all struct {
		Spaces []struct {
			Workers []struct {
				ID    string `json:"worker_id"`
				Ranks []struct {
					DPRank     uint32 `json:"dp_rank"`
					Device     int
					HostPinned int `json:"host_pinned"`
					Disk       int
					External   int
				}
			}
		}
	}
	if err := json.Unmarshal(data, &all); err != nil || len(all.Spaces) != 1 {
		t.Fatalf("%v in %s", err, data)
	}
	have := map[string]string{}
	var order []string
	for _, w := range all.Spaces[0].Workers {
		order = append(order, fmt.Sprintf("%20s", w.ID))
		for _, r := range w.Ranks {
			if n := [4]int{r.Device, r.HostPinned, r.Disk, r.External}; n != [4]int{} {
				have[fmt.Sprint(w.ID, "/", r.DPRank)] = fmt.Sprint(n)
			}
		}
	}
	want := map[string]string{}
	for _, h := range o.Holders() {
		id := identify(h)
		n := [4]int{}
		for tier := range n {
			n[tier] = o.Held(h, event.Tier(tier))
		}
		if n != [4]int{} {
			want[fmt.Sprint(id.Worker, "/", id.DPRank)] = fmt.Sprint(n)
		}
	}
	if !maps.Equal(have, want) || !slices.IsSorted(order) {
		t.Errorf("held:\n have %v\n want %v\n order %v", have, want, order)
	}
}

// fleet is an index of 64 workers of two ranks that all hold one prompt of n
// blocks, to different depths.
func fleet(t testing.TB, n int) (*shard.Set, []uint64) {
	t.Helper()
	set := shard.New(shard.Config{})
	t.Cleanup(set.Close)
	sp, err := set.Open(event.Space{Model: "m", BlockSize: 16})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	local, engine := make([]uint64, n), make([]uint64, n)
	for i := range local {
		local[i], engine[i] = r.Uint64(), r.Uint64()
	}
	for w := range 64 {
		for dp := range 2 {
			depth := 1 + r.IntN(n)
			b := event.Batch{Space: sp.Key(), Worker: uint64(w), Events: []event.Event{
				{Kind: event.Stored, DPRank: uint32(dp), ID: 1, Engine: engine[:depth], Local: local[:depth]},
			}}
			if _, err := sp.ApplyWait(t.Context(), &b); err != nil {
				t.Fatal(err)
			}
		}
	}
	return set, local
}

func findBody(local []uint64) []byte {
	body := []byte(`{"model":"m","hashes":[`)
	for i, h := range local {
		if i > 0 {
			body = append(body, ',')
		}
		body = strconv.AppendUint(body, h, 10)
	}
	return append(body, "]}"...)
}

// TestConcurrentRequestsShareNothing asks different prompts at once: scratch
// memory is never of two requests.
// Where a worker's model has more than full attention every form of the answer says that
// it is an estimate; elsewhere none does.
func TestAnswersSayThatTheyAreEstimated(t *testing.T) {
	set := shard.New(shard.Config{})
	defer set.Close()
	s := serve(t, Shards{set}, testConfig(t))
	for i, model := range []string{"plain", "hybrid"} {
		sp, err := set.Open(event.Space{Model: model, BlockSize: 4})
		if err != nil {
			t.Fatal(err)
		}
		b := event.Batch{Space: sp.Key(), Worker: 7, Hybrid: i == 1, Events: []event.Event{{Kind: event.Stored, Engine: []uint64{1}, Local: []uint64{1}}}}
		if _, err := sp.ApplyWait(t.Context(), &b); err != nil {
			t.Fatal(err)
		}
	}
	for model, want := range map[string]bool{"plain": false, "hybrid": true} {
		body := `{"model":"` + model + `","hashes":[1]}`
		for _, path := range []string{"/v1/find_matches", "/v1/explain"} {
			if _, data := s.do(t, "POST", path, body); strings.Contains(string(data), `"estimated":true`) != want {
				t.Errorf("%s: %s", path, data)
			}
		}
		for _, binary := range []bool{false, true} {
			c, err := client.New(client.Config{URL: s.url, Binary: binary})
			if err != nil {
				t.Fatal(err)
			}
			m, err := c.FindMatches(t.Context(), client.Find{Model: model, Hashes: []uint64{1}})
			if err != nil || len(m.Spaces) != 1 || m.Spaces[0].Estimated != want {
				t.Errorf("%s, binary %v: %+v, %v", model, binary, m, err)
			}
		}
	}
}

func TestConcurrentRequestsShareNothing(t *testing.T) {
	set, local := fleet(t, 64)
	s := serve(t, Shards{set}, testConfig(t))
	var want []string
	for n := range 8 {
		_, data := s.do(t, "POST", "/v1/find_matches", string(findBody(local[:8*n+1])))
		want = append(want, string(data))
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 50 {
				n := (g + i) % len(want)
				if _, data := s.do(t, "POST", "/v1/find_matches", string(findBody(local[:8*n+1]))); string(data) != want[n] {
					t.Errorf("%d blocks: got %s, want %s", 8*n+1, data, want[n])
					return
				}
			}
		})
	}
	wg.Wait()
}

// readyIndex is an index of one space whose answers are ready, so that what
// is measured is the server's own work.
type readyIndex struct {
	spaces []event.Space
	ranks  []rankDepth
}

func (x *readyIndex) Spaces() []event.Space   { return x.spaces }
func (x *readyIndex) Space(event.Space) Space { return x }
func (x *readyIndex) Eagle() bool             { return false }
func (x *readyIndex) Hybrid() bool            { return false }
func (x *readyIndex) Pools() []shard.PoolStat { return nil }
func (x *readyIndex) Ranks() []shard.RankStat { return nil }

func (x *readyIndex) BeginDump(context.Context, shard.RankID) (func(), func(context.Context) ([]shard.Dumped, error), error) {
	return func() {}, func(context.Context) ([]shard.Dumped, error) { return nil, nil }, nil
}

func (x *readyIndex) Unfold(dst, _ []uint64) []uint64 { return dst }

func (x *readyIndex) Find(_ []uint64, f *Found) {
	f.ranks = append(f.ranks, x.ranks...)
}

// BenchmarkHandler measures the whole handler without a socket and without an
// index, for 64 workers of two ranks, beside the cheapest route.
func BenchmarkHandler(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	x := &readyIndex{spaces: []event.Space{{Model: "m", BlockSize: 16}}}
	for i := range 128 {
		d := uint32(1 + r.IntN(512))
		x.ranks = append(x.ranks, rankDepth{rank(uint64(i)/2, uint32(i)%2), [event.NumTiers]uint32{d, d, d, d}, 0})
	}
	s := serve(b, x, testConfig(b))
	run := func(name, path string, body []byte) {
		b.Run(name, func(b *testing.B) {
			var ctx fasthttp.RequestCtx
			ctx.Request.SetRequestURI(path)
			if body != nil {
				ctx.Request.Header.SetMethod("POST")
				ctx.Request.SetBodyRaw(body)
			}
			b.ReportAllocs()
			for b.Loop() {
				s.handle(&ctx)
				if ctx.Response.StatusCode() != 200 {
					b.Fatal(string(ctx.Response.Body()))
				}
			}
		})
	}
	run("livez", "/livez", nil)
	for _, n := range []int{64, 512} {
		local := make([]uint64, n)
		for i := range local {
			local[i] = r.Uint64()
		}
		run(fmt.Sprintf("hashes=%d", n), "/v1/find_matches", findBody(local))
	}
	run("tokens=8192", "/v1/find_matches",
		[]byte(`{"model":"m","token_ids":[`+strings.Repeat("128256,", 8191)+`1]}`))
}

// TestAnsweringAllocatesNothing holds the handler to its scratch memory.
func TestAnsweringAllocatesNothing(t *testing.T) {
	racetest.Without(t, "the race detector makes sync.Pool drop some of its content")
	set, local := fleet(t, 64)
	s := serve(t, Shards{set}, testConfig(t))
	var ctx fasthttp.RequestCtx
	ctx.Request.SetRequestURI("/v1/find_matches")
	ctx.Request.Header.SetMethod("POST")
	for _, body := range [][]byte{
		findBody(local),
		[]byte(`{"model":"m","token_ids":[` + strings.Repeat("7, ", 99) + `7]}`),
	} {
		ctx.Request.SetBody(body)
		if n := testing.AllocsPerRun(200, func() { s.handle(&ctx) }); n != 0 || ctx.Response.StatusCode() != 200 {
			t.Errorf("%.60s…: %v allocations, status %d", body, n, ctx.Response.StatusCode())
		}
	}
}

// TestEarlyExitAndTreeSizes asks over HTTP for a chain that one worker has in
// full and two begin.
func TestEarlyExitAndTreeSizes(t *testing.T) {
	id := event.Space{Model: "m", BlockSize: 16}
	set := shard.New(shard.Config{})
	t.Cleanup(set.Close)
	sp, err := set.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	store := func(worker uint64, rank uint32, hashes ...uint64) {
		t.Helper()
		ev := event.Event{Kind: event.Stored, DPRank: rank, Engine: hashes, Local: hashes}
		if _, err := sp.ApplyWait(t.Context(), &event.Batch{Space: id, Worker: worker, Events: []event.Event{ev}}); err != nil {
			t.Fatal(err)
		}
	}
	store(1, 0, 1, 2)
	store(1, 1, 1, 2, 3)
	store(2, 0, 1, 2)
	// Another way on after the second block, where worker 1 is alone.
	store(1, 1, 1, 2, 9, 10)
	store(1, 1, 20, 21)
	s := serve(t, Shards{set}, testConfig(t))
	for body, want := range map[string]string{
		`{"model":"m","hashes":[1,2,3],"tree_sizes":true,"early_exit":false}`: `{"model":"m","spaces":[{"group":"","block_size":16,"blocks":3,"workers":[` +
			`{"worker_id":"1","device":3,"host_pinned":3,"disk":3,"external":3,"longest":3,"tokens":48,"tree_size":9,"ranks":[` +
			`{"dp_rank":0,"device":2,"host_pinned":2,"disk":2,"external":2,"tree_size":2},` +
			`{"dp_rank":1,"device":3,"host_pinned":3,"disk":3,"external":3,"tree_size":7}]},` +
			`{"worker_id":"2","device":2,"host_pinned":2,"disk":2,"external":2,"longest":2,"tokens":32,"tree_size":2,"ranks":[` +
			`{"dp_rank":0,"device":2,"host_pinned":2,"disk":2,"external":2,"tree_size":2}]}]}]}` + "\n",
	} {
		if resp, got := s.do(t, "POST", "/v1/find_matches", body); resp.StatusCode != 200 || string(got) != want {
			t.Errorf("%s:\n%d %s, want\n%s", body, resp.StatusCode, got, want)
		}
	}
	// With early exit, who is left is the same and the depth at most the true one.
	var r, early shard.Result
	early.EarlyExit = true
	chain := []uint64{1, 2, 9, 10}
	sp.Find(chain, &r)
	sp.Find(chain, &early)
	depths := func(r *shard.Result) map[shard.RankID]uint32 {
		m := map[shard.RankID]uint32{}
		r.Each(func(id shard.RankID, d [event.NumTiers]uint32) { m[id] = d[0] })
		return m
	}
	full, some := depths(&r), depths(&early)
	if len(full) != 3 || len(some) != 3 {
		t.Fatalf("%v, with early exit %v", full, some)
	}
	for id, d := range some {
		if d > full[id] || d < 2 {
			t.Errorf("%v: depth %d with early exit, in truth %d", id, d, full[id])
		}
	}
	for _, body := range []string{`{"model":"m","hashes":[1],"early_exit":1}`, `{"model":"m","hashes":[1],"tree_sizes":"true"}`} {
		if resp, got := s.do(t, "POST", "/v1/find_matches", body); resp.StatusCode != 400 {
			t.Errorf("%s: %d %s", body, resp.StatusCode, got)
		}
	}
}
