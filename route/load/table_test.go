package load

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/chains"
	"github.com/kvatlas/kvatlas/shard"
)

// model is the Table as one would write it on paper: every live request in
// full, every count summed anew.
type model struct {
	cfg  Config
	live map[Key]*modelRequest
}

type modelRequest struct {
	Request
	rank  shard.RankID
	last  time.Time
	order int      // of all that were added
	said  *float64 // what its output blocks count
}

// turn returns the tokens of the request that waits longest for its first one.
func (m *model) turn(rank shard.RankID) (tokens int) {
	var head *modelRequest
	for _, r := range m.live {
		if r.rank == rank && !r.Prefilled && (head == nil || r.order < head.order) {
			head, tokens = r, r.NewTokens
		}
	}
	return tokens
}

func (m *model) load(rank shard.RankID) (l Load) {
	unique := map[string]bool{}
	var output int64
	for _, r := range m.live {
		if r.rank != rank {
			continue
		}
		l.Requests++
		l.PromptTokens += r.PromptTokens
		if !r.Prefilled {
			l.Prefilling++
			l.PrefillTokens += r.NewTokens
		}
		l.DecodeBlocks += float64(r.Private)
		if !m.cfg.AssumeReuse {
			l.DecodeBlocks += float64(len(r.Blocks))
		} else {
			prefix := make([]byte, 0, len(r.Blocks))
			for _, b := range r.Blocks {
				prefix = append(prefix, byte(b)) // the histories' hashes are small
				unique[string(prefix)] = true
			}
		}
		left := max(r.ExpectedOutput-r.Generated, 0)
		l.OutputLeft += left
		if m.cfg.TrackOutput {
			weight := 1.0
			if r.said != nil {
				weight = *r.said
			} else if m.cfg.OutputDecay && r.ExpectedOutput > 0 {
				weight = float64(left) / float64(r.ExpectedOutput)
			}
			blocks := (r.PromptTokens+r.Generated)/m.cfg.BlockSize - r.PromptTokens/m.cfg.BlockSize
			output += int64(blocks) * int64(weight*unit)
		}
	}
	l.DecodeBlocks += float64(len(unique)) + float64(output)/unit
	return l
}

// active returns the longest prefix of the chain in use on the rank.
func (m *model) active(rank shard.RankID, chain []uint64) (depth int) {
	if !m.cfg.AssumeReuse {
		return 0
	}
	for _, r := range m.live {
		if r.rank == rank {
			depth = max(depth, chains.Common(r.Blocks, chain))
		}
	}
	return depth
}

// chainOf makes chains that share prefixes, branch and end anywhere.
func chainOf(rng *rand.Rand) []uint64 {
	chain := make([]uint64, rng.IntN(40))
	branch := uint64(rng.IntN(3))
	for i := range chain {
		if rng.IntN(12) == 0 {
			branch = uint64(rng.IntN(3))
		}
		chain[i] = branch
	}
	return chain
}

// TestAgainstModel runs random histories of requests over ranks and routers
// and compares every count, and what is in use of a random prompt, with the
// model after each step. At the end all is freed and nothing is left.
func TestAgainstModel(t *testing.T) {
	for _, cfg := range []Config{
		{BlockSize: 4, AssumeReuse: true},
		{BlockSize: 4},
		{BlockSize: 4, AssumeReuse: true, TrackOutput: true},
		{BlockSize: 3, TrackOutput: true, OutputDecay: true},
	} {
		for seed := range uint64(6) {
			t.Run(fmt.Sprintf("%+v/%d", cfg, seed), func(t *testing.T) { history(t, cfg, seed) })
		}
	}
}

func history(t *testing.T, cfg Config, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	table, m := New(cfg), &model{cfg: cfg, live: map[Key]*modelRequest{}}
	now := time.Unix(0, 0)
	const lease = 40 * time.Second
	ranks := make([]shard.RankID, 5)
	for i := range ranks {
		ranks[i] = shard.RankID{Worker: uint64(i / 2), DPRank: uint32(i % 2)}
	}
	table.Keep(ranks[0])
	key := func() Key {
		return Key{Owner: uint64(rng.IntN(2)), ID: fmt.Sprint(rng.IntN(30)), Stage: uint8(rng.IntN(2))}
	}
	for step := range 600 {
		now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
		k := key()
		r := m.live[k]
		switch op := rng.IntN(20); {
		case op < 8:
			req := Request{
				Blocks: chainOf(rng), Private: rng.IntN(3), PromptTokens: rng.IntN(200), NewTokens: rng.IntN(100),
				ExpectedOutput: rng.IntN(3) * 10, Generated: rng.IntN(2) * 5, Prefilled: rng.IntN(4) == 0, Leased: rng.IntN(2) == 0,
			}
			rank := ranks[rng.IntN(len(ranks))]
			slot, known := table.Find(rank)
			if !known {
				slot = table.Slot(rank)
			}
			err := table.Add(k, slot, req, now)
			if (r != nil) != errors.Is(err, ErrDuplicate) || r == nil && err != nil {
				t.Fatalf("step %d: Add of a key that is live: %v gives %v", step, r != nil, err)
			}
			if r == nil {
				m.live[k] = &modelRequest{Request: req, rank: rank, last: now, order: step}
			} else if !known {
				continue // a slot made for nothing; the next release takes it
			}
		case op < 11:
			if got := table.PrefillComplete(k, now); got != (r != nil && !r.Prefilled) {
				t.Fatalf("step %d: PrefillComplete = %v", step, got)
			}
			if r != nil {
				r.Prefilled, r.last = true, now
			}
		case op == 11:
			weight := float64(rng.IntN(6)-1) / 4
			if got := table.OutputBlock(k, weight, now); got != (r != nil) {
				t.Fatalf("step %d: OutputBlock = %v", step, got)
			}
			if r != nil {
				r.Generated, r.last = r.Generated+cfg.BlockSize-(r.PromptTokens+r.Generated)%cfg.BlockSize, now
				if weight >= 0 && weight <= 1 {
					r.said = &weight
				}
			}
		case op < 15:
			n := rng.IntN(9)
			if _, live := table.Output(k, n, now); live != (r != nil) {
				t.Fatalf("step %d: Output finds a live booking: %v", step, live)
			}
			if r != nil {
				r.Generated, r.last = r.Generated+n, now
			}
		case op < 18:
			if got := table.Free(k); got != (r != nil) {
				t.Fatalf("step %d: Free = %v", step, got)
			}
			delete(m.live, k)
		case op == 18:
			table.Expire(now, lease, func(k Key) {
				r := m.live[k]
				if r == nil || !r.Leased || now.Sub(r.last) <= lease {
					t.Fatalf("step %d: %v expires, the model has %+v", step, k, r)
				}
				delete(m.live, k)
			})
			for k, r := range m.live {
				if r.Leased && now.Sub(r.last) > lease {
					t.Fatalf("step %d: %v has not expired", step, k)
				}
			}
		default:
			switch rng.IntN(3) {
			case 0:
				rank := ranks[1+rng.IntN(len(ranks)-1)]
				before := -1
				owner := rng.Uint64N(2)
				table.Drop(rank, owner, func(k Key) {
					if m.live[k].order < before {
						t.Fatalf("step %d: %v ends after one that was added later", step, k)
					}
					before = m.live[k].order
				})
				for k, r := range m.live {
					if r.rank == rank && k.Owner == owner {
						delete(m.live, k)
					}
				}
			case 1:
				table.DropOwner(k.Owner)
				for other := range m.live {
					if other.Owner == k.Owner {
						delete(m.live, other)
					}
				}
			}
		}
		compare(t, step, table, m, ranks, chainOf(rng))
	}
	// What it says of one router's is all that another table needs to count them likewise.
	one, other := &model{cfg: cfg, live: map[Key]*modelRequest{}}, New(cfg)
	table.Each(0, func(k Key, rank shard.RankID, r Request) bool {
		one.live[k] = m.live[k]
		if err := other.Add(k, other.Slot(rank), r, now); err != nil {
			t.Fatal(err)
		}
		return true
	})
	compare(t, -1, other, one, ranks, chainOf(rng))
	seen := 0
	for owner := range uint64(2) {
		before := -1
		table.Each(owner, func(k Key, rank shard.RankID, r Request) bool {
			want := m.live[k]
			if want != nil && want.order < before {
				t.Fatalf("Each gives %v after one that was added later", k)
			} else if want != nil {
				before = want.order
			}
			same := want != nil && want.rank == rank && want.Generated == r.Generated && want.Prefilled == r.Prefilled &&
				want.NewTokens == r.NewTokens && want.PromptTokens == r.PromptTokens && want.ExpectedOutput == r.ExpectedOutput
			if same && cfg.AssumeReuse {
				same = slices.Equal(want.Blocks, r.Blocks) && want.Private == r.Private
			} else if same {
				same = len(r.Blocks) == 0 && r.Private == want.Private+len(want.Blocks)
			}
			if !same {
				t.Fatalf("Each gives %v %v %+v, added was %+v", k, rank, r, want)
			}
			seen++
			return true
		})
	}
	if seen != len(m.live) || table.Len() != seen {
		t.Fatalf("Each gives %d bookings, %d are live, Len says %d", seen, len(m.live), table.Len())
	}
	for k := range m.live {
		table.Free(k)
	}
	for _, rank := range ranks {
		table.Drop(rank, 0, nil)
	}
	if table.Len() != 0 || table.tree.Live() != 0 || table.first != nil || table.last != nil || table.slots != nil {
		t.Fatalf("idle, but kept: %d bookings, %d nodes, leases %v %v, %d slots",
			table.Len(), table.tree.Live(), table.first, table.last, len(table.slots))
	}
}

func compare(t *testing.T, step int, table *Table, m *model, ranks []shard.RankID, chain []uint64) {
	t.Helper()
	depth := make([]uint32, table.Slots())
	table.Active(chain, depth)
	parts := 0
	for k := range m.live {
		parts += int(min(k.Stage, 1))
	}
	if table.Parts() != parts {
		t.Fatalf("step %d: %d bookings are of a part, want %d", step, table.Parts(), parts)
	}
	for _, rank := range ranks {
		var got Load
		var active int
		if s, ok := table.Find(rank); ok {
			got, active = table.Load(s), int(depth[s])
			if turn, since := table.Turn(s); turn != m.turn(rank) || since.IsZero() != (got.Prefilling == 0) {
				t.Fatalf("step %d: at rank %v it is the turn of %d tokens since %v, want %d", step, rank, turn, since, m.turn(rank))
			}
			requests, prefilling, prompts, behind := table.Behind(s)
			if requests != got.Requests || prefilling != got.Prefilling || prompts != got.PromptTokens || behind != got.PrefillTokens-m.turn(rank) {
				t.Fatalf("step %d: rank %v has %d requests, %d to begin, of %d tokens, %d behind the first; want %+v", step, rank, requests, prefilling, prompts, behind, got)
			}
		}
		if want := m.load(rank); got != want {
			t.Fatalf("step %d: rank %v has %+v, want %+v", step, rank, got, want)
		}
		if got.Requests < 0 || got.Prefilling < 0 || got.PrefillTokens < 0 || got.DecodeBlocks < 0 || got.OutputLeft < 0 {
			t.Fatalf("step %d: rank %v has %+v", step, rank, got)
		}
		if want := m.active(rank, chain); active != want {
			t.Fatalf("step %d: rank %v has %d blocks of %v in use, want %d", step, rank, active, chain, want)
		}
	}
}

// TestSharedBlocksCountOnce is the sentence of the contract by itself.
func TestSharedBlocksCountOnce(t *testing.T) {
	table := New(Config{BlockSize: 16, AssumeReuse: true})
	s := table.Keep(shard.RankID{Worker: 1})
	now := time.Unix(0, 0)
	add := func(id string, blocks ...uint64) {
		if err := table.Add(Key{ID: id}, s, Request{Blocks: blocks}, now); err != nil {
			t.Fatal(err)
		}
	}
	add("a", 1, 2, 3, 4)
	add("b", 1, 2, 9)
	add("c", 1, 2, 3, 4)
	if got := table.Load(s).DecodeBlocks; got != 5 {
		t.Errorf("blocks 1 2 3 4 and 9 are in use, the table counts %v", got)
	}
	table.Free(Key{ID: "a"})
	if got := table.Load(s).DecodeBlocks; got != 5 {
		t.Errorf("with one of two equal requests gone the table counts %v, want 5", got)
	}
	table.Free(Key{ID: "c"})
	if got := table.Load(s).DecodeBlocks; got != 3 {
		t.Errorf("blocks 1 2 9 are in use, the table counts %v", got)
	}
}

// TestOutputBlocks follows one request over its block boundaries.
func TestOutputBlocks(t *testing.T) {
	now := time.Unix(0, 0)
	for _, c := range []struct {
		name   string
		decay  bool
		tokens []int
		want   []float64
	}{
		{"plain", false, []int{7, 1, 16, 16}, []float64{0, 1, 2, 3}},
		{"decay", true, []int{8, 16, 16}, []float64{0.75 * 1, 0.25 * 2, 0}},
	} {
		table := New(Config{BlockSize: 16, AssumeReuse: true, TrackOutput: true, OutputDecay: c.decay})
		s := table.Keep(shard.RankID{})
		if err := table.Add(Key{}, s, Request{PromptTokens: 8, ExpectedOutput: 32}, now); err != nil {
			t.Fatal(err)
		}
		for i, n := range c.tokens {
			table.Output(Key{}, n, now)
			if got := table.Load(s).DecodeBlocks; got != c.want[i] {
				t.Errorf("%s: after step %d of %v: %v output blocks, want %v", c.name, i, c.tokens, got, c.want[i])
			}
		}
	}
	table := New(Config{BlockSize: 16, TrackOutput: true})
	s := table.Keep(shard.RankID{})
	if err := table.Add(Key{}, s, Request{PromptTokens: 20}, now); err != nil {
		t.Fatal(err)
	}
	table.OutputBlock(Key{}, -1, now)
	table.OutputBlock(Key{}, 0.5, now)
	if got := table.Load(s).DecodeBlocks; got != 1 {
		t.Errorf("two output blocks that count half each: %v", got)
	}
}

// TestMemoryOfRuns: however requests split a long shared prompt, once they are
// gone it is one run again.
func TestMemoryOfRuns(t *testing.T) {
	table := New(Config{BlockSize: 16, AssumeReuse: true})
	s := table.Keep(shard.RankID{})
	now := time.Unix(0, 0)
	prompt := make([]uint64, 1000)
	for i := range prompt {
		prompt[i] = uint64(i)
	}
	if err := table.Add(Key{ID: "long"}, s, Request{Blocks: prompt}, now); err != nil {
		t.Fatal(err)
	}
	for _, n := range rand.New(rand.NewPCG(1, 1)).Perm(1000) {
		other := append(slices.Clone(prompt[:n]), 1<<40)
		if err := table.Add(Key{ID: fmt.Sprint(n)}, s, Request{Blocks: other}, now); err != nil {
			t.Fatal(err)
		}
	}
	if got := table.Load(s).DecodeBlocks; got != 2000 {
		t.Errorf("%v blocks in use, want 2000", got)
	}
	for n := range 1000 {
		table.Free(Key{ID: fmt.Sprint(n)})
	}
	if got := table.tree.Live(); got != 1 {
		t.Errorf("the remaining prompt is kept as %d runs", got)
	}
	if got := table.tree.Chain(nil, table.live[Key{ID: "long"}].end); !slices.Equal(got, prompt) {
		t.Error("the remaining prompt has changed")
	}
}

// TestTurn: a turn begins when a request is booked on an idle rank, or when the
// one before it has its first token or ends; those behind do not move it.
func TestTurn(t *testing.T) {
	table := New(Config{BlockSize: 16})
	s := table.Keep(shard.RankID{Worker: 1})
	at := func(sec int64) time.Time { return time.Unix(sec, 0) }
	add := func(id string, tokens int, sec int64) {
		if err := table.Add(Key{ID: id}, s, Request{NewTokens: tokens}, at(sec)); err != nil {
			t.Fatal(err)
		}
	}
	want := func(tokens int, sec int64) {
		t.Helper()
		if n, since := table.Turn(s); n != tokens || !since.Equal(at(sec)) {
			t.Fatalf("%d tokens since %v, want %d since %v", n, since, tokens, at(sec))
		}
	}
	add("a", 10, 1)
	add("b", 20, 2)
	add("c", 30, 3)
	add("d", 40, 4)
	want(10, 1)
	table.PrefillComplete(Key{ID: "c"}, at(5))
	want(10, 1)
	table.PrefillComplete(Key{ID: "a"}, at(6))
	want(20, 6)
	add("e", 50, 7) // time passes
	table.Free(Key{ID: "b"})
	want(40, 7)
	table.Free(Key{ID: "e"})
	table.Free(Key{ID: "d"})
	if n, since := table.Turn(s); n != 0 || !since.IsZero() {
		t.Fatalf("with nobody waiting it is the turn of %d tokens since %v", n, since)
	}
	if n, _ := table.Turn(99); n != 0 {
		t.Fatal("a slot that there is not has a turn")
	}
}

// TestOutputBlocksCountAsSaid: what the caller says that output blocks count holds, also that they count whole, and is told on.
func TestOutputBlocksCountAsSaid(t *testing.T) {
	now := time.Unix(0, 0)
	cfg := Config{BlockSize: 16, TrackOutput: true, OutputDecay: true}
	table := New(cfg)
	s := table.Keep(shard.RankID{})
	if err := table.Add(Key{}, s, Request{PromptTokens: 16, ExpectedOutput: 64}, now); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ said, counts float64 }{{-1, 0.75}, {1, 1}, {-1, 1}, {0.5, 0.5}, {1, 1}, {0, 0}} {
		table.OutputBlock(Key{}, c.said, now)
		want := c.counts * float64(i+1)
		if got := table.Load(s).DecodeBlocks; got != want {
			t.Errorf("%d output blocks, of which the last is said to count %v: %v, want %v", i+1, c.said, got, want)
		}
		table.Each(0, func(_ Key, rank shard.RankID, r Request) bool {
			other := New(cfg)
			o := other.Keep(rank)
			if err := other.Add(Key{}, o, r, now); err != nil {
				t.Fatal(err)
			}
			if got := other.Load(o).DecodeBlocks; got != want {
				t.Errorf("%d output blocks count %v, and told on %v", i+1, want, got)
			}
			return true
		})
	}
}

// A part that is no number takes nothing away.
func TestADecayThatIsNoNumber(t *testing.T) {
	table := New(Config{BlockSize: 16, TrackOutput: true})
	s := table.Keep(shard.RankID{})
	if err := table.Add(Key{}, s, Request{Decay: math.NaN(), Generated: 64}, time.Unix(0, 0)); err != nil {
		t.Fatal(err)
	}
	if got := table.Load(s).DecodeBlocks; got != 4 {
		t.Errorf("%v blocks, want 4", got)
	}
}
