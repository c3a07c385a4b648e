package core

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// A list in pages does what a slice does, in whatever order items come and go, keeps nothing alive that it
// does not have, and says what it takes.
func TestPagedIsASlice(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	r := rand.New(rand.NewPCG(1, 2))
	var l paged[*int]
	var want []*int
	for range 3_000 {
		switch r.IntN(8) {
		case 0, 1, 2:
			for range r.IntN(2_000) {
				v := new(int)
				before, grows := l.bytes(8), l.grows()
				l.add(v)
				want = append(want, v)
				if l.bytes(8) != before && !grows {
					t.Fatalf("with %d items the next one was said to take no memory, and did", len(want)-1)
				}
			}
		case 3, 4:
			if len(want) > 0 {
				n := r.IntN(len(want) + 1)
				if r.IntN(4) == 0 {
					n = n &^ (pageItems - 1) // at the edge of a page
				}
				l.cut(n)
				want = want[:n]
			}
		case 5:
			if len(want) > 0 {
				i := r.IntN(len(want))
				want[i] = new(int)
				l.set(uint32(i), want[i])
			}
		case 6:
			for range min(r.IntN(3), len(want)) { // one off, one on
				v := want[len(want)-1]
				l.cut(len(want) - 1)
				l.add(v)
			}
		case 7:
			l.fit()
		}
		if l.len() != len(want) || !slices.Equal(l.copied(), want) {
			t.Fatalf("it has %d items, not the %d of a slice", l.len(), len(want))
		}
		for range min(len(want), 10) {
			if i := r.IntN(len(want)); l.at(uint32(i)) != want[i] {
				t.Fatalf("item %d of %d is another one", i, len(want))
			}
		}
		var bytes int64
		for i, page := range l.pages[:cap(l.pages)] {
			for j, v := range page[:cap(page)] {
				if v != nil && i*pageItems+j >= len(want) {
					t.Fatalf("of %d items, what was at %d of page %d is still there", len(want), j, i)
				}
			}
			bytes += sizeClass(int64(cap(page)) * 8)
		}
		if bytes += sizeClass(int64(cap(l.pages)) * 24); bytes != l.bytes(8) {
			t.Fatalf("it says that it takes %d bytes, not %d", l.bytes(8), bytes)
		}
	}
}
