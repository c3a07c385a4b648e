package tokenize

import "slices"

// bpe merges neighbouring symbols, earliest merge first, of equal ones the leftmost,
// until none is left that may.
type bpe struct {
	vocab  *vocab
	merges *pairs
	bytes  [256]uint32 // the token of a byte: the symbols, or what stands for it (byteFallback)
	some   []uint64    // bits by hash: of pairs that merges may have
	twos   []uint64    // what merges has for two bytes side by side, where they are the symbols
	whole  bool        // a piece that is a token is that token (ignore_merges, tiktoken)

	chars        bool // symbols are characters, not bytes
	holes        bool // not each byte is a token
	byteFallback bool // of characters that are no token
	unk          uint32
	fuseUnk      bool
}

// work is memory for one encoding at a time.
type work struct {
	t      *unicodeTables
	ids    []uint32
	rank   []uint64 // of symbol i with the next: rank<<32|id
	next   []int32
	prev   []int32
	heap   []uint64 // rank<<32|position
	text   []byte   // normalized
	text2  []byte
	runes  []rune
	word   []byte
	steps  []step
	whose  string       // of EncodeFor
	pieces [batch]piece // of which the first held wait for flush
	held   int
	bufs   [][]byte // what stages changed, by level
	reg    matcher
}

func newWork() *work { return &work{t: tables()} }

// short is up to how many symbols a scan for the earliest merge is faster than a heap.
const short = 48

// size is how many bytes of memory it takes.
func (m *bpe) size() int { return m.vocab.size() + m.merges.size() + 8*(len(m.twos)+len(m.some)) }

// wholes are the tokens that are themselves where they are a piece; nil: merging decides.
func (m *bpe) wholes() *vocab {
	if !m.whole {
		return nil
	}
	return m.vocab
}

func (m *bpe) encode(w *work, p []byte, dst []uint32) []uint32 {
	if m.whole {
		if id := m.vocab.find(p); id != none {
			return append(dst, id)
		}
	}
	return m.merge(w, p, dst)
}

// merge appends the tokens of one piece.
func (m *bpe) merge(w *work, piece []byte, dst []uint32) []uint32 {
	w.ids = m.symbols(w.ids[:0], piece)
	if len(w.ids) <= short {
		w.mergeShort(m, piece)
		return append(dst, w.ids...)
	}
	return w.mergeLong(m, dst)
}

// prepare makes what is asked in the place of merges: half of all questions are of pairs that do not merge,
// which some answers from less memory, and most others of two bytes side by side. twos is nil where bytes
// are not the symbols.
func (m *bpe) prepare() {
	m.some = make([]uint64, len(m.merges.slots)*somePer/64)
	for _, s := range m.merges.slots {
		if s.key != 0 {
			at := pairHash(s.key) >> (m.merges.shift - someBits)
			m.some[at/64] |= 1 << (at % 64)
		}
	}
	if m.chars || m.holes {
		return
	}
	m.twos = make([]uint64, 1<<16)
	for i := range m.twos {
		m.twos[i] = m.merges.get(m.bytes[i>>8], m.bytes[i&0xff])
	}
}

// somePer are the bits for a slot of merges.
const (
	someBits = 3
	somePer  = 1 << someBits
)

// pair is rank<<32|id of what the two become, or noPair.
func (m *bpe) pair(a, b uint32) uint64 {
	at := pairHash(pairKey(a, b)) >> (m.merges.shift - someBits)
	if m.some[at/64]>>(at%64)&1 == 0 {
		return noPair
	}
	return m.merges.get(a, b)
}

// symbols appends what merging begins with.
func (m *bpe) symbols(ids []uint32, piece []byte) []uint32 {
	if !m.chars && !m.holes {
		for _, c := range piece {
			ids = append(ids, m.bytes[c])
		}
		return ids
	}
	unk := 0 // characters that are not known, not said yet
	for i := 0; i < len(piece); {
		n := 1
		if m.chars {
			_, n = runeAt(piece, i)
		}
		c := piece[i : i+n]
		i += n
		if id := m.vocab.find(c); id != none {
			if unk > 0 {
				ids = append(ids, m.unk)
				unk = 0
			}
			ids = append(ids, id)
			continue
		}
		if m.byteFallback && m.hasBytes(c) {
			// The judge does not say the unknown ones before these: they come with the next that is known.
			for _, b := range c {
				ids = append(ids, m.bytes[b])
			}
			continue
		}
		if m.unk != none {
			if unk > 0 && !m.fuseUnk {
				ids = append(ids, m.unk)
			}
			unk++
		}
	}
	if unk > 0 {
		ids = append(ids, m.unk)
	}
	return ids
}

func (m *bpe) hasBytes(c []byte) bool {
	for _, b := range c {
		if m.bytes[b] == none {
			return false
		}
	}
	return true
}

// mergeShort looks for the earliest merge anew each time: quadratic, on few symbols.
func (w *work) mergeShort(m *bpe, piece []byte) {
	ids := w.ids
	w.rank = slices.Grow(w.rank[:0], len(ids))[:len(ids)]
	rank := w.rank
	if len(ids) == 0 {
		return
	}
	if m.twos != nil {
		for i, c := range piece[1:] {
			rank[i] = m.twos[int(piece[i])<<8|int(c)]
		}
	} else {
		for i := range ids[1:] {
			rank[i] = m.pair(ids[i], ids[i+1])
		}
	}
	n := len(ids)
	for n > 1 {
		best, at := noPair, 0
		for i, r := range rank[:n-1] {
			if r < best { // a rank has one id: of equal ones the leftmost stays
				best, at = r, i
			}
		}
		if best == noPair {
			break
		}
		n--
		ids[at] = uint32(best)
		for i := at + 1; i < n; i++ {
			ids[i], rank[i] = ids[i+1], rank[i+1]
		}
		if at > 0 {
			rank[at-1] = m.pair(ids[at-1], ids[at])
		}
		if at < n-1 {
			rank[at] = m.pair(ids[at], ids[at+1])
		}
	}
	w.ids = ids[:n]
}

// mergeLong keeps the merges in a heap: a piece may be as long as the text, and
// chosen so as to have as many merges as it has bytes.
func (w *work) mergeLong(m *bpe, dst []uint32) []uint32 {
	ids := w.ids
	n := len(ids)
	w.rank = slices.Grow(w.rank[:0], n)[:n]
	w.next = slices.Grow(w.next[:0], n)[:n]
	w.prev = slices.Grow(w.prev[:0], n)[:n]
	rank, next, prev := w.rank, w.next, w.prev
	w.heap = w.heap[:0]
	for i := range ids {
		next[i], prev[i], rank[i] = int32(i+1), int32(i-1), noPair
		if i+1 < n {
			if rank[i] = m.pair(ids[i], ids[i+1]); rank[i] != noPair {
				w.heap = append(w.heap, rank[i]>>32<<32|uint64(i))
			}
		}
	}
	for i := (len(w.heap) - 2) / heapArity; i >= 0; i-- {
		w.down(i)
	}
	offer := func(i int32) {
		rank[i] = noPair
		if j := next[i]; int(j) < n {
			if rank[i] = m.pair(ids[i], ids[j]); rank[i] != noPair {
				w.push(rank[i]>>32<<32 | uint64(uint32(i)))
			}
		}
	}
	for len(w.heap) > 0 {
		top := w.pop()
		i := int32(uint32(top))
		if rank[i] == noPair || rank[i]>>32 != top>>32 {
			continue // of symbols that are no more
		}
		j := next[i]
		ids[i] = uint32(rank[i])
		rank[j] = noPair
		next[i] = next[j]
		if int(next[j]) < n {
			prev[next[j]] = i
		}
		offer(i)
		if prev[i] >= 0 {
			offer(prev[i])
		}
	}
	for i := int32(0); int(i) < n; i = next[i] {
		dst = append(dst, ids[i])
	}
	return dst
}

const heapArity = 4

func (w *work) push(v uint64) {
	h := append(w.heap, v)
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / heapArity
		if h[up] <= v {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = v
	w.heap = h
}

func (w *work) pop() uint64 {
	h := w.heap
	top := h[0]
	last := len(h) - 1
	h[0] = h[last]
	w.heap = h[:last]
	if last > 0 {
		w.down(0)
	}
	return top
}

func (w *work) down(i int) {
	h := w.heap
	if i >= len(h) {
		return
	}
	v := h[i]
	for {
		first := i*heapArity + 1
		if first >= len(h) {
			break
		}
		least := first
		for c := first + 1; c < min(first+heapArity, len(h)); c++ {
			if h[c] < h[least] {
				least = c
			}
		}
		if h[least] >= v {
			break
		}
		h[i] = h[least]
		i = least
	}
	h[i] = v
}
