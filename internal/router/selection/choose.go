package selection

import (
	"context"
	"crypto/rand"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// maxWeight bounds overrides of the weight and the temperature.
const maxWeight = 1e6

// maxTarget bounds targets, in ms: a day.
const maxTarget = 86_400_000

// selection is the body of POST /v1/select, select_and_reserve and
// potential_loads.
type selection struct {
	target
	id           string
	tokens       []uint32
	blocks, seqs []uint64
	isl          uint64
	hasISL       bool
	lora, salt   string
	options      route.Options
}

func (q *selection) parse(body []byte, limit int) *edge.Problem {
	f := fields{
		"selection_id":           func(o *object) { q.id = o.text() },
		"token_ids":              func(o *object) { q.tokens = o.tokens(limit) },
		"block_hashes":           func(o *object) { q.blocks = o.hashes(limit) },
		"sequence_hashes":        func(o *object) { q.seqs = o.hashes(limit) },
		"isl_tokens":             func(o *object) { q.isl, q.hasISL = o.uint(math.MaxInt32), true },
		"lora_name":              func(o *object) { q.lora = o.text() },
		"cache_salt":             func(o *object) { q.salt = o.text() },
		"overlap_score_weight":   func(o *object) { v := o.float(0, maxWeight); q.options.Weight = &v },
		"router_temperature":     func(o *object) { v := o.float(0, maxWeight); q.options.Temperature = &v },
		"allowed_worker_ids":     func(o *object) { q.options.Allowed = o.ids(limit) },
		"excluded_worker_ids":    func(o *object) { q.options.Excluded = o.ids(limit) },
		"worker_id":              func(o *object) { v := o.uint(math.MaxUint64); q.options.Worker = &v },
		"dp_rank":                func(o *object) { v := uint32(o.uint(math.MaxUint32)); q.options.DPRank = &v },
		"expected_output_tokens": func(o *object) { q.options.ExpectedOutput = int(o.uint(math.MaxInt32)) },
		"ttft_target_ms":         func(o *object) { q.options.FirstToken = o.target() },
		"itl_target_ms":          func(o *object) { q.options.Token = o.target() },
		"explain":                func(o *object) { q.options.Explain = o.bool() },
		"phase":                  func(o *object) { q.options.Stage = o.phase() },
	}
	q.fields(f)
	if p := parse(body, f); p != nil {
		return p
	}
	switch {
	case q.tokens != nil && q.blocks != nil:
		return edge.Bad("block_hashes", edge.Conflict, "give token_ids or block_hashes, not both")
	case q.tokens == nil && q.blocks == nil:
		return edge.Bad("token_ids", edge.Missing, "give token_ids, or the block_hashes of the prompt's complete blocks")
	case q.blocks != nil && (q.lora != "" || q.salt != ""):
		return edge.Bad("block_hashes", edge.Conflict, "hashes contain the LoRA name and the salt already; give those with token_ids only")
	case q.tokens != nil && q.hasISL && q.isl != uint64(len(q.tokens)):
		return edge.Bad("isl_tokens", edge.Conflict, "is not the number of token_ids")
	case len(q.id) > route.MaxRequestID:
		return edge.Bad("selection_id", edge.OutOfRange, "longer than "+strconv.Itoa(route.MaxRequestID)+" bytes")
	}
	return nil
}

// target reads a time in ms.
func (o *object) target() *time.Duration {
	d := time.Duration(o.float(0, maxTarget) * float64(time.Millisecond))
	return &d
}

// phase reads which part of a request is meant.
func (o *object) phase() route.Stage {
	switch text := o.text(); {
	case o.p != nil || text == "aggregated":
		return route.Whole
	case text == "prefill":
		return route.PrefillStage
	case text == "decode":
		return route.DecodeStage
	}
	o.refuse("phase", edge.OutOfRange, "must be aggregated, prefill or decode")
	return route.Whole
}

// prompt returns what the router looks at. Sequence hashes say nothing that the
// hashes of the blocks do not.
func (q *selection) prompt(m *Named) (route.Prompt, *edge.Problem) {
	size := int(m.BlockSize)
	blocks := len(q.blocks)
	if q.tokens != nil {
		blocks = blockhash.Blocks(len(q.tokens), size, false)
	}
	switch {
	case q.seqs != nil && len(q.seqs) != blocks:
		return route.Prompt{}, edge.Bad("sequence_hashes", edge.Conflict, "has "+strconv.Itoa(len(q.seqs))+
			" elements; the prompt has "+strconv.Itoa(blocks)+" complete blocks")
	case q.hasISL && q.isl/uint64(size) != uint64(blocks):
		return route.Prompt{}, edge.Bad("isl_tokens", edge.Conflict, "a prompt of so many tokens does not have "+
			strconv.Itoa(blocks)+" complete blocks of "+strconv.Itoa(size))
	case q.tokens != nil:
		return route.Prompt{Tokens: q.tokens, Hash: blockhash.Options{Seed: blockhash.Seed(q.lora, q.salt)}}, nil
	}
	return route.Prompt{Local: q.blocks, Length: int(q.isl)}, nil
}

// overlap is what the chosen rank has of the prompt, in tokens. As in Dynamo's
// indexer, cpu and disk count the tiers above them, too.
type overlap struct {
	Longest uint64            `json:"longest_matched"`
	GPU     uint64            `json:"gpu"`
	DP      map[string]uint64 `json:"dp"`
	CPU     uint64            `json:"cpu"`
	Disk    uint64            `json:"disk"`
}

func overlapOf(c *route.Candidate, size uint32) overlap {
	in := func(t event.Tier) uint64 { return uint64(c.Cached[t]) * uint64(size) }
	return overlap{
		Longest: in(event.NumTiers - 1), GPU: in(event.Device), CPU: in(event.HostPinned), Disk: in(event.Disk),
		DP: map[string]uint64{strconv.FormatUint(uint64(c.DPRank), 10): in(event.Device)},
	}
}

type explained struct {
	Worker  uint64   `json:"worker_id"`
	Rank    uint32   `json:"dp_rank"`
	Cost    *float64 `json:"cost"` // null if left out
	Formula string   `json:"formula,omitempty"`
	Unknown bool     `json:"unknown,omitempty"` // its share has not answered
	Left    string   `json:"left_out,omitempty"`
}

type chosen struct {
	ID       string  `json:"selection_id"`
	Model    string  `json:"model_name"`
	Lora     string  `json:"lora_name,omitempty"`
	Group    string  `json:"routing_group"`
	Worker   uint64  `json:"worker_id"`
	Rank     uint32  `json:"dp_rank"`
	Endpoint *string `json:"endpoint"` // null if unknown
	Size     uint32  `json:"block_size"`
	Overlap  overlap `json:"overlap"`
	// Estimated: overlap is the part of what the index has that engines are seen to reuse.
	Estimated bool `json:"estimated,omitempty"`
	// Unknown: nobody knows yet what workers hold, and overlap is none for that.
	Unknown bool        `json:"unknown,omitempty"`
	Prefill int         `json:"effective_prefill_tokens"`
	Explain []explained `json:"explain,omitempty"`
}

// read returns what a body asks for, of which model, and of which prompt.
func (s *Service) read(body []byte) (q selection, m Named, prompt route.Prompt, p *edge.Problem) {
	if p = q.parse(body, s.cfg.MaxTokens); p == nil {
		m, p = s.find(&q.target)
	}
	if p == nil {
		p = s.adapter(&q, &m)
	}
	if p == nil {
		prompt, p = q.prompt(&m)
	}
	return q, m, prompt, p
}

// adapter brings together what model_name and lora_name say, and leaves only workers that know the name.
func (s *Service) adapter(q *selection, m *Named) *edge.Problem {
	if q.lora != "" {
		of := Named{Model: m.Model, Lora: q.lora} // none that anybody knows: its hashes are its own all the same
		for _, named := range s.cfg.Named(q.lora) {
			if i := slices.IndexFunc(named, func(n Named) bool { return n.Model == m.Model && n.Lora != "" }); i >= 0 {
				of = named[i]
				break
			}
		}
		if m.Lora != "" && m.Lora != of.Lora {
			return edge.Bad("lora_name", edge.Conflict, "model_name is the name of another LoRA adapter")
		}
		Allow(&q.options, m.Workers)
		*m = of
	}
	q.lora = m.Lora
	Allow(&q.options, m.Workers)
	return nil
}

// Allow leaves of the workers that a request may go to only those of the list, if that is not nil.
func Allow(o *route.Options, workers []uint64) {
	switch {
	case workers == nil:
	case o.Allowed == nil:
		o.Allowed = workers
	default:
		// A copy: the list may be the fleet's, of who knows a name.
		o.Allowed = slices.DeleteFunc(slices.Clone(o.Allowed), func(id uint64) bool { return !slices.Contains(workers, id) })
	}
}

func (s *Service) choose(ctx context.Context, body []byte, book bool) (Answer, *edge.Problem) {
	q, m, prompt, p := s.read(body)
	if p != nil {
		return Answer{}, p
	}
	if q.id == "" {
		q.id = rand.Text()
	}
	if book {
		q.options.RequestID = q.id
	}
	best, err := m.Router.BestWorker(ctx, prompt, q.options)
	if err != nil {
		return Answer{}, refused(err)
	}
	out := chosen{
		ID: q.id, Model: m.Model.Model, Lora: m.Lora, Group: registry.GroupName(m.Group), Worker: best.Worker, Rank: best.DPRank, Size: m.BlockSize,
		Overlap: overlapOf(&best.Candidate, m.BlockSize), Prefill: best.NewTokens, Estimated: best.Account.Estimated,
		Unknown: best.Unknown || s.cfg.Unread != nil && s.cfg.Unread() != "",
	}
	if e := m.Endpoint(best.Worker); e != "" {
		out.Endpoint = &e
	}
	for i := range best.Ranks {
		r := &best.Ranks[i]
		x := explained{Worker: r.Worker, Rank: r.DPRank, Formula: r.Formula, Unknown: r.Unknown}
		if r.Left != route.Eligible {
			x.Left = r.Left.String()
		} else if cost := r.Cost; !math.IsInf(cost, 0) && !math.IsNaN(cost) {
			x.Cost = &cost
		}
		out.Explain = append(out.Explain, x)
	}
	return Answer{Status: http.StatusOK, Body: edge.JSON(out)}, nil
}

type potentialLoad struct {
	Worker   uint64  `json:"worker_id"`
	Rank     uint32  `json:"dp_rank"`
	Prefill  int     `json:"potential_prefill_tokens"`
	Decode   float64 `json:"potential_decode_blocks"`
	Requests int     `json:"active_requests"`
}

func (s *Service) potential(ctx context.Context, body []byte) (Answer, *edge.Problem) {
	q, m, prompt, p := s.read(body)
	if p != nil {
		return Answer{}, p
	}
	cands, err := m.Router.PotentialLoads(ctx, prompt, q.options)
	if err != nil {
		return Answer{}, refused(err)
	}
	out := make([]potentialLoad, len(cands))
	for i := range cands {
		c := &cands[i]
		out[i] = potentialLoad{c.Worker, c.DPRank, c.PrefillTokens, c.DecodeBlocks, c.Requests}
	}
	return Answer{Status: http.StatusOK, Body: edge.JSON(out)}, nil
}

// reserve answers POST /v1/reservations: a booking whose rank the caller chose.
func (s *Service) reserve(body []byte) (Answer, *edge.Problem) {
	var q selection
	var worker, rank, effective uint64
	var hasWorker, hasEffective bool
	f := fields{
		"selection_id":             func(o *object) { q.id = o.text() },
		"worker_id":                func(o *object) { worker, hasWorker = o.uint(math.MaxUint64), true },
		"dp_rank":                  func(o *object) { rank = o.uint(math.MaxUint32) },
		"sequence_hashes":          func(o *object) { q.seqs = o.hashes(s.cfg.MaxTokens) },
		"isl_tokens":               func(o *object) { q.isl, q.hasISL = o.uint(math.MaxInt32), true },
		"effective_prefill_tokens": func(o *object) { effective, hasEffective = o.uint(math.MaxInt32), true },
		"expected_output_tokens":   func(o *object) { q.options.ExpectedOutput = int(o.uint(math.MaxInt32)) },
	}
	q.fields(f)
	if p := parse(body, f); p != nil {
		return Answer{}, p
	}
	switch {
	case q.id == "" || len(q.id) > route.MaxRequestID:
		return Answer{}, edge.Bad("selection_id", edge.Missing, "give the id by which the reservation is followed, of at most "+strconv.Itoa(route.MaxRequestID)+" bytes")
	case !hasWorker:
		return Answer{}, edge.Bad("worker_id", edge.Missing, "name the worker; POST "+pathReserve+" chooses one")
	case !q.hasISL:
		return Answer{}, edge.Bad("isl_tokens", edge.Missing, "give the tokens of the prompt")
	case effective > q.isl:
		return Answer{}, edge.Bad("effective_prefill_tokens", edge.OutOfRange, "more than isl_tokens")
	}
	m, p := s.find(&q.target)
	if p != nil {
		return Answer{}, p
	}
	if !hasEffective {
		effective = q.isl
	}
	err := m.Router.Reserve(route.Reservation{
		RequestID: q.id, Rank: shard.RankID{Worker: worker, DPRank: uint32(rank)}, Blocks: q.seqs,
		PromptTokens: int(q.isl), NewTokens: int(effective), ExpectedOutput: q.options.ExpectedOutput,
	})
	if err != nil {
		return Answer{}, refused(err)
	}
	return Answer{Status: http.StatusCreated, Body: edge.JSON(map[string]string{"selection_id": q.id})}, nil
}
