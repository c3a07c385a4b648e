package groups

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// Without EAGLE the answer is the largest boundary that every group accepts.
func TestLargestBoundaryThatAllAccept(t *testing.T) {
	rnd := rand.New(rand.NewPCG(20, 2))
	some := 0
	for range 20000 {
		size := 1 << rnd.IntN(3)
		list := []Group{{Kind: Full, Block: size}}
		for range 1 + rnd.IntN(3) {
			g := Group{Kind: Kind(rnd.IntN(int(numKinds))), Block: size, Span: 1 + rnd.IntN(20)}
			switch g.Kind {
			case Chunked:
				g.Span = size * (1 + rnd.IntN(4))
			case Full, Window:
				g.Block <<= rnd.IntN(2)
			}
			list = append(list, g)
		}
		if rnd.IntN(4) == 0 {
			list = list[1:]
		}
		l, err := New(list, 0)
		if err != nil {
			t.Fatal(err)
		}
		if l.fine || l.align != size && hasChunks(list) { // vLLM does not have these either
			continue
		}
		held := map[[2]int]bool{}
		tokens := 1 + rnd.IntN(24*size)
		for i := range list {
			for end := 0; end <= tokens; end++ {
				held[[2]int{i, end}] = rnd.IntN(8) > 0
			}
		}
		want := 0
		for p := (tokens - 1) / l.align * l.align; p > 0 && want == 0; p -= l.align {
			want = p
			for i, g := range list {
				if !accepts(g, p, func(end int) bool { return held[[2]int{i, end}] }) {
					want = 0
				}
			}
		}
		if have := l.Reusable(tokens, func(g, end int) bool { return held[[2]int{g, end}] }); have != want {
			t.Fatalf("%+v, %d tokens: %d, want %d", list, tokens, have, want)
		}
		if want > 0 {
			some++
		}
	}
	if some < 1000 {
		t.Errorf("only %d prompts are reusable", some)
	}
}

func hasChunks(list []Group) bool {
	for _, g := range list {
		if g.Kind == Chunked {
			return true
		}
	}
	return false
}

func TestLayoutsThatCannotBe(t *testing.T) {
	for name, c := range map[string]struct {
		list []Group
		unit int
	}{
		"none":                   {nil, 0},
		"too many":               {make([]Group, MaxGroups+1), 0},
		"a block of nothing":     {[]Group{{}}, 0},
		"an odd kind":            {[]Group{{Kind: numKinds, Block: 1}}, 0},
		"a window of nothing":    {[]Group{{Kind: Window, Block: 1}}, 0},
		"a window that is great": {[]Group{{Kind: Window, Block: 1, Span: maxSpan + 1}}, 0},
		"a block that is great":  {[]Group{{Block: maxTokens + 1}}, 0},
		"an odd unit":            {[]Group{{Block: 16}}, 3},
		"a unit below 0":         {[]Group{{Block: 16}}, -1},
		"16 and 24":              {[]Group{{Block: 16}, {Block: 24}}, 0},
		"nothing in common":      {[]Group{{Block: 32749}, {Block: 32719}}, 1},
	} {
		if _, err := New(c.list, c.unit); !errors.Is(err, ErrLayout) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Where groups agree nowhere, candidates come down block by block: what each of them asks is
// in all no more than a few times the prompt's blocks, whatever windows and chunks a stream
// declares.
func TestDisagreementCostsWhatThePromptDoes(t *testing.T) {
	const blocks = 4096
	for _, kind := range []Kind{Window, Chunked} {
		for _, eagle := range []bool{false, true} {
			if eagle && kind == Chunked {
				continue
			}
			l, err := New([]Group{
				{Kind: Full, Block: 1}, {Kind: kind, Block: 1, Span: blocks / 2, Eagle: eagle},
				{Kind: Window, Block: 1, Span: 2}, {Kind: State, Block: 1},
			}, 0)
			if err != nil {
				t.Fatal(err)
			}
			asked := 0
			have := l.Reusable(blocks+1, func(g, end int) bool {
				asked++
				return g < 2 || g == 2 && end%2 == 0 || g == 3 && end%2 == 1
			})
			if have != 0 || asked > 8*blocks {
				t.Errorf("kind %d, EAGLE %v: %d tokens, asked %d times of %d blocks", kind, eagle, have, asked, blocks)
			}
		}
	}
}

// Whatever the groups are and hold, an answer ends within the prompt, on a boundary.
func FuzzReusable(f *testing.F) {
	f.Add([]byte{1, 4, 0, 0, 0, 4, 9, 1}, 20, uint64(5))
	f.Add([]byte{byte(Chunked), 2, 48, 1, byte(State), 48, 48, 0}, 10, uint64(148)) // EAGLE beside chunks
	f.Fuzz(func(t *testing.T, groups []byte, tokens int, seed uint64) {
		var list []Group
		for ; len(groups) >= 4; groups = groups[4:] {
			list = append(list, Group{Kind: Kind(groups[0] % 5), Block: int(groups[1]), Span: int(groups[2]), Eagle: groups[3]&1 != 0})
		}
		l, err := New(list, 0)
		if err != nil {
			return
		}
		tokens %= 1 << 9
		rnd := rand.New(rand.NewPCG(seed, 1))
		have := l.Reusable(tokens, func(g, end int) bool {
			if g < 0 || g >= len(list) || end <= 0 || end > tokens || end%l.unit != 0 {
				t.Fatalf("group %d is asked about %d of %d tokens", g, end, tokens)
			}
			return rnd.IntN(16) > 0
		})
		if have < 0 || have > 0 && have >= tokens || have%l.unit != 0 {
			t.Fatalf("%d of %d tokens, of units of %d", have, tokens, l.unit)
		}
	})
}

func BenchmarkReusable(b *testing.B) {
	l, err := New([]Group{{Kind: Full, Block: 16}, {Kind: Window, Block: 16, Span: 4096}}, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if l.Reusable(16*1024+1, func(_, end int) bool { return end < 12000 }) == 0 {
			b.Fatal("nothing")
		}
	}
}
