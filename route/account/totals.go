package account

import "math/bits"

// Bounds returns the upper bounds of a Histogram's buckets, in tokens; the last one has none.
func Bounds() [numBuckets - 1]int {
	return [...]int{0, 256, 1024, 4096, 16384, 65536, 262144}
}

const numBuckets = 8

// Histogram counts requests by a number of tokens.
type Histogram struct {
	Buckets [numBuckets]uint64 // that are in each bound of Bounds and in none before it
	Sum     uint64
}

func (h *Histogram) add(tokens int) {
	tokens = max(tokens, 0)
	i := 0
	if tokens > 0 { // by the bounds' powers of two, as this is on each request's way
		i = 1 + min(max(bits.Len(uint(tokens-1))-7, 0)/2, numBuckets-2)
	}
	h.Buckets[i]++
	h.Sum += uint64(tokens)
}

// Count returns how many requests it has counted.
func (h *Histogram) Count() (n uint64) {
	for _, b := range h.Buckets {
		n += b
	}
	return n
}

// Sum is requests, and their tokens.
type Sum struct{ Requests, Tokens uint64 }

func (s *Sum) add(tokens int) {
	s.Requests++
	s.Tokens += uint64(max(tokens, -tokens))
}

// Kept is the tokens of requests that were looked up.
type Kept struct{ Prompt, Reachable, Selected, Actual Histogram }

// Totals sums up a model's requests. Its zero value is ready.
type Totals struct {
	Reported Kept // of those whose engines said what they found
	Silent   Kept // of the others, Actual of none
	// Short are the tokens between selected and reachable, by reason.
	Short [NumShortfalls]Sum
	// First are the times until first tokens, as they were seen.
	First Times
	// Fewer and More are the tokens between actual and selected, by reason.
	Fewer, More [NumMisses]Sum
}

// Add counts a request that is over. reported says whether its engine said what it found.
// Of a reason that is none of the known ones nothing is summed up.
func (t *Totals) Add(c *Choice, reported bool, actual int, why Miss) {
	if !c.Known {
		return
	}
	k := &t.Silent
	if reported {
		k = &t.Reported
		k.Actual.add(actual)
	}
	k.Prompt.add(c.Prompt)
	k.Reachable.add(c.Reachable)
	k.Selected.add(c.Selected)
	if c.Why != NoShortfall && c.Why < NumShortfalls {
		t.Short[c.Why].add(c.Reachable - c.Selected)
	}
	if !reported || why == NoMiss || why >= NumMisses {
		return
	}
	if d := c.Selected - actual; d > 0 {
		t.Fewer[why].add(d)
	} else {
		t.More[why].add(d)
	}
}
