package tokenize

import (
	"slices"
	"strings"
	"testing"
)

// TestCachesCompareWhole shows that two keys of one hash are two keys.
func TestCachesCompareWhole(t *testing.T) {
	pieces, turns := newPieceCache(4*slotBytes), newTurnCache(1<<20)
	const h = 0x123456789abcdef0
	for _, n := range []int{1, 2, 3, 4, 7, 8, 9, 12, 16, 31, 63, 64} {
		key := []byte(strings.Repeat("k", n))
		pieces.put(h, key, []uint32{1, 2, 3})
		turns.put(h, "", key, []uint32{1, 2, 3})
		if got, ok := pieces.get(h, key, nil); !ok || len(got) != 3 {
			t.Fatalf("%d bytes: %v, %t", n, got, ok)
		}
		for i := range key {
			other := []byte(string(key))
			other[i]++
			if _, ok := pieces.get(h, other, nil); ok {
				t.Fatalf("%q is taken for %q among pieces", other, key)
			}
			if _, ok := turns.get(h, "", other, nil); ok {
				t.Fatalf("%q is taken for %q among turns", other, key)
			}
		}
	}
	if pieces.put(h, []byte("many"), make([]uint32, cacheIDs+1)); func() bool { _, ok := pieces.get(h, []byte("many"), nil); return ok }() {
		t.Fatal("more ids than there is room for are kept")
	}
}

// What is kept for one is not found for another, not even where the hashes are the same; the ids are.
func TestTurnsOfOthers(t *testing.T) {
	turns, text := newTurnCache(1<<20), []byte("a text")
	turns.put(7, "a", text, []uint32{1})
	for whose, found := range map[string]bool{"a": true, "b": false, "": false} {
		if _, ok := turns.get(7, whose, text, nil); ok != found {
			t.Errorf("for %q it is there: %v", whose, ok)
		}
	}
	s, err := readSmall()
	if err != nil {
		t.Fatal(err)
	}
	// In one part, and in a stretch of parts between added tokens.
	for _, long := range []string{strings.Repeat("some words ", 100), strings.Repeat("some words <|end|>", 230)} {
		tok, err := Load(s.Tokenizers[0].File, Options{TurnCache: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		var first []uint32
		for i, whose := range []string{"", "a", "b", "a", ""} {
			ids, err := tok.EncodeFor(nil, long, false, whose)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = ids
			}
			if n := tok.turns.order.Len(); !slices.Equal(ids, first) || n != min(i+1, 3) {
				t.Errorf("%d for %q: %d are kept", i, whose, n)
			}
		}
	}
}
