package account

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Each reason once, and what lies between two of them.
func TestJudge(t *testing.T) {
	for name, f := range map[string]struct {
		e    Evidence
		want Miss
	}{
		"as expected":                  {Evidence{Selected: 100, Actual: 100}, NoMiss},
		"the last block anew":          {Evidence{Selected: 160, Actual: 144}, NoMiss},
		"in tokens, not in blocks":     {Evidence{Selected: 144, Actual: 159}, NoMiss},
		"gone from the index":          {Evidence{Selected: 160, Actual: 32, Now: 32}, Evicted},
		"gone and stored again":        {Evidence{Selected: 160, Actual: 32, Now: 320, Lost: 128}, Evicted},
		"a little is lost elsewhere":   {Evidence{Selected: 160, Actual: 32, Now: 320, Lost: 16}, Unknown},
		"gone before":                  {Evidence{Selected: 160, Actual: 32, Now: 32, Lost: 128, LostBefore: true}, Late},
		"read anew":                    {Evidence{Selected: 160, Actual: 0, Now: 160, Renewed: true}, Late},
		"stale":                        {Evidence{Selected: 160, Actual: 0, Now: 160, Stale: true}, Late},
		"stored meanwhile":             {Evidence{Selected: 32, Actual: 160, Now: 160}, Stored},
		"nobody said so":               {Evidence{Selected: 32, Actual: 160, Now: 32}, Unknown},
		"another text":                 {Evidence{Selected: 160, Actual: 0, Now: 0, Looked: 170, Counted: 171}, TokensDiffer},
		"another text, and more of it": {Evidence{Selected: 0, Actual: 160, Now: 160, Looked: 170, Counted: 171}, TokensDiffer},
		"not counted":                  {Evidence{Selected: 160, Actual: 0, Now: 160, Looked: 170}, Unknown},
		"the same text":                {Evidence{Selected: 160, Actual: 0, Now: 160, Looked: 170, Counted: 170}, Unknown},
	} {
		f.e.BlockSize = 16
		if got := Judge(&f.e); got != f.want {
			t.Errorf("%s: %q, want %q", name, got, f.want)
		}
	}
}

// What is summed up is what was given, whoever reports.
func TestTotals(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var got Totals
	var prompt, reachable, selected, actual, short, fewer, more uint64
	for range 2000 {
		c := Choice{Known: rng.IntN(4) > 0, Prompt: rng.IntN(400_000)}
		c.Reachable = rng.IntN(c.Prompt + 1)
		c.Selected = c.Reachable
		if rng.IntN(2) == 0 {
			c.Selected, c.Why = rng.IntN(c.Reachable+1), Shortfall(1+rng.IntN(NumShortfalls-1))
		}
		reported, found, why := rng.IntN(3) > 0, rng.IntN(c.Prompt+1), Miss(rng.IntN(NumMisses))
		got.Add(&c, reported, found, why)
		if !c.Known {
			continue
		}
		prompt, reachable, selected, short = prompt+uint64(c.Prompt), reachable+uint64(c.Reachable), selected+uint64(c.Selected), short+uint64(c.Reachable-c.Selected)
		if !reported {
			continue
		}
		actual += uint64(found)
		switch {
		case why == NoMiss:
		case found < c.Selected:
			fewer += uint64(c.Selected - found)
		default:
			more += uint64(found - c.Selected)
		}
	}
	sum := func(list []Sum) (n uint64) {
		for _, s := range list {
			n += s.Tokens
		}
		return n
	}
	r, s := &got.Reported, &got.Silent
	for what, pair := range map[string][2]uint64{
		"prompt": {r.Prompt.Sum + s.Prompt.Sum, prompt}, "reachable": {r.Reachable.Sum + s.Reachable.Sum, reachable},
		"selected": {r.Selected.Sum + s.Selected.Sum, selected}, "actual": {r.Actual.Sum, actual}, "of nobody": {s.Actual.Count(), 0},
		"short": {sum(got.Short[:]), short}, "fewer": {sum(got.Fewer[:]), fewer}, "more": {sum(got.More[:]), more},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d, want %d", what, pair[0], pair[1])
		}
	}
	if r.Prompt.Count() != r.Actual.Count() || r.Prompt.Count() == 0 || s.Prompt.Count() == 0 {
		t.Errorf("%d and %d requests, %d reports", r.Prompt.Count(), s.Prompt.Count(), r.Actual.Count())
	}
	var h Histogram
	for i, bound := range Bounds() {
		h.add(bound)
		h.add(bound + 1)
		if h.Buckets[i] == 0 || h.Buckets[i+1] == 0 {
			t.Errorf("bound %d: %v", bound, h.Buckets)
		}
	}
}

// What a caller gives may be anything: reasons of a later version, and no room at all.
func TestOddInput(t *testing.T) {
	var got Totals
	for _, actual := range []int{0, 9} {
		got.Add(&Choice{Known: true, Prompt: 9, Reachable: 8, Selected: 4, Why: NumShortfalls}, true, actual, NumMisses)
	}
	if got.Reported.Prompt.Count() != 2 || got.Short != [NumShortfalls]Sum{} || got.Fewer != [NumMisses]Sum{} || got.More != got.Fewer {
		t.Errorf("%+v", got)
	}
	none := NewPrompts(-8)
	none.Add(event.Space{}, []uint64{1})
	if list := none.Of(event.Space{}); len(list) != 0 {
		t.Errorf("%v are kept without room", list)
	}
}

var start = time.Unix(1_700_000_040, 0) // a minute begins

// A Log has the last ones, and of each minute the slowest and the worst predicted of all
// requests: a literal list judges it.
func TestLogKeepsWhatItShould(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	cfg := Config{Keep: 20, Memory: 1 << 30, Rows: 50, Run: "r"}
	l := New(cfg)
	type kept struct {
		at            int64
		id            string
		first, off    float64
		judged, table bool
	}
	var all []kept
	now := start
	for i := range 2000 {
		now = now.Add(time.Duration(rng.Int64N(int64(4 * time.Second))))
		d := &Decision{Time: now, Model: "m", RequestID: string(rune('a' + i%26)), Predicted: 100 * rng.Float64()}
		first := 1000 * rng.Float64()
		k := kept{at: minuteOf(now), first: first, off: math.Abs(first - d.Predicted), judged: rng.IntN(2) == 0, table: l.Sample(now, 40)}
		d.First, d.ID = &first, l.ID()
		k.id = d.ID
		all = append(all, k)
		if k.table {
			d.Ranks = make([]Row, 40)
		} else if !l.Notable(now, first, d.Predicted, k.judged) {
			continue // as a router does
		}
		l.Add(now, d, k.table, k.judged)
	}
	want := map[string]map[Kind]bool{}
	add := func(k *kept, why Kind) {
		if want[k.id] == nil {
			want[k.id] = map[Kind]bool{}
		}
		want[k.id][why] = true
	}
	slowest, worst := map[int64]*kept{}, map[int64]*kept{}
	last := 0
	for i := len(all) - 1; i >= 0; i-- {
		k := &all[i]
		if k.table && last < cfg.Keep {
			add(k, Last)
			last++
		}
		if k.at <= all[len(all)-1].at-maxMinutes {
			continue
		}
		if s := slowest[k.at]; s == nil || k.first > s.first {
			slowest[k.at] = k
		}
		if w := worst[k.at]; k.judged && (w == nil || k.off > w.off) {
			worst[k.at] = k
		}
	}
	for _, k := range slowest {
		add(k, Slowest)
	}
	for _, k := range worst {
		add(k, Worst)
	}
	found := l.Find(Query{})
	if len(found) != len(want) || len(want) < 60 {
		t.Errorf("%d decisions, want %d", len(found), len(want))
	}
	for i, d := range found {
		if len(d.Kept) != len(want[d.ID]) {
			t.Errorf("%s is kept as %v, want %v", d.ID, d.Kept, want[d.ID])
		}
		if i > 0 && d.Time.After(found[i-1].Time) {
			t.Errorf("%s after an older one", d.ID)
		}
	}
	for _, q := range []Query{{Kind: Slowest}, {Kind: Worst}, {RequestID: "c"}, {Limit: 3}, {Models: []string{"other"}}, {ID: found[5].ID}} {
		n := 0
		for _, d := range found {
			if q.wants(d, d.Kept) && (q.Limit == 0 || n < q.Limit) {
				n++
			}
		}
		if got := l.Find(q); len(got) != n || n == 0 != (q.Models != nil) {
			t.Errorf("%+v: %d, want %d", q, len(got), n)
		}
	}
}

// Whatever comes, a Log takes no more memory than it may, and keeps something.
// A nil Log keeps nothing, and may be asked and told all the same.
func TestANilLog(t *testing.T) {
	var l *Log
	l.Add(start, &Decision{ID: l.ID()}, l.Sample(start, 1), l.Notable(start, 1, 1, true))
	if list, sampled := l.After(0, 1); l.ID() != "" || len(list) != 0 || sampled != 0 || len(l.Find(Query{})) != 0 || l.Stats() != (Stats{}) {
		t.Errorf("%v %d", list, sampled)
	}
}

func TestLogIsBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const memory = 200 << 10
	l := New(Config{Keep: 1000, Memory: memory, Rows: 1 << 30})
	for i := range 2000 {
		now := start.Add(time.Duration(i) * 3 * time.Second)
		first := rng.Float64()
		d := &Decision{ID: l.ID(), Time: now, First: &first, Ranks: make([]Row, rng.IntN(300))}
		for i := range d.Ranks {
			d.Ranks[i].Formula = strings.Repeat("x", rng.IntN(200))
		}
		if i%500 == 499 {
			d.Ranks = make([]Row, 10_000)
		}
		l.Add(now, d, true, true)
		bytes := int64(0)
		if i%100 == 0 {
			seen := map[string]bool{}
			for _, d := range l.Find(Query{}) {
				if !seen[d.ID] {
					bytes += d.bytes()
				}
				seen[d.ID] = true
			}
		}
		if s := l.Stats(); s.Bytes > memory || bytes > s.Bytes || i > 0 && s.Kept < 1 {
			t.Fatalf("after %d: %+v, in fact %d", i, s, bytes)
		}
	}
}

// So many rows a second are written, whatever comes, and the first one at once.
func TestSampling(t *testing.T) {
	for _, ranks := range []int{1, 8, 64, 4096} {
		l := New(Config{Keep: 1, Memory: 1, Rows: 1000})
		rows := 0
		const seconds = 60
		for i := range seconds * 500 {
			if l.Sample(start.Add(time.Duration(i)*2*time.Millisecond), ranks) {
				rows += ranks
			} else if i == 0 {
				t.Errorf("%d ranks: the first one has no table", ranks)
			}
		}
		if most := (seconds+1)*1000 + ranks; rows > most || rows < min(seconds*500*ranks, (seconds-5)*1000) {
			t.Errorf("%d ranks: %d rows in %d s, want at most %d and nearly as many", ranks, rows, seconds, most)
		}
	}
	var none *Log
	none.Add(start, &Decision{}, true, true)
	if none.Sample(start, 1) || none.Notable(start, 1, 1, true) || len(none.Find(Query{})) > 0 || none.Stats() != (Stats{}) || New(Config{Rows: 5}).Sample(start, 1) {
		t.Error("a Log that keeps nothing keeps something")
	}
}

// Many at once.
func TestLogAtOnce(t *testing.T) {
	l := New(Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "x"})
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 300 {
				now := start.Add(time.Duration(i) * time.Second)
				first := float64(i*w%97) + 0.5
				if sampled := l.Sample(now, 8); sampled || l.Notable(now, first, 1, true) {
					l.Add(now, &Decision{Time: now, First: &first}, sampled, true)
				}
				if i%50 == 0 {
					l.Find(Query{Limit: 5})
				}
			}
		})
	}
	all.Wait()
	ids := map[string]bool{}
	for _, d := range l.Find(Query{}) {
		if ids[d.ID] || !strings.HasPrefix(d.ID, "x-") {
			t.Errorf("id %q, again or of another run", d.ID)
		}
		ids[d.ID] = true
	}
}

// A decision is what it was after JSON, and what is not known is null.
func TestDecisionAsJSON(t *testing.T) {
	d := Decision{ID: "a-1", Time: start, Predicted: 3, Rows: 2, Ranks: []Row{{Worker: 1, Cost: 2.5, Chosen: true}, {Worker: 2, Cost: NoCost(), Left: "busy"}}}
	text, err := json.Marshal(&d)
	if err != nil || strings.Count(string(text), "null") != 8 { // kept, five of the account, first_ms, a cost
		t.Fatalf("%s, %v", text, err)
	}
	d.Choose(&Choice{Known: true, Prompt: 9, Reachable: 8, Selected: 4, Best: shard.RankID{Worker: 2, DPRank: 1}, Why: Busy})
	if text, err = json.Marshal(&d); err != nil {
		t.Fatal(err)
	}
	var back Decision
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if *back.Reachable != 8 || *back.Selected != 4 || *back.BestAt != 2 || *back.BestRank != 1 || back.Short != "busy" || back.Actual != nil ||
		!math.IsNaN(float64(back.Ranks[1].Cost)) || !slices.Equal(back.Ranks[:1], d.Ranks[:1]) {
		t.Errorf("%s", text)
	}
}

// A table that is too large is left out, and the decision is there: its id has been given.
func TestALargeTable(t *testing.T) {
	l := New(Config{Keep: 10, Memory: 64 << 10, Rows: 1000, Run: "r"})
	id, first := l.ID(), 1.0
	l.Add(start, &Decision{ID: id, Time: start, First: &first, Rows: 500, Ranks: make([]Row, 500)}, true, true)
	d := l.Find(Query{ID: id})
	if len(d) != 1 || d[0].Rows != 500 || d[0].Ranks != nil || len(d[0].Kept) != 3 {
		t.Errorf("%+v", d)
	}
	if s := l.Stats(); s.Sampled != 1 || s.Bytes > 4<<10 {
		t.Errorf("%+v", s)
	}
}
