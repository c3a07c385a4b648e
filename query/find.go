package query

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// finder is the scratch memory of one lookup. The Server reuses it.
type finder struct {
	req       findRequest
	local     []uint64
	size      uint32 // the block size that local is for; 0: none yet
	plain     []uint64
	estimated bool // in the space that is looked at depths are upper bounds
	found     Found
	ranks     []tokenDepth // scratch of /query
	name      []byte       // likewise
	text      []byte       // likewise

	mute bool // explanations tell no hashes

	asked, listed int64 // blocks asked about and ranks listed, for metrics
}

// each looks the request up in every space that it is about, in order, and
// calls visit with the number of blocks; the ranks, sorted, are in q.found.
func (q *finder) each(ix Index, visit func(sp event.Space, blocks int)) *edge.Problem {
	r := &q.req
	q.asked, q.listed, q.size = 0, 0, 0
	spaces := ix.Spaces()
	matched := false
	for _, sp := range spaces {
		if !r.asks(sp) {
			continue
		}
		space := ix.Space(sp)
		if space == nil { // gone since
			continue
		}
		hashes := q.hashes(sp, space)
		q.found.ranks, q.found.early = q.found.ranks[:0], r.earlyExit
		q.found.tokens, q.found.finds, q.found.bounds, q.found.pools = 0, 0, 0, q.found.pools[:0]
		if r.has&fieldTokens != 0 {
			q.found.tokens = len(r.tokens)
		}
		space.Find(hashes, &q.found)
		q.found.sort()
		blocks := len(hashes)
		if r.has&fieldTokens != 0 && space.Eagle() {
			blocks = max(blocks, q.findPlain(sp, space))
		}
		if r.sequence { // some of them may be of no chain that is known
			blocks = len(q.limited(r.hashes))
		}
		q.asked += int64(blocks)
		q.listed += int64(len(q.found.ranks))
		matched, q.estimated = true, space.Hybrid() && (q.found.finds == 0 || q.found.bounds > 0)
		visit(sp, blocks)
	}
	if !matched {
		return r.unmatched(spaces)
	}
	return nil
}

// hashes returns the local hashes that the request is about in the space.
func (q *finder) hashes(sp event.Space, space Space) []uint64 {
	r := &q.req
	switch {
	case r.sequence:
		q.local, q.size = space.Unfold(q.local[:0], q.limited(r.hashes)), 0
		return q.local
	case r.has&fieldHashes != 0:
		return q.limited(r.hashes)
	case space.Eagle():
		q.local, q.size = r.locals(q.local[:0], sp, r.tokens, true), 0
	case q.size != sp.BlockSize:
		q.local, q.size = r.locals(q.local[:0], sp, r.tokens, false), sp.BlockSize
	}
	return q.limited(q.local)
}

// locals appends the local hashes of tokens of the request in the space, those of Eagle or
// the usual ones.
func (r *findRequest) locals(dst []uint64, sp event.Space, tokens []uint32, eagle bool) []uint64 {
	// No error: a space cannot have a block size that is refused.
	dst, _ = blockhash.LocalHashes(dst, tokens, int(sp.BlockSize), blockhash.Options{Seed: blockhash.Seed(string(r.lora), string(r.salt)), Eagle: eagle})
	return dst
}

// findPlain adds to what was found with the hashes of Eagle who holds the tokens' usual
// ones, and returns how many blocks there are if somebody does. As a rule nobody does:
// then it is one block that is hashed and looked up.
func (q *finder) findPlain(sp event.Space, space Space) (blocks int) {
	before := len(q.found.ranks)
	q.plain = q.req.locals(q.plain[:0], sp, q.req.tokens[:min(len(q.req.tokens), int(sp.BlockSize))], false)
	space.Find(q.plain, &q.found)
	if len(q.found.ranks) == before {
		return 0
	}
	q.found.ranks = q.found.ranks[:before]
	q.plain = q.req.locals(q.plain[:0], sp, q.req.tokens, false)
	limited := q.limited(q.plain)
	space.Find(limited, &q.found)
	q.found.merge()
	return len(limited)
}

func (q *finder) limited(hashes []uint64) []uint64 {
	if m := q.req.maxBlocks; m > 0 && uint64(len(hashes)) > uint64(m) {
		return hashes[:m]
	}
	return hashes
}

// appendMatches answers the request from the index, appending the JSON form to
// dst.
//
// Depths are cumulative over tiers: "host_pinned" counts the leading blocks
// that are in device or host memory each, and so on. Those of a worker are the
// largest of its ranks; "longest" is the largest over all tiers, "tokens" the
// same in tokens. What a pool has extends "external" of the ranks whose workers name it.
func (q *finder) appendMatches(ix Index, dst []byte) ([]byte, *edge.Problem) {
	begun := len(dst)
	dst = append(dst, `{"model":`...)
	dst = appendString(dst, string(q.req.model))
	open := `,"spaces":[`
	p := q.each(ix, func(sp event.Space, blocks int) {
		dst = append(dst, open...)
		open = ","
		dst = appendSpaceMatches(dst, sp, blocks, &q.found, q.req.treeSizes, q.estimated)
	})
	if p != nil {
		return dst[:begun], p
	}
	return append(dst, "]}\n"...), nil
}

// unmatched says why the request is about none of the spaces.
func (r *findRequest) unmatched(spaces []event.Space) *edge.Problem {
	var model, group bool
	var sizes []uint32
	for _, sp := range spaces {
		if string(r.model) != sp.Model {
			continue
		}
		model = true
		if r.has&fieldGroup != 0 && string(r.group) != sp.Group {
			continue
		}
		group = true
		if !slices.Contains(sizes, sp.BlockSize) {
			sizes = append(sizes, sp.BlockSize)
		}
	}
	switch {
	case model && !group:
		return edge.Refuse(fasthttp.StatusNotFound, "group", edge.UnknownGroup,
			"the model has no group "+strconv.Quote(shorten(r.group)))
	case model && r.blockSize != 0 && !slices.Contains(sizes, r.blockSize):
		return edge.Bad("block_size", edge.BlockSize,
			fmt.Sprintf("the model is indexed in blocks of %d tokens, not %d", sizes, r.blockSize))
	}
	return edge.Refuse(fasthttp.StatusNotFound, "model", edge.UnknownModel,
		"no worker has published blocks of model "+strconv.Quote(shorten(r.model)))
}
