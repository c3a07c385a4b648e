package trace

import "github.com/kvatlas/kvatlas/blockhash"

// Hasher expands requests to the local hashes of blocks of any size. It
// belongs to one goroutine.
//
// The tokens of id i are the consecutive numbers from i × IDTokens on, so that
// small ids give prompts that a person can type. Above 2³² the upper half of
// that product becomes the step between the tokens, which keeps the contents
// of ids different as long as the product is below 2⁶³.
type Hasher struct {
	idTokens, block int
	buf             []uint32 // the tokens of one block
	known           []known  // by a block's first token, if all of its tokens are one id's; made with the first hash
}

// known is the hash of a block: prompts mostly have what others had before.
type known struct {
	first uint64 // token, plus one, before it is cut to 32 bits; 0 of none
	hash  uint64
}

const mostKnown = 1 << 20

// NewHasher makes a Hasher for ids of idTokens tokens and blocks of block
// tokens; both must be positive.
func NewHasher(idTokens, block int) *Hasher {
	return &Hasher{idTokens: idTokens, block: block, buf: make([]uint32, block)}
}

// Prompt appends the local hash of each complete block of the prompt but those that dst has already.
func (h *Hasher) Prompt(dst []uint64, r *Request) []uint64 {
	return h.hashes(dst, r, len(dst), r.Input/h.block)
}

// Output appends the local hash of each block that generation completes: from
// the one in which the prompt ends on. The KV entries of a token exist once
// the next one is computed, so the last token completes nothing.
func (h *Hasher) Output(dst []uint64, r *Request) []uint64 {
	return h.hashes(dst, r, r.Input/h.block, (r.Input+max(r.Output-1, 0))/h.block)
}

func (h *Hasher) hashes(dst []uint64, r *Request, from, to int) []uint64 {
	if h.known == nil {
		h.known = make([]known, mostKnown)
	}
	for b := from; b < to; b++ {
		first, ofID := h.ofID(r, b*h.block)
		k := &h.known[first/uint64(h.block)%mostKnown] // ids that are new are in a row, and so are the blocks of most prompts
		if !ofID || k.first != first+1 {
			h.fill(r, b*h.block)
			hash := blockhash.LocalHash(h.buf, 0, nil)
			if !ofID {
				dst = append(dst, hash)
				continue
			}
			*k = known{first + 1, hash}
		}
		dst = append(dst, k.hash)
	}
	return dst
}

// ofID returns the first token of the block at position p, before it is cut to 32 bits, if all of the
// block's are one id's: blocks that begin alike are alike then.
func (h *Hasher) ofID(r *Request, p int) (first uint64, is bool) {
	ids, q, end := r.IDs, p, r.Input
	if p >= r.Input {
		ids, q, end = r.OutputIDs, p-r.Input, p+h.block
	}
	i, at := q/h.idTokens, q%h.idTokens
	if i >= len(ids) || at+h.block > h.idTokens || p+h.block > end || ids[i] >= (1<<63)/uint64(h.idTokens) {
		return 0, false
	}
	return ids[i]*uint64(h.idTokens) + uint64(at), true
}

// Tokens appends the token ids at positions [from, to) of the prompt and the
// answer.
func (h *Hasher) Tokens(dst []uint32, r *Request, from, to int) []uint32 {
	for p := from; p < to; p++ {
		token, _, _ := h.span(r, p)
		dst = append(dst, token)
	}
	return dst
}

// fill writes the tokens of the block that starts at position p to buf.
func (h *Hasher) fill(r *Request, p int) {
	for out := h.buf; len(out) > 0; {
		token, step, n := h.span(r, p)
		part := out[:min(n, len(out))]
		for i := range part {
			part[i] = token
			token += step
		}
		out, p = out[len(part):], p+len(part)
	}
}

// span returns the token at position p, the step to the next ones, and for how
// many positions the step holds.
func (h *Hasher) span(r *Request, p int) (token, step uint32, n int) {
	ids, q, end := r.IDs, p, r.Input
	if p >= r.Input {
		ids, q, end = r.OutputIDs, p-r.Input, r.Input+len(r.OutputIDs)*h.idTokens
	}
	if i := q / h.idTokens; i < len(ids) {
		at := q % h.idTokens
		first := ids[i] * uint64(h.idTokens)
		step = 2*uint32(first>>32) + 1
		return uint32(first) + uint32(at)*step, step, min(h.idTokens-at, end-p)
	}
	// The request's own: a progression that starts where its serial says.
	x := mix(r.Serial)
	step = uint32(x>>32) | 1
	n = h.idTokens
	if p < r.Input {
		n = r.Input - p
	}
	return uint32(x) + uint32(p)*step, step, n
}

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable
// Pseudorandom Number Generators, OOPSLA 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
