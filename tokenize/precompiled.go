package tokenize

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"unicode/utf8"
)

// precompiled is SentencePiece's table of what texts become, as the Hugging Face library goes by it: a
// grapheme cluster of less than 6 bytes becomes, whole, what the shortest key becomes that it begins
// with; where there is none, and in longer clusters, each character does so by itself.
type precompiled struct {
	units []uint32 // a double-array trie in the format of Darts-clone
	pool  []byte   // what keys become, each text with a 0 behind it
}

// wholeCluster is how long a cluster is that is looked up as one.
const wholeCluster = 6

func (p *precompiled) apply(w *work, dst, src []byte) []byte {
	for i := 0; i < len(src); {
		end := w.t.cluster(src, i)
		if end-i < wholeCluster {
			if to, ok := p.find(src[i:end]); ok {
				dst, i = append(dst, to...), end
				continue
			}
		}
		for i < end {
			_, n := runeAt(src, i)
			to, ok := p.find(src[i : i+n])
			if !ok {
				to = src[i : i+n]
			}
			dst = append(dst, to...)
			i += n
		}
	}
	return dst
}

// find returns what the shortest key becomes that s begins with. A table that leads out of itself,
// where the library ends, has nothing there.
func (p *precompiled) find(s []byte) ([]byte, bool) {
	at := unitOffset(p.units[0])
	for _, c := range s {
		if c == 0 {
			return nil, false
		}
		if at ^= uint32(c); int(at) >= len(p.units) {
			return nil, false
		}
		u := p.units[at]
		if u&(1<<31|0xff) != uint32(c) {
			return nil, false
		}
		if at ^= unitOffset(u); u>>8&1 == 0 {
			continue
		}
		if int(at) >= len(p.units) {
			return nil, false
		}
		from := int(p.units[at] &^ (1 << 31))
		if from > len(p.pool) || from < len(p.pool) && !utf8.RuneStart(p.pool[from]) {
			return nil, false
		}
		to, _, _ := bytes.Cut(p.pool[from:], []byte{0})
		return to, true
	}
	return nil, false
}

func unitOffset(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }

// loadPrecompiled reads the table: the length of the trie, the trie, the texts.
func loadPrecompiled(text string) (*precompiled, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil || len(b) < 4 {
		return nil, refused("normalizer Precompiled whose table is no base64")
	}
	size := binary.LittleEndian.Uint32(b)
	b = b[4:]
	if size < 4 || size%4 != 0 || uint64(size) > uint64(len(b)) {
		return nil, refused("normalizer Precompiled with a trie of %d bytes in %d", size, len(b))
	}
	p := &precompiled{units: make([]uint32, size/4), pool: b[size:]}
	for i := range p.units {
		p.units[i] = binary.LittleEndian.Uint32(b[4*i:])
	}
	if !utf8.Valid(p.pool) {
		return nil, refused("normalizer Precompiled whose texts are not UTF-8")
	}
	for to := range bytes.SplitSeq(p.pool, []byte{0}) {
		if len(to) > maxText {
			return nil, refused("normalizer Precompiled with a text of %d bytes", len(to))
		}
	}
	return p, nil
}

// What a code point does to grapheme clusters (testdata/tables.py). Those that join what is
// before have bits, others one of the kinds.
const (
	clusterJoins = 1 << iota
	clusterExtend
	clusterInCB // InCB=Extend or Linker
	clusterLinker
)

const (
	clusterControl = (iota + 1) << 4 // also \r and \n
	clusterPrepend
	clusterPict      // Extended_Pictographic
	clusterConsonant // InCB=Consonant
	clusterL
	clusterV
	clusterT
	clusterLV
	clusterLVT
)

const zeroWidthJoiner = 0x200D

// cluster returns where the grapheme cluster ends that begins at from: UAX #29's extended ones, but for
// pairs of regional indicators, which are 8 bytes: what wholeCluster tells apart is the same without.
func (t *unicodeTables) cluster(b []byte, from int) int {
	if b[from] < utf8.RuneSelf && b[from] != '\r' && (from+1 == len(b) || b[from+1] < utf8.RuneSelf) {
		return from + 1
	}
	r, n := runeAt(b, from)
	end, last := from+n, t.clusters.at(r)
	if last == clusterControl {
		if r == '\r' && end < len(b) && b[end] == '\n' {
			end++
		}
		return end
	}
	pict, joiner := last == clusterPict, false           // a pictograph and Extend since, then a joiner
	consonant, linker := last == clusterConsonant, false // a consonant and InCB since, a linker among it
	for end < len(b) {
		r, n := runeAt(b, end)
		c := t.clusters.at(r)
		if c&clusterJoins != 0 {
			joiner = pict && !joiner && r == zeroWidthJoiner
			pict = joiner || pict && !joiner && c&clusterExtend != 0
			consonant = consonant && c&clusterInCB != 0
			linker = consonant && (linker || c&clusterLinker != 0)
		} else {
			join := false
			switch {
			case c == clusterControl:
			case last == clusterPrepend:
				join = true
			case c == clusterPict:
				join = joiner
			case c == clusterConsonant:
				join = linker
			case last == clusterL:
				join = c == clusterL || c == clusterV || c == clusterLV || c == clusterLVT
			case last == clusterLV || last == clusterV:
				join = c == clusterV || c == clusterT
			case last == clusterLVT || last == clusterT:
				join = c == clusterT
			}
			if !join {
				return end
			}
			pict, joiner = c == clusterPict, false
			consonant, linker = c == clusterConsonant, false
		}
		last = c
		end += n
	}
	return end
}
