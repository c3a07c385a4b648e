package tokenize

import (
	"slices"
	"strings"
	"testing"
)

// TestCachesCompareWhole shows that two keys of one hash are two keys.
func TestCachesCompareWhole(t *testing.T) {
	pieces, turns := newPieceCache(16*longBytes), newTurnCache(1<<20)
	const h = 0x123456789abcdef0
	get := func(key []byte) (ids []uint32, ok bool) {
		if len(key) > shortKey {
			return pieces.getLong(h, key, nil)
		}
		_, k0, k1 := pieceKey(key)
		packed, n := pieces.getShort(h, k0, k1, len(key))
		for i := range n {
			ids = append(ids, uint32(packed>>(idBits*i))&(1<<idBits-1))
		}
		return ids, n >= 0
	}
	for _, n := range []int{1, 2, 3, 4, 7, 8, 9, 12, 15, 16, 17, 31, 63, 64} {
		key := []byte(strings.Repeat("k", n))
		ids := []uint32{1, maxID - 1, 3}
		if _, k0, k1 := pieceKey(key); n <= shortKey {
			pieces.putShort(h, k0, k1, n, ids)
		} else {
			pieces.putLong(h, key, ids)
		}
		turns.put(h, "", key, []uint32{1, 2, 3})
		if got, ok := get(key); !ok || !slices.Equal(got, ids) {
			t.Fatalf("%d bytes: %v, %t", n, got, ok)
		}
		for i := range key {
			other := []byte(string(key))
			other[i]++
			if _, ok := get(other); ok {
				t.Fatalf("%q is taken for %q among pieces", other, key)
			}
			if _, ok := turns.get(h, "", other, nil); ok {
				t.Fatalf("%q is taken for %q among turns", other, key)
			}
		}
	}
	many := []byte("many")
	if pieces.putLong(h, many, make([]uint32, longIDs+1)); func() bool { _, ok := pieces.getLong(h, many, nil); return ok }() {
		t.Fatal("more ids than there is room for are kept")
	}
}

// TestShortPieceOfManyTokens: of a short piece whose ids do not fit is known that they are among the long ones,
// so that nobody looks for what is not there.
func TestShortPieceOfManyTokens(t *testing.T) {
	pieces, key := newPieceCache(16*longBytes), []byte("many")
	h, k0, k1 := pieceKey(key)
	if _, n := pieces.getShort(h, k0, k1, len(key)); n != unknown {
		t.Errorf("an unknown piece has %d ids", n)
	}
	pieces.putShort(h, k0, k1, len(key), []uint32{1, 2, 3, 4})
	if _, n := pieces.getShort(h, k0, k1, len(key)); n != inLong {
		t.Errorf("a piece of four ids has %d among those of three", n)
	}
	w := newWork()
	tok := &Tokenizer{cache: pieces, model: &countedModel{ids: []uint32{1, 2, 3, 4}}}
	for range 3 {
		if ids := tok.flush(w, tok.push(w, []byte("more"), nil)); !slices.Equal(ids, []uint32{1, 2, 3, 4}) {
			t.Errorf("encoded to %d", ids)
		}
	}
	if n := tok.model.(*countedModel).asked; n != 1 {
		t.Errorf("a piece that is known was encoded %d times", n)
	}
}

// TestShortPieceOfTooManyTokens: a short piece that is encoded each time, as no cache has room for its ids, leaves the
// others of its set where they are.
func TestShortPieceOfTooManyTokens(t *testing.T) {
	w := newWork()
	tok := &Tokenizer{cache: newPieceCache(16 * longBytes), model: &countedModel{ids: make([]uint32, longIDs+1)}}
	set := func(p []byte) uint64 {
		h, _, _ := pieceKey(p)
		return h & tok.cache.shortMask
	}
	many, other := []byte("many 0"), []byte("other 0")
	for h, _, _ := pieceKey(many); h>>63 == 0; h, _, _ = pieceKey(many) { // which takes the second place over
		many[5]++
	}
	for set(other) != set(many) {
		other[6]++
	}
	tok.flush(w, tok.push(w, many, nil))
	h, k0, k1 := pieceKey(other)
	tok.cache.putShort(h, k0, k1, len(other), []uint32{1})
	for range 3 {
		if ids := tok.flush(w, tok.push(w, many, nil)); len(ids) != longIDs+1 {
			t.Fatalf("%d ids", len(ids))
		}
	}
	if _, n := tok.cache.getShort(h, k0, k1, len(other)); n != 1 {
		t.Errorf("another piece of the set has %d ids, want 1", n)
	}
}

// countedModel makes the same tokens of every piece.
type countedModel struct {
	ids   []uint32
	asked int
}

func (m *countedModel) encode(_ *work, _ []byte, dst []uint32) []uint32 {
	m.asked++
	return append(dst, m.ids...)
}

// TestPieceKeys: a key is of the piece alone, whatever is behind it in memory.
func TestPieceKeys(t *testing.T) {
	text := []byte("abcdefghijklmnopqrstuvwxyz")
	for n := range 20 {
		h, k0, k1 := pieceKey(text[:n])
		h2, l0, l1 := pieceKey(slices.Clip(text[:n:n]))
		if h != h2 || k0 != l0 || k1 != l1 {
			t.Errorf("%d bytes: %x %x %x and %x %x %x", n, h, k0, k1, h2, l0, l1)
		}
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
