package route

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// peerFleet is an autoFleet whose workers are Peers.
func peerFleet(tb testing.TB, n int, local []uint64) (*Router, *auto, *clock) {
	tb.Helper()
	r, a, c := autoFleet(tb, n, local)
	for _, w := range workers(n) {
		w.Peer = true
		if err := r.SetWorker(w); err != nil {
			tb.Fatal(err)
		}
	}
	return r, a, c
}

// busy has a worker compute other prompts, for about 280 ms.
func busy(t *testing.T, r *Router, worker uint64) {
	t.Helper()
	for i := range 2 {
		best(t, r, Prompt{Local: numbers(100_000*(i+1), 2000)}, Options{Pull: true, RequestID: fmt.Sprint("busy", worker, i), Worker: &worker})
	}
}

// A request whose prefix is with a busy worker goes to a free one, which fetches it; not where it
// would compute it as soon, nor where one of the two is no peer, or the prefix is short.
func TestPullFromABusyWorker(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens
	p := Prompt{Local: local, Length: 8010}
	r, a, _ := peerFleet(t, 3, local)
	if got := best(t, r, p, Options{Pull: true}); got.Worker != 1 || got.Pull != (Pull{}) {
		t.Fatalf("an idle fleet: worker %d fetches %+v, want 1, which holds the prompt", got.Worker, got.Pull)
	}
	busy(t, r, 1)
	got := best(t, r, p, Options{Pull: true, RequestID: "a", Explain: true})
	if got.Worker == 1 || got.Pull != (Pull{a1(1), 8000}) || got.NewTokens != 4010 || got.CachedTokens != 0 {
		t.Fatalf("worker %d with %d new tokens fetches %+v", got.Worker, got.NewTokens, got.Pull)
	}
	if a := got.Account; a.Selected != 8000 || a.Reachable != 8000 || a.Why != account.NoShortfall || a.Best != a1(1) {
		t.Errorf("the account is %+v", a)
	}
	said := false
	for _, e := range got.Ranks {
		said = said || e.RankID == got.RankID && strings.Contains(e.Formula, "fetching 8000 tokens from worker 1)")
	}
	if !said {
		t.Errorf("no formula says what is fetched: %+v", got.Ranks)
	}
	if again := best(t, r, p, Options{Pull: true}); again.Pull != (Pull{}) {
		t.Errorf("a second fetch over the same link, which takes as long as to compute: %+v", again.Pull)
	}
	r.MarkPrefillComplete("a")
	if again := best(t, r, p, Options{Pull: true}); again.Pull.Tokens == 0 || a.pulling(again.slot)+a.pulling(0) != 0 {
		t.Errorf("with the first one over: %+v", again.Pull)
	}
	whole := best(t, r, Prompt{Local: local, Length: 8000}, Options{Pull: true}) // the last token is computed wherever it goes
	if a := whole.Account; whole.Pull.Tokens != 7999 || a.Selected != 7999 || a.Reachable != 7999 || a.Why != account.NoShortfall {
		t.Errorf("of a prompt that ends with a block %+v is fetched, and the account is %+v", whole.Pull, a)
	}
	if short := best(t, r, Prompt{Local: local[:1], Length: 4}, Options{Pull: true}); short.Pull != (Pull{}) {
		t.Errorf("of one block: %+v", short.Pull)
	}
	for _, peers := range []int{0, 1} { // the first ones
		ws := workers(3)
		for i := range ws {
			ws[i].Peer = i < peers
			if err := r.SetWorker(ws[i]); err != nil {
				t.Fatal(err)
			}
		}
		if alone := best(t, r, p, Options{Pull: true}); alone.Pull != (Pull{}) || alone.Account.Selected != alone.CachedTokens {
			t.Errorf("%d peers: %+v", peers, alone.Pull)
		}
	}
}

// With no peers, or one, choices are to the bit what they are without.
func TestWithoutPeersNothingChanges(t *testing.T) {
	local := numbers(1, 500)
	r, _, c := autoFleet(t, 4, local)
	o, _, d := autoFleet(t, 4, local)
	if err := o.SetWorker(Worker{ID: 1, Peer: true}); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(20, 5))
	for i := range 300 {
		id, p := fmt.Sprint(i), Prompt{Local: numbers(1+rng.IntN(3)*100_000, 1+rng.IntN(800))}
		x, y := best(t, r, p, Options{Pull: true, RequestID: id}), best(t, o, p, Options{Pull: true, RequestID: id})
		if x.RankID != y.RankID || x.Cost != y.Cost || x.NewTokens != y.NewTokens || y.Pull != (Pull{}) {
			t.Fatalf("request %d: %+v, %+v", i, x.Candidate, y.Candidate)
		}
		after := time.Duration(rng.IntN(100)) * time.Millisecond
		c.add(after)
		d.add(after)
		if old := fmt.Sprint(i - 4); i > 4 {
			for _, router := range []*Router{r, o} {
				router.MarkPrefillComplete(old)
				router.Output(old, 3)
				router.Free(old)
			}
		}
	}
}

// What a fetched token takes is learned from first tokens.
func TestPullsAreLearned(t *testing.T) {
	for _, part := range []float64{0.05, 0.3, 0.6} {
		r, a, c := peerFleet(t, 2, nil)
		rng := rand.New(rand.NewPCG(1, 9))
		for i := range 600 {
			n, to := 10+rng.IntN(3000), uint64(2)
			local := numbers(10_000*(i+1), n)
			if i%3 == 0 {
				onHost(t, r, 1, local)
			}
			got := best(t, r, Prompt{Local: local, Length: 4*n + 1}, Options{Pull: true, RequestID: fmt.Sprint(i), Worker: &to})
			got.NewTokens = 4*n + 1 - got.Pull.Tokens + int(part*float64(got.Pull.Tokens))
			serve(r, c, got, fmt.Sprint(i), n, 0.05*(0.8+0.4*rng.Float64()), 20)
		}
		if v := a.speeds.loads[pulled].after(pullCredit, pullTaught); v < part*0.8-0.03 || v > part*1.2+0.03 {
			t.Errorf("fetching takes %.3f of computing, want %.3f", v, part)
		}
	}
}

// What does not come is counted, said to be so, and expected less; after a minute it is tried
// again, and what comes then is.
func TestPullsThatDoNotCome(t *testing.T) {
	local := numbers(1, 2000)
	r, _, c := peerFleet(t, 2, local)
	p, to := Prompt{Local: local, Length: 8010}, uint64(2)
	ask := func(id string, cached int) (Account, bool) {
		t.Helper()
		got := best(t, r, p, Options{Pull: true, RequestID: id, Worker: &to})
		defer r.Free(id)
		a, ok := r.Reported(id, Whole, p, Usage{Prompt: 8010, Cached: cached})
		if !ok {
			t.Fatal("nothing was expected")
		}
		return a, got.Pull.Tokens > 0
	}
	if a, asked := ask("first", 8000); !asked || a.Miss != account.NoMiss || a.Actual != 8000 {
		t.Errorf("it came: %+v, fetched %v", a, asked)
	}
	tries := 0
	for ; ; tries++ {
		a, asked := ask(fmt.Sprint(tries), 0)
		if !asked {
			break
		}
		if a.Miss != account.NotPulled || a.Selected != 8000 || a.Actual != 0 {
			t.Fatalf("it did not come: %+v", a)
		}
		if c.add(time.Second); tries > 20 {
			t.Fatal("it is believed for ever")
		}
	}
	st, totals := r.Stats(), r.Totals()
	if st.Pulled != 1 || st.NotPulled != uint64(tries) || totals.Fewer[account.NotPulled].Requests != uint64(tries) || tries == 0 {
		t.Errorf("%d came, %d did not of %d; the account has %+v", st.Pulled, st.NotPulled, tries, totals.Fewer)
	}
	if st.Contradicted != 0 || r.member(a1(2)).belief.doubted {
		t.Error("the index is doubted for it")
	}
	c.add(2 * pullOld)
	if _, asked := ask("again", 8000); !asked {
		t.Error("after a minute it is not tried again")
	}
}

// A source is one that is there, and known: not a drained one, nor one whose events are missing;
// of equal ones that which gives least.
func TestWhoIsASource(t *testing.T) {
	local := numbers(1, 2000)
	r, _, _ := peerFleet(t, 4, local)
	onHost(t, r, 2, local)
	store(t, r.cfg.Index.(*shard.Space), 3, 0, event.Device, local[:1000]...)
	p, to := Prompt{Local: local, Length: 8010}, uint64(4)
	from := func() uint64 {
		t.Helper()
		return best(t, r, p, Options{Pull: true, Worker: &to}).Pull.From.Worker
	}
	if id := from(); id != 1 && id != 2 {
		t.Errorf("worker %d gives it, want one that has all", id)
	}
	if err := r.Drain(1, true); err != nil {
		t.Fatal(err)
	}
	if id := from(); id != 2 {
		t.Errorf("worker %d gives it, want 2", id)
	}
	if err := r.Drain(1, false); err != nil {
		t.Fatal(err)
	}
	// Nor one that the request has failed at, or may not go to; nor one at which requests fail.
	for _, o := range []Options{{Excluded: []uint64{1}}, {Allowed: []uint64{2, 4}}} {
		o.Pull, o.Worker = true, &to
		if id := best(t, r, p, o).Pull.From.Worker; id != 2 {
			t.Errorf("with %v excluded of %v worker %d gives it, want 2", o.Excluded, o.Allowed, id)
		}
	}
	fail := func(worker uint64, f Failure) {
		t.Helper()
		for i := range 20 {
			id := fmt.Sprint("fails", i)
			best(t, r, Prompt{Local: numbers(900_000, 1)}, Options{RequestID: id, Worker: &worker})
			r.Failed(id, Whole, f)
			r.Free(id)
		}
	}
	fail(1, Failure{})
	if id := from(); id != 2 {
		t.Errorf("worker %d gives it, want 2: at 1 requests fail", id)
	}
	if fail(2, Failure{Full: true, RetryAfter: time.Minute}); from() != 2 {
		t.Error("a worker that has no room for requests gives nothing")
	}
	if err := r.Drain(2, true); err != nil {
		t.Fatal(err)
	}
	if id := from(); id != 3 {
		t.Errorf("worker %d gives it, want 3", id)
	}
}

// A prefill worker fetches what another worker has, a decode worker, too, as one that does both parts does; not from one
// that the request has failed at, and the decode worker fetches nothing.
func TestPrefillWorkersPull(t *testing.T) {
	local := numbers(1, 2000)
	r, a, _ := peerFleet(t, 4, local)
	ws := workers(4)
	for i := range ws {
		ws[i].Peer, ws[i].Role = true, []Role{Decode, Prefill, Prefill, Decode}[i]
		if err := r.SetWorker(ws[i]); err != nil {
			t.Fatal(err)
		}
	}
	pair := func(id string, o Options) Pair {
		t.Helper()
		o.Pull, o.RequestID = true, id
		got, err := r.BestPair(t.Context(), Prompt{Local: local, Length: 8010}, o)
		if err != nil || got.Prefill == nil {
			t.Fatal(got, err)
		}
		return got
	}
	got := pair("a", Options{})
	if got.Prefill.Pull != (Pull{a1(1), 8000}) || got.Decode.Pull != (Pull{}) || got.Prefill.Account.Selected != 8000 || a.pulling(0) != 1 {
		t.Fatalf("prefill worker %d fetches %+v, decode worker %d %+v, %d are under way", got.Prefill.Worker, got.Prefill.Pull, got.Decode.Worker, got.Decode.Pull, a.pulling(0))
	}
	account, ok := r.Reported("a", PrefillStage, Prompt{Local: local, Length: 8010}, Usage{Prompt: 8010, Cached: 8000})
	if !ok || account.Miss != 0 || r.Stats().Pulled != 1 {
		t.Errorf("what came is told as %+v, %v; %d came", account, ok, r.Stats().Pulled)
	}
	if r.FreeStage("a", PrefillStage); a.pulling(0) != 0 {
		t.Error("it is under way when the prefill worker is done")
	}
	r.Free("a")
	if got := pair("b", Options{Excluded: []uint64{1}}); got.Prefill.Pull != (Pull{}) {
		t.Errorf("from one that the request has failed at: %+v", got.Prefill.Pull)
	}
}

// Of a model with several caches what is fetched is what all of them allow to reuse, where streams say it; where depths are
// estimates nothing is, and the formula says so.
func TestPullsOfHybridModels(t *testing.T) {
	local := numbers(1, 2000)
	r, _, _ := peerFleet(t, 2, local)
	sp := r.cfg.Index.(*shard.Space)
	sp.MarkHybrid()
	r.cfg.Estimated = sp.Hybrid
	p, to := Prompt{Local: local, Length: 8010}, uint64(2)
	pull := func() (Pull, string) {
		t.Helper()
		got := best(t, r, p, Options{Pull: true, Worker: &to, Explain: true})
		for _, e := range got.Ranks {
			if e.RankID == got.RankID {
				return got.Pull, e.Formula
			}
		}
		return got.Pull, ""
	}
	if got, formula := pull(); got != (Pull{}) || !strings.Contains(formula, "nothing is fetched: depths are estimates") {
		t.Errorf("with estimates %+v is fetched: %s", got, formula)
	}
	for w := uint64(1); w <= 2; w++ {
		sp.SetCacheGroups(w, []event.CacheGroup{{Number: 0, Kind: "full_attention", BlockSize: 4}, {Number: 1, Kind: "sliding_window", BlockSize: 4, Span: 9}})
	}
	window := &event.Batch{Space: sp.Key(), Worker: 1, Events: []event.Event{{Kind: event.Stored, Group: 1, Engine: local[1400:1500]}}}
	if _, err := sp.ApplyWait(t.Context(), window); err != nil {
		t.Fatal(err)
	}
	if got, formula := pull(); got != (Pull{a1(1), 6000}) {
		t.Errorf("%+v is fetched, want what window and full attention allow: %s", got, formula)
	}
}

// Another router's fetches share the links with this one's, from when it tells of them until their prompts are there or
// their bookings go, however that comes to be known; one that is told late is over.
func TestOtherRoutersPulls(t *testing.T) {
	local := numbers(1, 2000)
	r, a, _ := peerFleet(t, 3, local)
	o, _, _ := peerFleet(t, 3, local)
	r.cfg.ID, o.cfg.ID = 1, 2
	var told []load.Change
	o.SetJournal(journal(func(c load.Change) { told = append(told, c) }))
	p, to := Prompt{Local: local, Length: 8010}, uint64(2)
	ends := map[string]func(k load.Key){
		"prefilled":   func(k load.Key) { r.Apply(load.Change{Kind: load.Prefilled, Key: k}) },
		"freed":       func(k load.Key) { r.Apply(load.Change{Kind: load.Freed, Key: k}) },
		"router gone": func(load.Key) { r.DropOwner(2) },
		"resynced":    func(load.Key) { r.Replace(2, func(func(load.Change) bool) {}) },
	}
	for how, end := range ends {
		told = nil
		if got := best(t, o, p, Options{Pull: true, Worker: &to, RequestID: how}); got.Pull.Tokens == 0 {
			t.Fatalf("%s: nothing is fetched", how)
		}
		if len(told) != 2 || told[0].Kind != load.Added || told[1].Kind != load.Fetched || told[1].Rank != a1(1) {
			t.Fatalf("%s: told %+v", how, told)
		}
		o.Free(how)
		r.Apply(told[1]) // before what it is of
		if a.pulling(0) != 0 {
			t.Fatalf("%s: a fetch of no booking counts", how)
		}
		for _, c := range []load.Change{told[0], told[1], told[1]} {
			r.Apply(c)
		}
		if a.pulling(0) != 1 {
			t.Errorf("%s: %d are under way", how, a.pulling(0))
		}
		if got := best(t, r, p, Options{Pull: true, Worker: &to}); got.Pull != (Pull{}) {
			t.Errorf("%s: a second fetch over the same link: %+v", how, got.Pull)
		}
		if end(told[0].Key); a.pulling(0) != 0 || len(a.away) != 0 {
			t.Errorf("%s: %d are under way still", how, a.pulling(0))
		}
		r.Apply(told[1])
		if a.pulling(0) != 0 {
			t.Errorf("%s: one that is told late counts", how)
		}
		r.DropOwner(2)
		r.Apply(load.Change{Kind: load.Freed, Key: told[0].Key})
	}
}
