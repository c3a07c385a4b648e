package query

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// finder is the scratch memory of one find_matches. The Server reuses it.
type finder struct {
	req   findRequest
	local []uint64
	found Found

	asked, listed int64 // blocks asked about and ranks listed, for metrics
}

// find answers the request from the index, appending the JSON form to dst.
//
// Depths are cumulative over tiers: "host_pinned" counts the leading blocks
// that are in device or host memory each, and so on. Those of a worker are the
// largest of its ranks; "longest" is the largest over all tiers, "tokens" the
// same in tokens.
func (q *finder) find(ix Index, body []byte, maxTokens int, dst []byte) ([]byte, *Problem) {
	r := &q.req
	q.asked, q.listed = 0, 0
	if p := r.parse(body, maxTokens); p != nil {
		return dst, p
	}
	spaces := ix.Spaces()
	begun := len(dst)
	matched, local := 0, uint32(0) // local: the block size that q.local is for
	for i, sp := range spaces {
		if !r.asks(sp) {
			continue
		}
		space := ix.Space(sp)
		if space == nil { // gone since
			continue
		}
		if r.has&fieldTokens != 0 && local != sp.BlockSize {
			seed := core.Seed(string(r.lora), string(r.salt))
			var err error
			q.local, err = core.LocalHashes(q.local[:0], r.tokens, int(sp.BlockSize), core.HashOptions{Seed: seed})
			if err != nil {
				continue // a space cannot have such a block size
			}
			local = sp.BlockSize
		}
		hashes := q.local
		if r.has&fieldHashes != 0 {
			hashes = r.hashes
		}
		if r.maxBlocks > 0 && uint64(len(hashes)) > uint64(r.maxBlocks) {
			hashes = hashes[:r.maxBlocks]
		}
		q.found.ranks, q.found.early = q.found.ranks[:0], r.earlyExit
		space.Find(hashes, &q.found)
		q.found.sort()
		q.asked += int64(len(hashes))
		q.listed += int64(len(q.found.ranks))

		if matched++; matched == 1 {
			dst = append(dst, `{"model":`...)
			dst = appendString(dst, spaces[i].Model)
			dst = append(dst, `,"spaces":[`...)
		} else {
			dst = append(dst, ',')
		}
		dst = appendSpaceMatches(dst, sp, len(hashes), q.found.ranks, r.treeSizes)
	}
	if matched == 0 {
		return dst[:begun], r.unmatched(spaces)
	}
	return append(dst, "]}\n"...), nil
}

// asks reports whether the request is about the space.
func (r *findRequest) asks(sp event.Space) bool {
	return string(r.model) == sp.Model &&
		(r.has&fieldGroup == 0 || string(r.group) == sp.Group) &&
		(r.blockSize == 0 || r.blockSize == sp.BlockSize)
}

// unmatched says why the request is about none of the spaces.
func (r *findRequest) unmatched(spaces []event.Space) *Problem {
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
		return &Problem{fasthttp.StatusNotFound, "group", reasonUnknownGroup,
			"the model has no group " + strconv.Quote(shorten(r.group))}
	case model && r.blockSize != 0 && !slices.Contains(sizes, r.blockSize):
		return bad("block_size", reasonBlockSize,
			fmt.Sprintf("the model is indexed in blocks of %d tokens, not %d", sizes, r.blockSize))
	}
	return &Problem{fasthttp.StatusNotFound, "model", reasonUnknownModel,
		"no worker has published blocks of model " + strconv.Quote(shorten(r.model))}
}

// appendSpaceMatches appends one space's answer. The ranks are sorted.
func appendSpaceMatches(dst []byte, sp event.Space, blocks int, ranks []rankDepth, sizes bool) []byte {
	dst = append(dst, `{"group":`...)
	dst = appendString(dst, sp.Group)
	dst = appendUint(dst, `,"block_size":`, uint64(sp.BlockSize))
	dst = appendUint(dst, `,"blocks":`, uint64(blocks))
	dst = append(dst, `,"workers":[`...)
	for i := 0; i < len(ranks); {
		worker, best, held, end := ranks[i].Worker, ranks[i].depth, ranks[i].held, i+1
		for ; end < len(ranks) && ranks[end].Worker == worker; end++ {
			held += ranks[end].held
			for t, d := range ranks[end].depth {
				best[t] = max(best[t], d)
			}
		}
		if i > 0 {
			dst = append(dst, ',')
		}
		longest := uint64(best[event.NumTiers-1])
		dst = appendUint(dst, `{"worker_id":"`, worker)
		dst = append(dst, '"')
		dst = appendDepths(dst, &best)
		dst = appendUint(dst, `,"longest":`, longest)
		dst = appendUint(dst, `,"tokens":`, longest*uint64(sp.BlockSize))
		if sizes {
			dst = appendUint(dst, `,"tree_size":`, held)
		}
		dst = append(dst, `,"ranks":[`...)
		for j := i; j < end; j++ {
			if j > i {
				dst = append(dst, ',')
			}
			dst = appendUint(dst, `{"dp_rank":`, uint64(ranks[j].DPRank))
			dst = appendDepths(dst, &ranks[j].depth)
			if sizes {
				dst = appendUint(dst, `,"tree_size":`, ranks[j].held)
			}
			dst = append(dst, '}')
		}
		dst = append(dst, "]}"...)
		i = end
	}
	return append(dst, "]}"...)
}

func appendDepths(dst []byte, depth *[event.NumTiers]uint32) []byte {
	dst = appendUint(dst, `,"device":`, uint64(depth[event.Device]))
	dst = appendUint(dst, `,"host_pinned":`, uint64(depth[event.HostPinned]))
	dst = appendUint(dst, `,"disk":`, uint64(depth[event.Disk]))
	return appendUint(dst, `,"external":`, uint64(depth[event.External]))
}

// appendWorkers appends what every worker of the spaces holds. An empty model
// means every model.
func appendWorkers(dst []byte, ix Index, model []byte) []byte {
	dst = append(dst, `{"spaces":[`...)
	first := true
	for _, sp := range ix.Spaces() {
		if len(model) > 0 && string(model) != sp.Model {
			continue
		}
		space := ix.Space(sp)
		if space == nil { // gone since
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, `{"model":`...)
		dst = appendString(dst, sp.Model)
		dst = append(dst, `,"group":`...)
		dst = appendString(dst, sp.Group)
		dst = appendUint(dst, `,"block_size":`, uint64(sp.BlockSize))
		dst = append(dst, `,"workers":[`...)
		dst = appendHeld(dst, space.Ranks())
		dst = append(dst, "]}"...)
	}
	return append(dst, "]}\n"...)
}

// appendHeld appends the workers of one space, whose ranks are sorted.
func appendHeld(dst []byte, ranks []Held) []byte {
	for i := range ranks {
		switch {
		case i > 0 && ranks[i].Worker == ranks[i-1].Worker:
			dst = append(dst, ',')
		case i > 0:
			dst = append(dst, "]},"...)
			fallthrough
		default:
			dst = appendUint(dst, `{"worker_id":"`, ranks[i].Worker)
			dst = append(dst, `","ranks":[`...)
		}
		blocks := &ranks[i].Blocks
		dst = appendUint(dst, `{"dp_rank":`, uint64(ranks[i].DPRank))
		dst = appendUint(dst, `,"device":`, blocks[event.Device])
		dst = appendUint(dst, `,"host_pinned":`, blocks[event.HostPinned])
		dst = appendUint(dst, `,"disk":`, blocks[event.Disk])
		dst = appendUint(dst, `,"external":`, blocks[event.External])
		dst = append(dst, '}')
	}
	if len(ranks) > 0 {
		dst = append(dst, "]}"...)
	}
	return dst
}
