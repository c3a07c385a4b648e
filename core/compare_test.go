package core

import "testing"

// TestCommonPrefixOfEveryLength: both ways to compare find the first difference, whichever
// words it is at, however long the words are and wherever they lie, and read nothing else
// as a difference.
func TestCommonPrefixOfEveryLength(t *testing.T) {
	const most, slack = 133, 8
	match := map[string]func(a, b []uint64) int{"vectors": matchLen, "strings": matchStrings}
	if !vectors {
		delete(match, "vectors")
	}
	for name, matchLen := range match {
		t.Run(name, func(t *testing.T) {
			words := func(at int, beyond uint64) []uint64 {
				w := make([]uint64, at+most+slack)
				for i := range w {
					w[i] = beyond // outside of what is compared
				}
				return w[at:]
			}
			for at := range 9 {
				for n := range most {
					a, b := words(at, 1), words(8-at, 2)
					for i := range n {
						a[i], b[i] = uint64(i)<<32, uint64(i)<<32
					}
					for differ := 0; differ <= n; differ++ {
						want := n
						if differ < n {
							want = differ
							b[differ] ^= 1 << (differ * 7 % 64)
						}
						if got := matchLen(a[:n], b[:n]); got != want {
							t.Fatalf("of %d words, the %d-th differs: %d are equal", n, differ, got)
						}
						if differ > 0 && differ < n { // and a later one as well
							b[differ-1] ^= 1 << 63
							if got := matchLen(a[:n], b[:n]); got != differ-1 {
								t.Fatalf("of %d words, the %d-th and the next differ: %d are equal", n, differ-1, got)
							}
							b[differ-1] ^= 1 << 63
						}
						if differ < n {
							b[differ] ^= 1 << (differ * 7 % 64)
						}
					}
				}
			}
		})
	}
	if got := matchLen(make([]uint64, 3), make([]uint64, 5)); got != 3 {
		t.Errorf("of 3 and 5 words %d are equal", got)
	}
	if got := matchLen(nil, make([]uint64, 5)); got != 0 {
		t.Errorf("of no words %d are equal", got)
	}
}
