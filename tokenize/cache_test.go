package tokenize

import (
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
		turns.put(h, key, []uint32{1, 2, 3})
		if got, ok := pieces.get(h, key, nil); !ok || len(got) != 3 {
			t.Fatalf("%d bytes: %v, %t", n, got, ok)
		}
		for i := range key {
			other := []byte(string(key))
			other[i]++
			if _, ok := pieces.get(h, other, nil); ok {
				t.Fatalf("%q is taken for %q among pieces", other, key)
			}
			if _, ok := turns.get(h, other, nil); ok {
				t.Fatalf("%q is taken for %q among turns", other, key)
			}
		}
	}
	if pieces.put(h, []byte("many"), make([]uint32, cacheIDs+1)); func() bool { _, ok := pieces.get(h, []byte("many"), nil); return ok }() {
		t.Fatal("more ids than there is room for are kept")
	}
}
