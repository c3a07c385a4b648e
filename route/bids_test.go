package route

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// word is one router's change on its way to the others.
type word struct {
	from int
	load.Change
}

// meeting is routers whose words come to the others all at once, when told says so.
type meeting struct {
	routers []*Router
	words   []word
	now     time.Time
}

const wordTime = time.Millisecond

// meet makes routers of ranks, of which rank 1 has the blocks of numbers(1, 100).
func meet(t *testing.T, routers, ranks int) *meeting {
	t.Helper()
	m := &meeting{now: time.Unix(1000, 0)}
	for i := range routers {
		r, space, _ := open(t, func(c *Config) {
			c.Settings.Mode, c.ID, c.Settings.Seed = "auto", uint64(i+1), uint64(i)
			c.Now = func() time.Time { return m.now }
		}, workers(ranks)...)
		store(t, space, 1, 0, 0, numbers(1, 100)...)
		r.SetDelay(wordTime, wordTime)
		r.SetJournal(journal(func(c load.Change) {
			c.Ranks = slices.Clone(c.Ranks)
			m.words = append(m.words, word{i, c})
		}))
		m.routers = append(m.routers, r)
	}
	for _, r := range m.routers {
		for _, o := range m.routers {
			r.Replace(o.cfg.ID, func(func(load.Change) bool) {})
		}
	}
	return m
}

// told lets a word's time pass.
func (m *meeting) told() {
	m.now = m.now.Add(wordTime)
	words := m.words
	m.words = nil
	for _, w := range words {
		for i, r := range m.routers {
			if i != w.from {
				r.Apply(w.Change)
			}
		}
	}
}

// at has a router choose for a request that would wait. The settling is 0 if it has chosen.
func (m *meeting) at(t *testing.T, router int, id string, p Prompt) (a Answer, later bool) {
	t.Helper()
	a, err := m.routers[router].BestWorker(context.Background(), p, Options{RequestID: id, Patient: true})
	if err != nil && !errors.Is(err, ErrLater) {
		t.Fatal(err)
	}
	return a, err != nil
}

// crowd has requests come to all routers at once until these know that they do.
func (m *meeting) crowd(t *testing.T) {
	t.Helper()
	for n := range 20 {
		ids, waits := make([]string, len(m.routers)), make([]bool, len(m.routers))
		prompt := func(i int) Prompt { return Prompt{Local: numbers(10_000*(n+1)+1000*i, 100)} }
		for i := range m.routers {
			ids[i] = fmt.Sprint("crowd", n, i)
			_, waits[i] = m.at(t, i, ids[i], prompt(i))
		}
		m.told()
		for i, r := range m.routers {
			if waits[i] {
				if _, later := m.at(t, i, ids[i], prompt(i)); later {
					t.Fatal("put off twice")
				}
			}
			r.Free(ids[i])
		}
		m.told()
	}
	m.now = m.now.Add(time.Minute)
}

// TestRoutersHearOfEachOther: what two routers would both send to a third one's rank, as it has the beginning
// of both, they put off for the time of a word; then the shorter one goes there, and the other where it
// costs least then. Routers to whom nothing comes at one moment put nothing off.
func TestRoutersHearOfEachOther(t *testing.T) {
	long, short := Prompt{Local: append(numbers(1, 100), numbers(5000, 80)...)}, Prompt{Local: append(numbers(1, 100), numbers(7000, 70)...)}
	m := meet(t, 3, 3)
	if a, later := m.at(t, 1, "calm", long); later || a.Settle != 0 || a.Worker != 1 {
		t.Fatalf("with nobody else at that moment: %+v, put off: %v", a.RankID, later)
	}
	m.routers[1].Free("calm")
	m.told()
	m.crowd(t)
	for i, p := range map[int]Prompt{1: long, 2: short} {
		if a, later := m.at(t, i, "x", p); !later || a.Settle != wordTime || m.routers[i].Holds("x") {
			t.Fatalf("router %d: %+v, put off: %v", i, a.RankID, later)
		}
	}
	if a, later := m.at(t, 0, "own", short); later || a.Worker != 1 { // its own rank
		t.Fatalf("router 0 puts off what goes to its own rank, or has %+v", a.RankID)
	}
	m.routers[0].Free("own")
	m.told()
	first, l1 := m.at(t, 2, "x", short)
	other, l2 := m.at(t, 1, "x", long)
	if l1 || l2 || first.Worker != 1 || other.Worker == 1 {
		t.Errorf("heard of each other, the short one goes to %d (%v), the long one to %d (%v)", first.Worker, l1, other.Worker, l2)
	}
	if s := m.routers[1].Stats(); s.Settled == 0 || s.Later < s.Settled {
		t.Errorf("%+v", s)
	}
	m.told()
	for i, r := range m.routers {
		if len(r.bids.open) != 0 {
			t.Errorf("router %d has %d bids of requests that were placed", i, len(r.bids.open))
		}
	}
}

// TestBidsCountWithTargets: another router's request is expected where its router takes it, which with
// targets is not where most of its prompt is cached if those who decode there would miss theirs.
func TestBidsCountWithTargets(t *testing.T) {
	for _, c := range []struct {
		name    string
		targets Targets
		goes    int
	}{{"none", Targets{}, 0}, {"tokens", Targets{Token: 10 * time.Millisecond}, 1}} {
		m := meet(t, 2, 2)
		r := m.routers[0]
		r.settings.Targets = c.targets
		r.weigh.Settings, r.weigh.Now, r.weigh.Stage = &r.settings, m.now, Whole
		s, o := &scratch{}, bid{made: m.now, shortest: 1000}
		o.Key, o.Request.PromptTokens = load.Key{Owner: 2, ID: "other"}, 9000
		for i, k := range r.members {
			s.cands = append(s.cands, Candidate{RankID: k.RankID, slot: k.slot})
			o.Ranks = append(o.Ranks, load.Want{Rank: k.RankID, NewTokens: 1000 + 3000*i})
		}
		s.cands[0].Requests, s.cands[0].Context = 10, 20_000
		r.bids.open = []bid{o}
		own := aim{first: 100, token: 5}
		r.weigh.aim = own
		r.foresee(s, &contention{bid: bid{made: m.now.Add(wordTime)}}, 0, m.now)
		if s.cands[c.goes].Prefilling != 1 || s.cands[1-c.goes].Prefilling != 0 {
			t.Errorf("%s: it is expected on %+v and %+v", c.name, s.cands[0], s.cands[1])
		}
		if r.weigh.aim != own {
			t.Errorf("%s: the request's own targets are %+v afterwards", c.name, r.weigh.aim)
		}
	}
}

// TestOthersGoFirst: where another router's request goes is found out before the first of those here that come after it is
// placed, and stays so for the second: at its router those were not there.
func TestOthersGoFirst(t *testing.T) {
	m := meet(t, 2, 2)
	r := m.routers[0]
	r.weigh.Settings, r.weigh.Now, r.weigh.Stage = &r.settings, m.now, Whole
	o := bid{made: m.now, shortest: 1000}
	o.Key, o.Request.PromptTokens = load.Key{Owner: 2, ID: "other"}, 2000
	for i, k := range r.members {
		o.Ranks = append(o.Ranks, load.Want{Rank: k.RankID, NewTokens: 1000 + 500*i})
	}
	foresee := func(settled bool, placed int, ranks ...*member) int {
		s := &scratch{}
		for _, k := range ranks {
			s.cands = append(s.cands, Candidate{RankID: k.RankID, slot: k.slot})
		}
		s.cands[0].Prefilling, s.cands[0].PrefillTokens, s.cands[0].HeadTokens, s.cands[0].Since = placed, 20_000*placed, 20_000*placed, m.now
		r.foresee(s, &contention{settled: settled, bid: bid{made: m.now.Add(wordTime)}}, 0, m.now)
		return s.cands[len(s.cands)-1].Prefilling
	}
	r.bids.open = []bid{o}
	if foresee(false, 0, r.members...) != 0 || foresee(false, 1, r.members...) != 1 {
		t.Fatal("before all have heard of all it is not expected where it costs least")
	}
	if foresee(true, 0, r.members[1]) != 0 || foresee(true, 0, r.members...) != 0 {
		t.Error("it is expected where one that may not go to its rank would have it")
	}
	if foresee(true, 0, r.members...) != 0 || foresee(true, 1, r.members...) != 0 {
		t.Error("another router's request is expected to make way for one that comes after it")
	}
}

// TestRoutersShareAQueue: of two requests that wait, each at its router, the shorter one goes first when there is
// room, though the other's router hears of that, too; and of one that is no more told of nothing is left.
func TestRoutersShareAQueue(t *testing.T) {
	m := meet(t, 2, 1)
	if _, later := m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)}); later {
		t.Fatal("put off on an idle rank")
	}
	m.told()
	long, short := Prompt{Local: numbers(20_000, 1000)}, Prompt{Local: numbers(30_000, 300)}
	for i, p := range []Prompt{long, short} {
		if _, later := m.at(t, i, "waits", p); !later {
			t.Fatalf("router %d does not wait behind a long prompt", i)
		}
	}
	m.told()
	m.routers[0].Free("ahead")
	m.told()
	if _, later := m.at(t, 0, "waits", long); !later {
		t.Error("the longer prompt does not wait for the other router's")
	}
	if a, later := m.at(t, 1, "waits", short); later || a.Worker != 1 {
		t.Error("the shorter prompt waits on")
	}
	m.told()
	m.routers[1].Free("waits")
	m.told()
	if _, later := m.at(t, 0, "waits", long); later {
		t.Error("the longer prompt waits for what is over")
	}

	// The other router's client goes while it waits.
	m = meet(t, 2, 1)
	m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
	m.told()
	m.at(t, 0, "waits", long)
	m.at(t, 1, "gone", short)
	m.told()
	m.routers[0].Free("ahead")
	m.routers[1].Forgo("gone")
	m.told()
	if n := len(m.routers[1].bids.open); n != 1 || m.routers[1].bids.open[0].Key.ID != "waits" {
		t.Errorf("its own router keeps %d bids, of which one is another's", n)
	}
	if _, later := m.at(t, 0, "waits", long); later {
		t.Error("a request waits for one whose client has gone")
	}
	m.told()
	if m.routers[1].Forgo("gone"); len(m.words) != 0 {
		t.Errorf("others are told %v of one that they were told of as gone", m.words)
	}

	// Nobody says so.
	m = meet(t, 2, 1)
	m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
	m.told()
	m.at(t, 1, "gone", short)
	m.told()
	m.routers[0].Free("ahead")
	m.now = m.now.Add(2 * heldFor)
	if _, later := m.at(t, 0, "x", long); later {
		t.Error("a request waits for one that was not heard of for long")
	}
}

// TestALongQueueHearsOthers: however many requests wait at a router, and whether these are before or behind it, one that waits
// at another router and is before its next one has the room that there is.
func TestALongQueueHearsOthers(t *testing.T) {
	for _, blocks := range []int{100, 400} {
		m := meet(t, 2, 1)
		wait := func(router int, id string, blocks int) {
			t.Helper()
			if _, later := m.at(t, router, id, Prompt{Local: numbers(20_000, blocks)}); !later {
				t.Fatalf("%s does not wait behind a long prompt", id)
			}
		}
		m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
		m.told()
		for i := range 2 * maxBids {
			wait(0, fmt.Sprint(i), blocks)
		}
		m.told()
		wait(1, "other", 200)
		wait(0, "next", 1000)
		m.told()
		m.routers[0].Free("ahead")
		if _, later := m.at(t, 0, "next", Prompt{Local: numbers(20_000, 1000)}); !later {
			t.Errorf("beside %d that wait with %d blocks each it does not wait for another router's of 200", 2*maxBids, blocks)
		}
		if n := len(m.routers[0].bids.open); n > 2*maxBids {
			t.Errorf("%d bids are kept", n)
		}
	}
}

// TestAQueueHasItsOwnOrder: which of a router's own comes first says the queue that they wait in, as it knows of tenants
// and priorities. So one that is let out is not put back for another one there, though that came first or is shorter.
func TestAQueueHasItsOwnOrder(t *testing.T) {
	m := meet(t, 2, 1)
	m.at(t, 0, "ahead", Prompt{Local: numbers(1000, 5000)})
	long, short := Prompt{Local: numbers(20_000, 1000)}, Prompt{Local: numbers(30_000, 300)}
	for id, p := range map[string]Prompt{"short": short, "long": long} {
		if _, later := m.at(t, 0, id, p); !later {
			t.Fatal("it does not wait behind a long prompt")
		}
	}
	m.routers[0].Free("ahead")
	if _, later := m.at(t, 0, "long", long); later {
		t.Error("it waits for one of its own queue that was not let out")
	}
}

// TestBidsAreBounded: whatever others bid, few are kept, and none of them for long.
func TestBidsAreBounded(t *testing.T) {
	m := meet(t, 2, 2)
	r := m.routers[0]
	ranks := make([]load.Want, 100)
	for i := range ranks {
		ranks[i] = load.Want{Rank: shard.RankID{Worker: uint64(i)}, NewTokens: -i}
	}
	for i := range 1000 {
		r.Apply(load.Change{Kind: load.Sought, Key: load.Key{Owner: 2, ID: fmt.Sprint(i)}, Ranks: ranks, Held: i%2 == 0})
	}
	r.Apply(load.Change{Kind: load.Sought, Key: load.Key{Owner: 2, ID: "empty"}})
	if n := len(r.bids.open); n != maxBids || len(r.bids.open[0].Ranks) != maxWants {
		t.Errorf("%d bids are kept, of %d ranks", n, len(r.bids.open[0].Ranks))
	}
	m.at(t, 0, "x", Prompt{Local: numbers(1, 10)})
	m.now = m.now.Add(2 * heldFor)
	m.at(t, 0, "y", Prompt{Local: numbers(1, 10)})
	if n := len(r.bids.open); n != 0 {
		t.Errorf("%d bids are kept for ever", n)
	}
	r.SetDelay(time.Hour, time.Hour)
	if r.bids.delay != 0 {
		t.Error("others would be waited for for an hour")
	}
}

// TestPutOffOnce: a request that was put off is not put off again, though it comes back so late that its bid is forgotten.
func TestPutOffOnce(t *testing.T) {
	p := Prompt{Local: append(numbers(1, 100), numbers(5000, 80)...)}
	m := meet(t, 3, 3)
	m.crowd(t)
	if _, later := m.at(t, 1, "x", p); !later {
		t.Fatal("nothing is put off")
	}
	m.told()
	m.now = m.now.Add(10 * wordTime)
	for router := range m.routers { // it bids and forgets
		m.at(t, router, fmt.Sprint("y", router), p)
	}
	if a, err := m.routers[1].BestWorker(t.Context(), p, Options{RequestID: "x", Patient: true, Settled: true}); err != nil || a.Settle != 0 {
		t.Errorf("put off again: %v", err)
	}
}

// TestOwnRanksTie: of those of its own ranks that cost as much a router takes each as often, in place of another's that is
// hardly better.
func TestOwnRanksTie(t *testing.T) {
	m := meet(t, 2, 8)
	m.crowd(t)
	r := slices.IndexFunc(m.routers, func(r *Router) bool { return r.members[0].contested() })
	got := map[uint64]int{}
	for n := range 400 {
		id := fmt.Sprint(n)
		m.routers[r].bids.crowd = 1e6 // it goes on
		a, later := m.at(t, r, id, Prompt{Local: append(numbers(1, 1), numbers(1_000_000+100*n, 80)...)})
		if later {
			t.Fatal("it is put off")
		}
		got[a.Worker]++
		m.routers[r].Free(id)
	}
	if len(got) != 4 || slices.Min(slices.Collect(maps.Values(got))) < 70 {
		t.Errorf("of 400 its own ranks got %v, want 100 each", got)
	}
}

// TestSharedRanksAreSettled: where routers are more than ranks, one that shares another's ranks takes none of these at once,
// as the other one does.
func TestSharedRanksAreSettled(t *testing.T) {
	p := Prompt{Local: append(numbers(1, 100), numbers(5000, 80)...)} // rank 1 is best for it
	m := meet(t, 4, 3)
	for _, r := range m.routers {
		r.bids.crowd = 1e6
	}
	if a, later := m.at(t, 3, "x", p); !later || a.Settle != wordTime {
		t.Errorf("the router that shares rank 1 has %+v at once", a.RankID)
	}
	if a, later := m.at(t, 0, "x", p); later || a.Worker != 1 {
		t.Errorf("its first router has %+v, put off: %v", a.RankID, later)
	}
}

// TestHeldForOthersWords: who waits for a rank is sent there sooner by the time that a word of another router's first
// token takes, and no sooner where there is no other router.
func TestHeldForOthersWords(t *testing.T) {
	var sent [2]time.Duration
	for others := range sent {
		r, _, clock := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(1)...)
		r.SetDelay(maxDelay, maxDelay)
		if others > 0 {
			r.Replace(2, func(func(load.Change) bool) {})
		}
		best(t, r, Prompt{Local: numbers(1, 5000)}, Options{RequestID: "ahead"})
		for begun := clock.now; ; sent[others] += time.Millisecond {
			clock.now = begun.Add(sent[others])
			_, err := r.BestWorker(t.Context(), Prompt{Local: numbers(10_000, 100)}, Options{RequestID: "x", Patient: true})
			if err == nil {
				break
			}
			if !errors.Is(err, ErrLater) || sent[others] > time.Minute {
				t.Fatal(err)
			}
		}
	}
	if sent[0] == 0 || sent[0]-sent[1] != maxDelay {
		t.Errorf("sent after %v alone, after %v with another router, words taking %v", sent[0], sent[1], maxDelay)
	}
}

// TestLateBids: a bid that comes after its booking is none any more, and of a long one little is kept.
func TestLateBids(t *testing.T) {
	m := meet(t, 2, 2)
	r := m.routers[0]
	m.at(t, 1, "x", Prompt{Local: numbers(1, 10)})
	m.told()
	c := load.Change{Kind: load.Sought, Key: load.Key{Owner: 2, ID: "x"}, Ranks: make([]load.Want, 10*maxWants)}
	if r.Apply(c); len(r.bids.open) != 0 {
		t.Error("a bid is kept of what is booked")
	}
	c.Key.ID = "y"
	if r.Apply(c); len(r.bids.open) != 1 || cap(r.bids.open[0].Ranks) > 2*maxWants {
		t.Errorf("%d bids", len(r.bids.open))
	}
	c.Key.ID = strings.Repeat("y", MaxRequestID+1)
	if r.Apply(c); len(r.bids.open) != 1 {
		t.Error("a request's id may be of any length")
	}
	crowd := r.bids.crowd
	r.bids.chose(m.now)
	c.Key.ID, c.Ranks[0].NewTokens = "z", 1000
	r.Apply(c)
	once := r.bids.crowd - crowd
	if r.Apply(c); once <= 0 || r.bids.crowd-crowd > once {
		t.Errorf("said twice, it counts as %v, once %v", r.bids.crowd-crowd, once)
	}
}

// TestNearIsWeighed: a router's own rank is taken for what it costs, though it was clear that it is not the best.
func TestNearIsWeighed(t *testing.T) {
	m := meet(t, 2, 2)
	m.crowd(t)
	p := Prompt{Local: numbers(20_000, 100)}
	for i, r := range m.routers {
		r.SetDelay(5*time.Millisecond, 5*time.Millisecond)
		for id := range uint64(2) {
			if err := r.SetWorker(Worker{ID: id + 1, Ranks: 1, TotalBlocks: 1 << 20}); err != nil {
				t.Fatal(err)
			}
		}
		r.bids.crowd = 1e6
		r.assign()
		for id := range uint64(2) {
			rank := shard.RankID{Worker: id + 1}
			for n := 0; !r.member(rank).others && n < 200; n++ {
				if err := r.Reserve(Reservation{RequestID: fmt.Sprint("decodes", n), Rank: rank, PromptTokens: 1}); err != nil {
					t.Fatal(err)
				}
				r.MarkPrefillComplete(fmt.Sprint("decodes", n))
			}
		}
		if a, later := m.at(t, i, "x", p); !later || a.Settle == 0 {
			t.Errorf("router %d takes rank %d, which has 200 requests", i, a.Worker)
		}
	}
}

// TestNoChoiceIsNotPutOff: where one rank only may be chosen, there is nothing to hear of first.
func TestNoChoiceIsNotPutOff(t *testing.T) {
	m := meet(t, 2, 2)
	for i, r := range m.routers {
		for id := range uint64(2) {
			r.bids.crowd = 1e6
			o := Options{RequestID: fmt.Sprint("only", id), Patient: true, Allowed: []uint64{id + 1}}
			if a, err := r.BestWorker(t.Context(), Prompt{Local: numbers(1, 100)}, o); err != nil {
				t.Errorf("router %d, rank %d: put off for %v: %v", i, id, a.Settle, err)
			}
		}
	}
}

// TestPairsHearOfEachOther: of pairs that come at one moment, all for the prefill worker that has the beginning of
// them, the first one of the first router is computed there, longer or not, and the others where they cost least then. A pair that is put off has nothing
// booked. Each kind of worker is shared out among the routers by itself.
func TestPairsHearOfEachOther(t *testing.T) {
	m := meet(t, 3, 3)
	pair := func(router int, id string, p Prompt) (Pair, error) {
		return m.routers[router].BestPair(t.Context(), p, Options{RequestID: id, Patient: true})
	}
	for i, r := range m.routers {
		for id := range uint64(5) {
			role := Prefill
			if id == 1 || id == 4 {
				role = Decode
			}
			if err := r.SetWorker(Worker{ID: id + 1, Ranks: 1, Role: role}); err != nil {
				t.Fatal(err)
			}
		}
		r.bids.crowd = 1e6
		r.assign()
		var own []uint64
		for _, w := range r.members {
			if !w.others {
				own = append(own, w.Worker)
			}
		}
		if slices.Sort(own); !slices.Equal(own, [][]uint64{{1, 2}, {3, 5}, {2, 4}}[i]) {
			t.Errorf("router %d takes %v first", i, own)
		}
	}
	prompt := func(own, blocks int) Prompt { return Prompt{Local: append(numbers(1, 100), numbers(own, blocks)...)} }
	asked := []struct {
		router int
		id     string
		p      Prompt
	}{{1, "long", prompt(5000, 80)}, {1, "short", prompt(6000, 60)}, {2, "short", prompt(7000, 70)}}
	for i, q := range asked {
		a, err := pair(q.router, q.id, q.p)
		if i == 1 && err == nil && a.Prefill.Worker == 3 { // its router's own, so there is nothing to hear of first
			continue
		}
		if !errors.Is(err, ErrLater) || a.Decode.Settle != wordTime || m.routers[q.router].Holds(q.id) {
			t.Fatalf("router %d: %+v, %v", q.router, a, err)
		}
	}
	m.told()
	for i, q := range asked {
		if m.routers[q.router].Holds(q.id) {
			continue
		}
		a, err := pair(q.router, q.id, q.p)
		if err != nil {
			t.Fatal(err)
		}
		if (a.Prefill.Worker == 1) != (i == 0) {
			t.Errorf("the %s prompt of router %d is computed on %d", q.id, q.router, a.Prefill.Worker)
		}
	}
	m.told()
	for i, r := range m.routers {
		if len(r.bids.open) != 0 {
			t.Errorf("router %d has %d bids of requests that were placed", i, len(r.bids.open))
		}
	}
}

// TestFewBidsAreForeseen: a choice goes through as many of the bids that come first as it has time for. Those beyond
// them put nothing on any rank, and those for ranks that it does not have do not count. One that is told anew is kept.
func TestFewBidsAreForeseen(t *testing.T) {
	m := meet(t, 2, 2)
	r := m.routers[0]
	for id := range uint64(2) { // no bid of these goes into a queue
		if err := r.SetWorker(Worker{ID: id + 1, Ranks: 1, Role: Prefill}); err != nil {
			t.Fatal(err)
		}
	}
	apply := func(i int) { // the latter half is for rank 1 alone, those before it for one that is not here
		worker := uint64(9)
		if i >= maxBids/2 {
			worker = 1
		}
		r.Apply(load.Change{
			Kind: load.Sought, Key: load.Key{Owner: 2, ID: fmt.Sprint(i)}, Held: true, Waited: time.Hour - time.Duration(i)*time.Second,
			Request: load.Request{PromptTokens: 10}, Ranks: []load.Want{{Rank: shard.RankID{Worker: worker}, NewTokens: 10}},
		})
	}
	for i := range maxBids {
		apply(i)
	}
	m.now = m.now.Add(heldFor * 3 / 4)
	for i := range maxBids {
		apply(i)
	}
	m.now = m.now.Add(heldFor * 3 / 4)
	o := Options{RequestID: "x", Stage: PrefillStage, Patient: true, Settled: true, Explain: true}
	a, err := r.BestWorker(t.Context(), Prompt{Local: numbers(20_000, 10)}, o)
	if err != nil {
		t.Fatal(err)
	}
	for i := range a.Ranks {
		if c := &a.Ranks[i]; c.Worker == 1 && c.Requests != 64 {
			t.Errorf("%d bids of %d are gone through", c.Requests, len(r.bids.open))
		}
	}
}
