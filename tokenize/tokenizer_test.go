package tokenize

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

func smallTokenizer(t *testing.T, name string, o Options) *Tokenizer {
	t.Helper()
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range s.Tokenizers {
		if m.Name == name {
			tok, err := Load(m.File, o)
			if err != nil {
				t.Fatal(err)
			}
			return tok
		}
	}
	t.Fatalf("no tokenizer %q", name)
	return nil
}

// TestConcurrent shows that goroutines that share caches of few places get what one alone gets.
func TestConcurrent(t *testing.T) {
	alone := smallTokenizer(t, "o200k", Options{PieceCache: -1})
	tok := smallTokenizer(t, "o200k", Options{PieceCache: 16 * longBytes, TurnCache: 8 << 10})
	g := &texts{r: rand.New(rand.NewPCG(8, 9)), specials: []string{"<|end|>"}}
	var all []string
	var want [][]uint32
	for range 60 {
		text := g.text() + strings.Repeat(pick(g.r, samples), 4)
		ids, err := alone.Encode(nil, text, true)
		if err != nil {
			t.Fatal(err)
		}
		all, want = append(all, text), append(want, ids)
	}
	var wg sync.WaitGroup
	for n := range 4 {
		wg.Go(func() {
			var ids []uint32
			for round := range 3 {
				for i := range all {
					k := (i*7 + n*13 + round) % len(all)
					var err error
					if ids, err = tok.Encode(ids[:0], all[k], true); err != nil || !slices.Equal(ids, want[k]) {
						t.Errorf("%q: %v (%v), alone %v", all[k], ids, err, want[k])
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// TestTurnCacheIsBounded shows that what is kept stays within its bytes, and goes least recently used first.
func TestTurnCacheIsBounded(t *testing.T) {
	tok := smallTokenizer(t, "cl100k-3", Options{TurnCache: 64 << 10})
	for i := range 300 {
		text := strings.Repeat(samples[i%len(samples)]+string(rune('a'+i%26)), 6)
		if _, err := tok.Encode(nil, text, false); err != nil {
			t.Fatal(err)
		}
		c := tok.turns
		sum := 0
		for e := c.order.Front(); e != nil; e = e.Next() {
			v := e.Value.(*turnEntry)
			sum += len(v.text) + 4*len(v.ids) + turnOverhead
		}
		if sum != c.bytes || c.bytes > c.most || len(c.byKey) != c.order.Len() {
			t.Fatalf("%d bytes kept, %d counted, %d allowed; %d entries, %d keys", sum, c.bytes, c.most, c.order.Len(), len(c.byKey))
		}
	}
	if tok.turns.order.Len() < 10 {
		t.Fatalf("%d texts kept", tok.turns.order.Len())
	}
}

// TestNoAllocations shows that encoding allocates nothing once its memory is there.
func TestNoAllocations(t *testing.T) {
	racetest.Without(t, "the race detector's pools drop what they are given")
	text := strings.Join(samples, "\n")
	for _, name := range []string{"cl100k-1", "o200k", "deepseek", "gemma", "unigram", "wordpiece"} {
		tok := smallTokenizer(t, name, Options{})
		dst := make([]uint32, 0, 4*len(text))
		if n := testing.AllocsPerRun(20, func() { dst, _ = tok.Encode(dst[:0], text, true) }); n > 2 {
			t.Errorf("%s: %v allocations for %d tokens", name, n, len(dst))
		}
	}
}

// TestText shows that a text that is not UTF-8 changes nothing.
func TestText(t *testing.T) {
	tok := smallTokenizer(t, "cl100k-1", Options{})
	ids, err := tok.Encode([]uint32{7}, "a\xffb", true)
	if err == nil || !slices.Equal(ids, []uint32{7}) {
		t.Errorf("%v, %v", ids, err)
	}
}
