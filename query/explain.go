package query

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// The answer of POST /v1/explain: why find_matches answers as it does.
type (
	explanation struct {
		Model  string           `json:"model"`
		Asked  askedFor         `json:"asked"`
		Spaces []explainedSpace `json:"spaces"`
		Others []otherSpace     `json:"other_spaces"` // of the model, not asked about
	}
	askedFor struct {
		By       string `json:"by"` // token_ids or hashes
		Elements int    `json:"elements"`
		Seed     string `json:"seed,omitempty"` // of the local hashes, from LoRA and salt
	}
	explainedSpace struct {
		Group     string          `json:"group"`
		BlockSize uint32          `json:"block_size"`
		Blocks    int             `json:"blocks"`
		Estimated bool            `json:"estimated,omitempty"`
		LeftOver  int             `json:"tokens_left_over"` // of the last, incomplete block
		Longest   uint32          `json:"longest"`          // of all ranks, in blocks
		Ranks     []explainedRank `json:"ranks"`
	}
	explainedRank struct {
		WorkerID string `json:"worker_id"`
		DPRank   uint32 `json:"dp_rank"`
		depthsByTier
		Held    uint64  `json:"blocks_held"`
		Reason  string  `json:"reason"` // one word of a fixed list
		Detail  string  `json:"detail"`
		Missing *absent `json:"first_missing,omitempty"`
		State   string  `json:"state,omitempty"` // as in /v1/workers
		Drained bool    `json:"drained,omitempty"`
	}
	depthsByTier struct {
		Device     uint32 `json:"device"`
		HostPinned uint32 `json:"host_pinned"`
		Disk       uint32 `json:"disk"`
		External   uint32 `json:"external"`
	}
	absent struct {
		Block    int    `json:"block"`
		Local    string `json:"local_hash,omitempty"`
		Sequence string `json:"sequence_hash,omitempty"`
		HeldBy   int    `json:"held_by_ranks"` // of this space, after the same prefix
	}
	otherSpace struct {
		Group     string `json:"group"`
		BlockSize uint32 `json:"block_size"`
		Why       string `json:"why"`
	}
)

// The reasons for a rank's depth.
const (
	explainWhole    = "whole_request"
	explainNobody   = "nobody_holds_the_next_block"
	explainOthers   = "others_hold_the_next_block"
	explainFirst    = "does_not_hold_the_first_block"
	explainNothing  = "holds_nothing"
	explainMismatch = "other_hash_scheme"
	explainEmpty    = "no_complete_block"
)

// explain answers as find_matches does, with the reasons.
func (q *finder) explain(v *view) ([]byte, *edge.Problem) {
	r := &q.req
	r.earlyExit = false
	e := explanation{Model: string(r.model), Spaces: []explainedSpace{}, Others: []otherSpace{}}
	if e.Asked = (askedFor{By: "hashes", Elements: len(r.hashes)}); r.has&fieldTokens != 0 {
		e.Asked = askedFor{By: "token_ids", Elements: len(r.tokens), Seed: decimal(blockhash.Seed(string(r.lora), string(r.salt)))}
	}
	if q.mute {
		e.Asked.Seed = ""
	}
	p := q.each(v.index, func(sp event.Space, blocks int) {
		e.Spaces = append(e.Spaces, q.explainSpace(v, sp, blocks))
	})
	if p != nil {
		return nil, p
	}
	for _, sp := range v.index.Spaces() {
		if sp.Model != e.Model || r.asks(sp) {
			continue
		}
		why := fmt.Sprintf("the request names group %q", r.group)
		if r.blockSize != 0 && r.blockSize != sp.BlockSize {
			why = fmt.Sprintf("the request names block size %d", r.blockSize)
		}
		e.Others = append(e.Others, otherSpace{sp.Group, sp.BlockSize, why})
	}
	body, err := json.Marshal(e)
	if err != nil { // texts and numbers always have a form
		return nil, edge.Failed(err)
	}
	return append(body, '\n'), nil
}

func decimal(v uint64) string { return strconv.FormatUint(v, 10) }

// explainSpace explains what each has found: every rank of the space.
func (q *finder) explainSpace(v *view, sp event.Space, blocks int) explainedSpace {
	x := explainedSpace{Group: sp.Group, BlockSize: sp.BlockSize, Blocks: blocks, Estimated: q.estimated, Ranks: []explainedRank{}}
	if q.req.has&fieldTokens != 0 {
		x.LeftOver = len(q.req.tokens) % int(sp.BlockSize)
	}
	local := q.limited(q.local)
	if q.req.has&fieldHashes != 0 && !q.req.sequence {
		local = q.limited(q.req.hashes)
	}
	depths := make(map[shard.RankID][event.NumTiers]uint32)
	for i := range q.found.ranks {
		depths[q.found.ranks[i].RankID] = q.found.ranks[i].depth
		x.Longest = max(x.Longest, q.found.ranks[i].depth[event.External])
	}
	sequence := blockhash.SequenceHashes(nil, local)
	known := entriesOf(v, sp)
	space := v.index.Space(sp)
	if space == nil { // gone since
		return x
	}
	for _, h := range slices.DeleteFunc(space.Ranks(), isPool) {
		d := depths[h.RankID]
		rank := explainedRank{
			WorkerID: decimal(h.Worker), DPRank: h.DPRank,
			depthsByTier: depthsByTier{d[event.Device], d[event.HostPinned], d[event.Disk], d[event.External]},
		}
		for _, n := range h.Held {
			rank.Held += uint64(n)
		}
		entry := known[h.Worker]
		if v.registry != nil {
			rank.State, rank.Drained = "unregistered", v.registry.IsDrained(h.Worker)
		}
		if entry != nil {
			rank.State = entry.State.String()
		}
		if at := int(d[event.External]); at < len(local) {
			holders := 0
			for i := range q.found.ranks {
				if int(q.found.ranks[i].depth[event.External]) > at {
					holders++
				}
			}
			rank.Missing = &absent{Block: at, HeldBy: holders}
			if !q.mute {
				rank.Missing.Local, rank.Missing.Sequence = decimal(local[at]), decimal(sequence[at])
			}
		}
		rank.because(entry, blocks)
		x.Ranks = append(x.Ranks, rank)
	}
	return x
}

// entriesOf returns the registrations of the space, by worker.
func entriesOf(v *view, sp event.Space) map[uint64]*registry.Entry {
	if v.registry == nil {
		return nil
	}
	all := v.registry.Snapshot(true)
	all = slices.DeleteFunc(all, func(e registry.Entry) bool { return e.Key.Space != sp })
	known := make(map[uint64]*registry.Entry, len(all))
	for i := range all {
		known[all[i].Key.Worker] = &all[i]
	}
	return known
}

// because says why the rank's depth is what it is.
func (x *explainedRank) because(e *registry.Entry, blocks int) {
	switch {
	case blocks == 0:
		x.Reason, x.Detail = explainEmpty, "the prompt has no complete block, so there is nothing to match"
	case int(x.External) >= blocks:
		x.Reason, x.Detail = explainWhole, "the rank holds every block that was asked about"
	case e != nil && e.Mismatch != "":
		x.Reason, x.Detail = explainMismatch, "its hashes never match: "+e.Mismatch
	case x.Held == 0:
		x.Reason, x.Detail = explainNothing, "the rank holds no block at all: it has published none, or removed or cleared them"
	case x.External == 0:
		x.Reason = explainFirst
		x.Detail = fmt.Sprintf("it holds %d blocks, of other prefixes; %d other ranks hold the first block", x.Held, x.heldByOthers())
	case x.heldByOthers() == 0:
		x.Reason = explainNobody
		x.Detail = fmt.Sprintf("no rank holds block %d after this prefix", x.External)
	default:
		x.Reason = explainOthers
		x.Detail = fmt.Sprintf("it never stored block %d after this prefix, or has removed it; %d other ranks hold it", x.External, x.heldByOthers())
	}
	if x.External > x.Device {
		x.Detail += fmt.Sprintf("; %d of its %d blocks count because of lower tiers", x.External-x.Device, x.External)
	}
}

func (x *explainedRank) heldByOthers() int {
	if x.Missing == nil {
		return 0
	}
	return x.Missing.HeldBy
}

// Explain answers as POST /v1/explain does, but for hashes: it tells none. For a tenant it
// knows its group only. Where there are shares it asks them.
func (s *Server) Explain(tenant *string, body []byte) ([]byte, *edge.Problem) {
	if p := s.gate.refuses(); p != nil {
		return nil, p
	}
	v := s.all()
	if tenant != nil {
		v = v.of(*tenant)
	}
	q := s.finder()
	defer s.release(q)
	q.mute = true
	defer func() { q.mute = false }()
	if p := q.req.parse(body, s.cfg.MaxTokens); p != nil {
		return nil, p
	}
	if s.deps.Shares != nil {
		return s.explainShares(v, &q.req, body)
	}
	return q.explain(v)
}
