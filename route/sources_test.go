package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// fetchFrom has worker `to` fetch other prompts that only the rank has, until so many fetches are under way from it.
func fetchFrom(t *testing.T, r *Router, from shard.RankID, to uint64, n int) {
	t.Helper()
	for i := range n {
		local := numbers(5_000_000+10_000*(100*int(from.Worker)+i), 1000)
		store(t, r.cfg.Index.(*shard.Space), from.Worker, from.DPRank, event.Device, local...)
		id := fmt.Sprint("link", from, to, i)
		if got := best(t, r, Prompt{Local: local, Length: 4001}, Options{Pull: true, RequestID: id, Worker: &to}); got.Pull.From != from {
			t.Fatalf("worker %d fetches %+v, want it of %v", to, got.Pull, from)
		}
	}
}

// A source that has less of the prompt is the better one where nothing is fetched from it and much from that which has
// most; where that is free, it is not. What is chosen is what formulas and accounts say.
func TestAShallowerSourceThatIsFree(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens
	r, a, _ := peerFleet(t, 4, local)
	store(t, r.cfg.Index.(*shard.Space), 2, 0, event.Device, local[:1500]...)
	p, to := Prompt{Local: local, Length: 8010}, uint64(4)
	if got := best(t, r, p, Options{Pull: true, Worker: &to}); got.Pull != (Pull{a1(1), 8000}) {
		t.Errorf("of two free sources %+v is fetched", got.Pull)
	}
	fetchFrom(t, r, a1(1), 3, 1)
	got := best(t, r, p, Options{Pull: true, Worker: &to, RequestID: "a", Explain: true})
	if got.Pull != (Pull{a1(2), 6000}) || got.NewTokens != 5010 || got.Account.PullFrom != a1(2) || got.Account.Selected != 6000 {
		t.Errorf("with the link of the deepest one in use %+v is fetched, with %d new tokens, and the account is %+v", got.Pull, got.NewTokens, got.Account)
	}
	said := false
	for _, e := range got.Ranks {
		said = said || e.RankID == got.RankID && strings.Contains(e.Formula, "fetching 6000 tokens from worker 2)")
	}
	if !said {
		t.Errorf("no formula says what is fetched: %+v", got.Ranks)
	}
	if a.pulling(r.member(a1(2)).slot) != 1 {
		t.Error("the fetch is not counted over its source's link")
	}
	// All links are in use: at first a fetch among others takes as long as to compute.
	if got := best(t, r, p, Options{Pull: true, Worker: &to}); got.Pull != (Pull{}) {
		t.Errorf("over links in use %+v is fetched", got.Pull)
	}
	// Links are found to be fast: then those that have more give it, however many others fetch.
	a.speeds.loads[pulled] = loadTime{spent: 1, computing: 1e6}
	to = 3 // fetches as many already as the deepest one gives
	if got := best(t, r, p, Options{Pull: true, Worker: &to}); got.Pull != (Pull{a1(1), 8000}) {
		t.Errorf("over fast links %+v is fetched", got.Pull)
	}
}

// A rank whose worker's other rank has most of the prompt, of which it can fetch nothing, fetches what another worker has.
func TestASourceForTheDeepestWorkersOtherRank(t *testing.T) {
	local := numbers(1, 2000)
	r, _, _ := peerFleet(t, 3, local)
	if err := r.SetWorker(Worker{ID: 1, Ranks: 2, Peer: true}); err != nil {
		t.Fatal(err)
	}
	store(t, r.cfg.Index.(*shard.Space), 2, 0, event.Device, local[:1500]...)
	p, to, rank := Prompt{Local: local, Length: 8010}, uint64(1), uint32(1)
	if got := best(t, r, p, Options{Pull: true, Worker: &to, DPRank: &rank}); got.RankID.DPRank != 1 || got.Pull != (Pull{a1(2), 6000}) {
		t.Errorf("%v fetches %+v", got.RankID, got.Pull)
	}
	to = 3
	if got := best(t, r, p, Options{Pull: true, Worker: &to}); got.Pull != (Pull{a1(1), 8000}) {
		t.Errorf("%v fetches %+v", got.RankID, got.Pull)
	}
}

// Each rank is weighed with the source that leaves it fewest tokens to compute: of all of them, if what each candidate
// would save with each rank is reckoned by itself.
func TestSourcesAgainstAllOfThem(t *testing.T) {
	other, second, fetched := 0, 0, 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 20))
		n := 2 + rng.IntN(7)
		local := numbers(1, 400)
		r, a, c := peerFleet(t, n, nil)
		sp := r.cfg.Index.(*shard.Space)
		for id := uint64(1); id <= uint64(n); id++ {
			w := Worker{ID: id, Ranks: uint32(1 + rng.IntN(3)/2), Peer: rng.IntN(8) > 0}
			if err := r.SetWorker(w); err != nil {
				t.Fatal(err)
			}
			for rank := range w.Ranks {
				if have := rng.IntN(5) * 100 * rng.IntN(2); have > 0 || rng.IntN(2) == 0 {
					store(t, sp, id, rank, event.Device, local[:min(have+rng.IntN(3), 400)]...)
				}
			}
		}
		if rng.IntN(2) == 0 {
			each := 0.1 + 0.7*rng.Float64()
			a.speeds.loads[pulled], a.fetched = loadTime{spent: 1e6 * each, computing: 1e6}, c.Now()
		}
		for _, m := range r.members {
			if rng.IntN(2) == 0 {
				a.link(m.slot, m.slot, 0)
				a.fetching[m.slot] = rng.IntN(4)
			}
			if rng.IntN(4) == 0 {
				m.pulls.learn(8000, 2000*rng.IntN(5), c.Now())
			}
		}
		p := Prompt{Local: local, Length: 1600 + rng.IntN(3)}
		got := best(t, r, p, Options{Pull: true, Explain: true})
		for _, e := range got.Ranks {
			want, from := 0, shard.RankID{}
			deepest := source{}
			for _, m := range r.members {
				has := min(4*depthOf(sp, local, m.RankID), p.Length)
				if !m.worker.Peer || has == 0 {
					continue
				}
				if f := (source{RankID: m.RankID, tokens: has, fetches: a.pulling(m.slot)}); has > deepest.tokens || has == deepest.tokens && f.fetches < deepest.fetches {
					deepest = f
				}
				if k := min(has, p.Length-1) - e.CachedTokens; e.peer && k >= 4 && m.Worker != e.Worker {
					part := a.pullTime(c.Now()) * float64(1+max(a.pulling(m.slot), a.pulling(e.slot)))
					part = 1 - (1-part)*m.pulls.part(c.Now())
					if s := k - int(math.Ceil(part*float64(k)-1e-9)); part < pullWorth && s > want {
						want, from = s, m.RankID
					}
				}
			}
			if saved := p.Length - e.CachedTokens - e.NewTokens; saved < want-1 || saved > want+1 || (e.Pull.Tokens > 0) != (saved > 0) {
				t.Fatalf("seed %d: %v saves %d tokens with %+v, want %d with %v", seed, e.RankID, saved, e.Pull, want, from)
			}
			if e.Pull.Tokens > 0 {
				fetched++
				if deepest.Worker == e.Worker {
					second++
				} else if e.Pull.From != deepest.RankID {
					other++
				}
			}
		}
	}
	if fetched < 100 || other < 20 || second < 10 {
		t.Errorf("%d fetches, %d of another source than the deepest, %d of another as the deepest is the worker itself: too few to tell", fetched, other, second)
	}
}

// depthOf returns how many leading blocks the index has of the rank.
func depthOf(sp *shard.Space, local []uint64, id shard.RankID) (n int) {
	var res shard.Result
	sp.Find(local, &res)
	res.EachMember(func(k shard.Member, depth [event.NumTiers]uint32) {
		if k.ID() == id {
			n = int(depth[event.HostPinned])
		}
	})
	return n
}

// BenchmarkSelectOfPeers is one choice where workers fetch from each other, some links being in use.
func BenchmarkSelectOfPeers(b *testing.B) {
	for _, workers := range []int{8, 64, 512} {
		b.Run(fmt.Sprintf("workers=%d", workers), func(b *testing.B) {
			local := prompt(512)
			r, _ := fleet(b, workers, local, nil)
			for w := range uint64(workers) {
				if err := r.SetWorker(Worker{ID: w, TotalBlocks: 1 << 20, Peer: true}); err != nil {
					b.Fatal(err)
				}
			}
			a := r.policy.(*auto)
			a.speeds.loads[pulled], a.fetched = loadTime{spent: 2e5, computing: 1e6}, time.Now()
			for _, m := range r.members {
				a.link(m.slot, m.slot, int(m.Worker%3/2))
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := r.BestWorker(b.Context(), Prompt{Local: local}, Options{Pull: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
