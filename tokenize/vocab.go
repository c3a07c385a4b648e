package tokenize

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/bits"

	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// none stands for no token.
const none = ^uint32(0)

// maxID bounds ids, and so what a file of a few bytes makes us allocate.
const maxID = 1 << 21

// vocab finds tokens by their bytes: an open-addressing table, and all tokens' bytes in one
// piece of memory. It does not change after loading.
type vocab struct {
	slots  []vocabSlot
	mask   uint64
	starts []uint32 // of token id in text; the length is in lens
	lens   []uint32 // none where no token has the id
	text   []byte
	count  int
}

// vocabSlot is a token in the table: most are short, and one look at memory finds them.
type vocabSlot struct {
	key    uint64 // the high half of the hash, 10 bits of the length, 22 bits of the id+1; 0: free
	k0, k1 uint64 // the token's first 16 bytes
}

const (
	vocabID  = 1<<22 - 1
	vocabLen = 1<<10 - 1 // the longest that the key says
)

// vocabKey is a token's key without its id.
func vocabKey(h uint64, n int) uint64 { return h>>32<<32 | uint64(min(n, vocabLen))<<22 }

func newVocab(tokens, bytes int) *vocab {
	n := uint64(1) << bits.Len(uint(max(tokens, 8)*3/2)) // a search ends at a free slot
	return &vocab{slots: hugemem.Make[vocabSlot](int(n)), mask: n - 1, starts: make([]uint32, 0, tokens), lens: make([]uint32, 0, tokens),
		text: make([]byte, 0, bytes)}
}

var errTwice = errors.New("two tokens have the same id")

// add takes one token. Of two with the same bytes the later one counts, as in the judges' maps.
func (v *vocab) add(token []byte, id uint32) error {
	if id >= maxID {
		return errors.New("a token's id is too large")
	}
	if uint64(v.count)*3 > v.mask*2 {
		v.grow()
	}
	for int(id) >= len(v.lens) {
		v.starts, v.lens = append(v.starts, 0), append(v.lens, none)
	}
	if v.lens[id] != none {
		return errTwice
	}
	if uint64(len(v.text)+len(token)) > 1<<31 {
		return errors.New("the vocabulary is too large")
	}
	v.starts[id], v.lens[id] = uint32(len(v.text)), uint32(len(token))
	v.text = append(v.text, token...)
	v.place(id, token)
	return nil
}

func (v *vocab) place(id uint32, token []byte) {
	h, k0, k1 := pieceKey(token)
	key := vocabKey(h, len(token))
	for i := h & v.mask; ; i = (i + 1) & v.mask {
		s := &v.slots[i]
		if s.key == 0 {
			v.count++
		} else if s.key&^vocabID != key || !bytes.Equal(v.bytes(uint32(s.key&vocabID)-1), token) {
			continue
		}
		*s = vocabSlot{key | uint64(id+1), k0, k1}
		return
	}
}

func (v *vocab) grow() {
	old := v.slots
	v.slots = hugemem.Make[vocabSlot](max(len(old)*2, 16))
	v.mask = uint64(len(v.slots) - 1)
	v.count = 0
	for _, s := range old {
		if s.key != 0 {
			id := uint32(s.key&vocabID) - 1
			v.place(id, v.bytes(id))
		}
	}
}

// find is the id of a token, or none.
func (v *vocab) find(token []byte) uint32 {
	h, k0, k1 := pieceKey(token)
	return v.findKey(h, k0, k1, token)
}

// findKey is find for a token whose pieceKey is known.
func (v *vocab) findKey(h, k0, k1 uint64, token []byte) uint32 {
	if len(v.slots) == 0 {
		return none
	}
	key := vocabKey(h, len(token))
	for i := h & v.mask; ; i = (i + 1) & v.mask {
		s := &v.slots[i&uint64(len(v.slots)-1)]
		if s.key&^vocabID == key && s.k0 == k0 && s.k1 == k1 {
			id := uint32(s.key&vocabID) - 1
			if len(token) <= shortKey || string(v.bytes(id)) == string(token) {
				return id
			}
		}
		if s.key == 0 {
			return none
		}
	}
}

// bytes are a token's; nil if there is no such token.
func (v *vocab) bytes(id uint32) []byte {
	if int(id) >= len(v.lens) || v.lens[id] == none {
		return nil
	}
	return v.text[v.starts[id] : v.starts[id]+v.lens[id]]
}

func (v *vocab) size() int {
	return hugemem.Taken(len(v.slots)*24) + cap(v.starts)*4 + cap(v.lens)*4 + cap(v.text)
}

const (
	hashA = 0x9e3779b97f4a7c15
	hashB = 0xd6e8feb86659fd93
)

func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hashKey is the hash of up to 16 bytes; whoever makes texts collide gets longer
// probes within a table that is at most two thirds full, and nothing else.
func hashKey(k0, k1 uint64, n int) uint64 { return mix(k0^hashA, k1^uint64(n)*hashB) }

// hashLong is the hash of more.
func hashLong(p []byte) uint64 {
	seed := uint64(len(p)) * hashB
	for len(p) > 16 {
		seed = mix(binary.LittleEndian.Uint64(p)^hashA^seed, binary.LittleEndian.Uint64(p[8:])^hashB)
		p = p[16:]
	}
	var tail [16]byte
	copy(tail[:], p)
	return mix(binary.LittleEndian.Uint64(tail[:])^hashA^seed, binary.LittleEndian.Uint64(tail[8:])^hashB)
}

// hashBytes is the hash of any.
func hashBytes(p []byte) uint64 {
	h, _, _ := pieceKey(p)
	return h
}

// pairs holds what two neighbouring tokens become, and how early: an open-addressing
// table over both ids.
type pairs struct {
	slots []pair
	mask  uint64
	shift uint8
	count int
}

// pair is in one place, so that one look at memory finds it.
type pair struct {
	key   uint64 // left<<32|right, plus 1; 0: free
	value uint64 // rank<<32|id
}

func newPairs(n int) *pairs {
	size := uint64(1) << bits.Len(uint(max(n+n/2, 15)))
	return &pairs{slots: hugemem.Make[pair](int(size)), mask: size - 1, shift: uint8(65 - bits.Len64(size))}
}

// noPair is the value of two tokens that do not merge: later than any that do.
const noPair = ^uint64(0)

func pairKey(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) + 1 }

func pairHash(key uint64) uint64 { return key * hashA }

// set takes a merge; of two for the same pair the later one counts.
func (p *pairs) set(a, b, rank, id uint32) {
	if p.count*4 > len(p.slots)*3 {
		p.grow()
	}
	p.put(pairKey(a, b), uint64(rank)<<32|uint64(id))
}

func (p *pairs) put(key, value uint64) {
	for i := pairHash(key) >> p.shift; ; i = (i + 1) & p.mask {
		s := &p.slots[i]
		if s.key == 0 {
			p.count++
		} else if s.key != key {
			continue
		}
		*s = pair{key, value}
		return
	}
}

func (p *pairs) grow() {
	old := p.slots
	*p = *newPairs(len(old))
	for _, s := range old {
		if s.key != 0 {
			p.put(s.key, s.value)
		}
	}
}

// get is rank<<32|id of what the two become, or noPair.
func (p *pairs) get(a, b uint32) uint64 {
	key := pairKey(a, b)
	for i := pairHash(key) >> p.shift; ; i = (i + 1) & p.mask {
		s := &p.slots[i&uint64(len(p.slots)-1)]
		if s.key == key {
			return s.value
		}
		if s.key == 0 {
			return noPair
		}
	}
}

func (p *pairs) size() int { return hugemem.Taken(len(p.slots) * 16) }
