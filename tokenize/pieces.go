package tokenize

// batch is how many pieces are looked up together.
const batch = 32

// piece is one that is to be encoded: no token crosses its ends.
type piece struct {
	text   []byte
	h      uint64
	k0, k1 uint64 // pieceKey
	ids    uint64 // as the cache packs them
	n      int    // how many, or unknown, or inLong
}

// whole encodes a text without added tokens, all of it.
func (t *Tokenizer) whole(w *work, b []byte, first bool, dst []uint32) []uint32 {
	return t.flush(w, t.cut(w, 0, b, first, dst))
}

// push takes a piece to be encoded, at the latest by flush. Its memory must stay as it is until then.
func (t *Tokenizer) push(w *work, p []byte, dst []uint32) []uint32 {
	w.pieces[w.held].text = p
	if w.held++; w.held == batch {
		return t.flush(w, dst)
	}
	return dst
}

// flush encodes what was pushed. What each piece needs of memory is asked for before any is waited
// for, as most of the time that encoding takes is waiting: first their places in the cache, then, of
// those that are not there, their places among the tokens.
func (t *Tokenizer) flush(w *work, dst []uint32) []uint32 {
	held := w.pieces[:w.held]
	w.held = 0
	if t.cache == nil {
		for i := range held {
			dst = t.model.encode(w, held[i].text, dst)
		}
		return dst
	}
	for i := range held {
		p := &held[i]
		p.h, p.k0, p.k1 = pieceKey(p.text)
		p.ids = t.cache.set(p.h)[0].Load()
	}
	for i := range held {
		p := &held[i]
		p.n = unknown
		switch n := len(p.text); {
		case n == 1 && t.single != nil:
			p.ids, p.n = uint64(t.single[p.text[0]]), 1
			continue
		case n <= shortKey:
			p.ids, p.n = t.cache.getShort(p.h, p.k0, p.k1, n)
		}
		if p.n < 0 && t.wholes != nil {
			p.ids = t.wholes.slots[p.h&t.wholes.mask].key
		}
	}
	for i := range held {
		p := &held[i]
		if p.n >= 0 {
			const id = 1<<idBits - 1
			if cap(dst)-len(dst) >= shortIDs {
				out := dst[len(dst) : len(dst)+shortIDs]
				out[0], out[1], out[2] = uint32(p.ids&id), uint32(p.ids>>idBits&id), uint32(p.ids>>(2*idBits)&id)
				dst = dst[:len(dst)+p.n]
				continue
			}
			for j := range p.n {
				dst = append(dst, uint32(p.ids>>(idBits*j)&id))
			}
			continue
		}
		dst = t.encodePiece(w, p, dst)
	}
	return dst
}

// encodePiece encodes one that the cache of short pieces does not have.
func (t *Tokenizer) encodePiece(w *work, p *piece, dst []uint32) []uint32 {
	n := len(p.text)
	if n > longKey {
		return t.model.encode(w, p.text, dst)
	}
	from := len(dst)
	if t.wholes != nil {
		if id := t.wholes.findKey(p.h, p.k0, p.k1, p.text); id != none {
			dst = append(dst, id)
			if n <= shortKey {
				t.cache.putShort(p.h, p.k0, p.k1, n, dst[from:])
			}
			return dst
		}
	}
	if n > shortKey || p.n == inLong { // else it would only be waited for
		if out, ok := t.cache.getLong(p.h, p.text, dst); ok {
			return out
		}
	}
	dst = t.model.encode(w, p.text, dst)
	if n <= shortKey && p.n != inLong { // else that is known already
		t.cache.putShort(p.h, p.k0, p.k1, n, dst[from:])
	}
	if n > shortKey || len(dst)-from > shortIDs {
		t.cache.putLong(p.h, p.text, dst[from:])
	}
	return dst
}
