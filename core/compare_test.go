package core

import (
	"slices"
	"testing"
)

// TestCommonPrefixOfEveryLength: both ways to compare find the first difference, whichever
// words it is at, however long the words are and wherever they lie, and read nothing else
// as a difference.
func TestCommonPrefixOfEveryLength(t *testing.T) {
	t.Run("strings", func(t *testing.T) { commonPrefixOfEveryLength(t, matchStrings) })
	t.Run("vectors", func(t *testing.T) {
		eachVectors(t, func(t *testing.T) { commonPrefixOfEveryLength(t, matchLen) })
	})
}

func commonPrefixOfEveryLength(t *testing.T, matchLen func(a, b []uint64) int) {
	const most, slack = 133, 8
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
	if got := matchLen(make([]uint64, 3), make([]uint64, 5)); got != 3 {
		t.Errorf("of 3 and 5 words %d are equal", got)
	}
	if got := matchLen(nil, make([]uint64, 5)); got != 0 {
		t.Errorf("of no words %d are equal", got)
	}
}

// TestContentIsComparedAcrossPieces: both ways to compare a request with a run's content find the first
// block that differs, in whichever piece it is, and from whichever block they begin.
func TestContentIsComparedAcrossPieces(t *testing.T) {
	t.Run("each", func(t *testing.T) { contentIsComparedAcrossPieces(t, (*content).matchEach) })
	t.Run("vectors", func(t *testing.T) {
		eachVectors(t, func(t *testing.T) { contentIsComparedAcrossPieces(t, (*content).matchLen) })
	})
}

func contentIsComparedAcrossPieces(t *testing.T, match func(c *content, i uint32, local []uint64) int) {
	edges := []int{0, 1, 7, 8, 31, 32, 33, 100, 255, 256, 257, 288, 511, 512, 513, 519, 700, 767, 768}
	const all = 3*pieceBlocks + 1
	local := make([]uint64, all+40)
	for i := range local {
		local[i] = uint64(i) << 32
	}
	for _, n := range append(edges[1:], all) {
		c := newContent(local[:n], n)
		for _, from := range edges {
			if from >= n {
				break
			}
			for _, to := range append(edges, n) {
				if to < from || to > n {
					continue
				}
				asked := slices.Clone(local[from:to])
				if got := match(&c, uint32(from), asked); got != to-from {
					t.Fatalf("of the blocks %d to %d of %d, %d are equal", from, to, n, got)
				}
				for _, differ := range edges {
					if differ < from || differ >= to {
						continue
					}
					asked[differ-from] ^= 1 << (differ % 64)
					if got := match(&c, uint32(from), asked); got != differ-from {
						t.Fatalf("of the blocks %d to %d of %d, of which the %d-th differs, %d are equal", from, to, n, differ, got)
					}
					asked[differ-from] = local[differ]
				}
			}
		}
	}
}

// TestContentIsComparedBeyondWhatIsComparedAtOnce: a comparison goes on where one without a break ends.
func TestContentIsComparedBeyondWhatIsComparedAtOnce(t *testing.T) {
	long := make([]uint64, 2*matchAtOnce+300)
	for i := range long {
		long[i] = uint64(i)
	}
	c := newContent(long, len(long))
	for _, differ := range []int{0, matchAtOnce - 1, matchAtOnce, matchAtOnce + 1, 2 * matchAtOnce, len(long) - 1, len(long)} {
		for _, from := range []int{0, 3, 256} {
			asked := slices.Clone(long[from:])
			want := len(asked)
			if differ < len(long) && differ >= from {
				asked[differ-from]++
				want = differ - from
			}
			if got := c.match(uint32(from), uint32(len(long)), asked); got != want {
				t.Errorf("from block %d, %d are equal and not %d", from, got, want)
			}
		}
	}
}

// TestContentOfEveryLength: requests of every length up to 5,000 blocks, from a block and an address that
// change with it, are compared as far as they are equal, and no further.
func TestContentOfEveryLength(t *testing.T) {
	t.Run("as here", contentOfEveryLength)
	t.Run("vectors", func(t *testing.T) { eachVectors(t, contentOfEveryLength) })
}

func contentOfEveryLength(t *testing.T) {
	const most = 5000
	local := make([]uint64, most+64)
	for i := range local {
		local[i] = uint64(i)*0x9E3779B97F4A7C15 + 1
	}
	c := newContent(local, len(local))
	memory := make([]uint64, most+8)
	for n := 1; n <= most; n++ {
		from := n * 7 % 64
		asked := memory[n%8:][:n]
		copy(asked, local[from:])
		// one word that differs: none, the last, any, the first of a piece, and the one before
		border := pieceBlocks - from
		for _, differ := range []int{n, n - 1, n * 40503 % 9973 % n, border, border - 1, border + n&^(pieceBlocks-1) - pieceBlocks} {
			if differ < 0 || differ > n {
				continue
			}
			if differ < n {
				asked[differ] ^= 1 << (n % 64)
			}
			pieces, each := n, n
			for m := 0; m < n; m += matchAtOnce { // as match asks
				some := asked[m:min(m+matchAtOnce, n)]
				if k := c.matchLen(uint32(from+m), some); k < len(some) {
					pieces = m + k
					break
				}
			}
			if k := c.matchEach(uint32(from), asked); k < n {
				each = k
			}
			if at := c.match(uint32(from), uint32(len(local)), asked); at != differ || pieces != differ || each != differ {
				t.Fatalf("of %d blocks from block %d on, of which the %d-th differs, %d, %d and %d are equal", n, from, differ, at, pieces, each)
			}
			if differ < n {
				asked[differ] ^= 1 << (n % 64)
			}
		}
	}
}
