package tokenize

import (
	"unicode/utf8"
)

// boundaries cuts the text of a model without a pre-tokenizer into pieces that merging does
// not cross, so that pieces are short and can be remembered.
//
// A merge across the boundary of two characters makes a token that has the two side by side.
// Where no token that a merge makes has them so, none crosses, and since what merges on one side
// does not depend on the other, both sides merge as they would alone. That two are together in
// some token is a bit of a table by hash; a bit that two share only leaves a cut out.
type boundaries struct {
	bits []uint64
	mask uint64
}

func pairBit(a, b rune) uint64 { return mix(uint64(a)<<32|uint64(b)^hashB, hashA) }

func newBoundaries(n int) *boundaries {
	words := 1 << 10
	for words*64 < 32*n && words < 1<<15 { // 2 Mbit at most
		words *= 2
	}
	return &boundaries{bits: make([]uint64, words), mask: uint64(words*64 - 1)}
}

// add notes the neighbours in a token.
func (s *boundaries) add(token []byte) {
	for i := 0; i < len(token); {
		a, n := runeAt(token, i)
		i += n
		if i < len(token) {
			b, _ := runeAt(token, i)
			h := pairBit(a, b) & s.mask
			s.bits[h>>6] |= 1 << (h & 63)
		}
	}
}

func (*boundaries) total() bool { return true }

func (s *boundaries) next(_ *work, b []byte, from int) (int, int) {
	last, n := runeAt(b, from)
	for i := from + n; i < len(b); {
		r, n := runeAt(b, i)
		// Letters of ASCII stay together: nearly all pairs of them are in some token.
		if r >= utf8.RuneSelf || last >= utf8.RuneSelf || !isLatin(byte(r)) || !isLatin(byte(last)) {
			h := pairBit(last, r) & s.mask
			if s.bits[h>>6]>>(h&63)&1 == 0 {
				return from, i
			}
		}
		last = r
		i += n
	}
	return from, len(b)
}

// boundaries is the stage that cuts so, if it is proven for the model: each character is a
// token or bytes that are, none of which merge, so that nothing else joins neighbours.
func (m *bpe) boundaries() []stage {
	if !m.byteFallback {
		return nil
	}
	bytesOf := map[uint32]bool{}
	for _, id := range m.bytes {
		if id == none {
			return nil
		}
		bytesOf[id] = true
	}
	s := newBoundaries(len(m.vocab.lens))
	for _, of := range m.merges.slots {
		if of.key == 0 {
			continue
		}
		key := of.key - 1
		if bytesOf[uint32(key>>32)] || bytesOf[uint32(key)] {
			return nil
		}
		s.add(m.vocab.bytes(uint32(of.value)))
	}
	if m.whole {
		for id := range m.vocab.lens {
			s.add(m.vocab.bytes(uint32(id)))
		}
	}
	return []stage{{scan: s}}
}
