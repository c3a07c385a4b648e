package route

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// Policy chooses among the ranks that may serve a request. A Policy belongs to
// one Router, which calls all but UsesIndex and Formula under its lock: it may keep state.
type Policy interface {
	// UsesIndex reports whether the choice depends on what is cached. If not,
	// nothing is looked up and no prompt token counts as cached. It is asked
	// without the lock, and goes by weights and Settings only.
	UsesIndex(w *Weighing) bool
	// Choose returns the position of the chosen candidate. There is at least
	// one, and they stand in a fixed order. A policy that weighs sets Cost.
	Choose(w *Weighing, cands []Candidate) (int, error)
	// Formula explains the Cost of a candidate that Choose has weighed, with its numbers.
	// It is called without the lock, after the choice, so it goes by the candidate and the
	// plain fields of w alone: the policy's state is another by then, and w.Rand is nil.
	Formula(w *Weighing, c *Candidate) string
}

// Observer is a Policy that learns from what becomes of its choices. It is
// told under the Router's lock, of the Router's own bookings only.
type Observer interface {
	Policy
	// Booked tells that the request is booked on the rank just chosen.
	Booked(w *Weighing, k load.Key, c *Candidate)
	// FirstToken tells when the request's first token came, and the rank's load
	// then.
	FirstToken(k load.Key, now time.Time, l load.Load)
	// Ended tells that the booking is over, however it ended, the rank's load
	// without it, and how many tokens were generated, where that is known; else
	// 0.
	Ended(k load.Key, now time.Time, l load.Load, tokens int)
}

// Candidate is a rank that may serve a request, with what is known about it
// for this request.
type Candidate struct {
	shard.RankID
	// Cached is how many leading blocks of the prompt the rank holds, or of a stale one, or
	// where that is estimated, count: cumulative over tiers.
	Cached [event.NumTiers]uint32
	// CachedTokens is the length of prompt that the engine should find on the
	// tiers that earn credit.
	CachedTokens int
	// NewTokens is how many prompt tokens count as to be computed, with credit
	// for those that are on lower tiers.
	NewTokens int
	// PrefillTokens is the rank's prompt tokens to be computed with this
	// request: those of its requests without a first token, and NewTokens.
	PrefillTokens int
	// NewBlocks is how many blocks of the prompt are not in use on the rank.
	NewBlocks int
	// DecodeBlocks is the rank's blocks in use with this request.
	DecodeBlocks float64
	// Requests and Prefilling count the rank's live requests, and those
	// without a first token, before this one.
	Requests, Prefilling int
	// HeadTokens is how many prompt tokens are to be computed of the request whose turn it is on
	// the rank, and Since when its turn came; see load.Table.Turn. Context is the tokens of the
	// prompts of all its live requests. All are before this one.
	HeadTokens, Context int
	Since               time.Time
	// TotalBlocks is the rank's cache and MaxBatchedTokens what a step of its
	// engine takes; 0 if unknown. CPU is set for a worker without accelerator.
	TotalBlocks, MaxBatchedTokens int
	CPU                           bool
	Pooled                        bool // it reads from a pool; see Worker
	// Stale: the index does not have what the rank holds, so part of it is counted only.
	Stale bool
	// Unknown: no share has answered for it. It counts as holding nothing of the prompt,
	// teaches nothing of prompts, and keeps its sessions.
	Unknown bool

	// Pull is what its engine is to fetch from another one: part of NewTokens for the time that
	// this takes.
	Pull Pull

	// Cost is the policy's: lower is better.
	Cost float64

	slot     uint32
	source   uint32 // Pull's slot
	pool     int    // tokens that its pools are said to have beyond its own
	others   bool   // another router takes it first
	peer     bool   // it may fetch
	atLeast  bool   // it costs Cost or more; see auto.complete
	pullCost float64
}

// Weighing is what a policy goes by besides the candidates.
type Weighing struct {
	BlockSize    int
	PromptTokens int
	Settings     *Settings
	Weight       float64 // Settings.OverlapWeight, or the request's own
	// HasWeight is set if the weight is the request's own.
	HasWeight   bool
	Temperature float64
	Pinned      bool // the request names its worker
	Stage       Stage
	Now         time.Time
	Rand        *rand.Rand

	estimated bool    // depths are bounds
	part      float64 // of them that is expected; 1 of others
	sources   sources // who may give what others lack

	aim      aim  // what the request is to keep
	aims     bool // that is its own
	expected int  // tokens to generate; 0 if unknown
	most     int  // of them; 0 if unknown
	guessed  bool // so is the prompt, but for its length, about

	news float64 // ms until what becomes of other routers' requests is heard; 0 without others

	holds  func(slot uint32) int // blocks that the slot's rank holds
	chance []float64             // scratch

	passed    passed              // ranks that are no candidates
	explained bool                // costs are to keep their parts, for Formula
	parts     [][numParts]float64 // by candidate's slot
}

// heldBy returns how many blocks the rank holds, or 0 if it does not say how many it has
// room for: nobody needs to count them then.
func (w *Weighing) heldBy(c *Candidate) int {
	if c.TotalBlocks == 0 {
		return 0
	}
	return w.holds(c.slot)
}

// Lowest returns the position of the candidate with the lowest Cost: at
// temperature 0 exactly, ties going to the rank that holds the fewest blocks
// and then by chance; above 0 with a chance of exp(-cost/temperature), costs
// scaled to 0 … 1.
func (w *Weighing) Lowest(cands []Candidate) int {
	if w.Temperature > 0 {
		return w.sample(cands)
	}
	best, ties := 0, 1
	for i := 1; i < len(cands); i++ {
		switch c := cands[i].Cost; {
		case c < cands[best].Cost:
			best, ties = i, 1
		case c == cands[best].Cost:
			ties++
		}
	}
	if ties == 1 {
		return best
	}
	cost, fewest, n := cands[best].Cost, math.MaxInt, 0
	for i := range cands {
		if cands[i].Cost != cost {
			continue
		}
		h := 0
		if !w.guessed { // it would be the same one each time, for a prompt that nobody knows
			h = w.holds(cands[i].slot)
		}
		switch {
		case h < fewest:
			best, fewest, n = i, h, 1
		case h == fewest:
			// Each of the n tied so far stays with a chance of 1/n.
			if n++; w.Rand.IntN(n) == 0 {
				best = i
			}
		}
	}
	return best
}

func (w *Weighing) sample(cands []Candidate) int {
	lo, hi := math.Inf(1), math.Inf(-1)
	for i := range cands {
		if lo = min(lo, cands[i].Cost); !math.IsInf(cands[i].Cost, 1) { // what is out of the question scales nothing
			hi = max(hi, cands[i].Cost)
		}
	}
	w.chance = w.chance[:0]
	sum := 0.0
	for i := range cands {
		above := 0.0
		if cost := cands[i].Cost; cost > lo {
			above = (cost - lo) / (hi - lo)
		}
		sum += math.Exp(-above / w.Temperature)
		w.chance = append(w.chance, sum)
	}
	u := w.Rand.Float64() * sum
	for i, c := range w.chance {
		if u < c {
			return i
		}
	}
	return len(cands) - 1
}

// policies lists the policies by mode.
func policies() map[string]func() Policy {
	return map[string]func() Policy{
		"auto":                  func() Policy { return newAuto() },
		"kv":                    func() Policy { return kv{} },
		"dynamo":                func() Policy { return dynamo{} },
		"prefill-x-batch":       func() Policy { return prefillXBatch{} },
		"random":                func() Policy { return random{} },
		"round-robin":           func() Policy { return &roundRobin{} },
		"power-of-two":          func() Policy { return powerOfTwo{} },
		"least-loaded":          func() Policy { return leastLoaded{} },
		"device-aware-weighted": func() Policy { return deviceAware{} },
		"direct":                func() Policy { return direct{} },
	}
}

// Modes returns the names that Settings.Mode may have, sorted.
func Modes() []string { return slices.Sorted(maps.Keys(policies())) }

func newPolicy(mode string) (Policy, error) {
	make, ok := policies()[mode]
	if !ok {
		return nil, fmt.Errorf("%w: mode %q, give one of %v", ErrSettings, mode, Modes())
	}
	return make(), nil
}

// override sets what the request may say itself.
func (w *Weighing) override(o *Options) {
	w.Weight, w.HasWeight = w.Settings.OverlapWeight, o.Weight != nil
	if w.HasWeight {
		w.Weight = *o.Weight
	}
	w.Temperature = w.Settings.Temperature
	if o.Temperature != nil {
		w.Temperature = *o.Temperature
	}
	w.Pinned, w.expected, w.most = o.Worker != nil, o.ExpectedOutput, o.MostOutput
	w.aim, w.aims = o.aim(w.Settings), o.Token != nil
}
