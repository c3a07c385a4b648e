package route

import (
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// book puts the request on the chosen rank.
func (r *Router) book(k load.Key, c *Candidate, s *scratch, o *Options, now time.Time) error {
	req := load.Request{
		PromptTokens:   s.tokens,
		NewTokens:      c.NewTokens,
		ExpectedOutput: o.output(),
		Leased:         !o.Watched, // else its end is told, though nothing may be heard of a whole answer for long before
		// Nothing is to be computed there: its prefill is over before it starts.
		Prefilled: o.Stage == DecodeStage,
	}
	if r.tracks(o.Stage) {
		req.Blocks, req.Private = s.local, s.private
	}
	return r.add(k, c.slot, c.RankID, req, now)
}

func (r *Router) add(k load.Key, slot uint32, id shard.RankID, req load.Request, now time.Time) error {
	if err := r.table.Add(k, slot, req, now); err != nil {
		r.stats.Duplicate++
		return err
	}
	r.stats.Booked++
	r.record(load.Change{Kind: load.Added, Key: k, Rank: id, Request: req})
	return nil
}

// Reservation is a booking whose rank the caller has chosen itself.
type Reservation struct {
	RequestID string
	Rank      shard.RankID
	Stage     Stage
	// Blocks are hashes of the prompt's complete blocks; see
	// load.Request.Blocks.
	Blocks                  []uint64
	PromptTokens, NewTokens int
	ExpectedOutput          int
}

// Reserve books a request without a choice. The error wraps ErrUnknownWorker,
// ErrSettings or load.ErrDuplicate.
func (r *Router) Reserve(v Reservation) error {
	if v.RequestID == "" || len(v.RequestID) > MaxRequestID || v.Stage > DecodeStage {
		return fmt.Errorf("%w: a reservation needs a request id of 1 to %d bytes and a stage that there is", ErrSettings, MaxRequestID)
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
	m := r.member(v.Rank)
	if m == nil {
		return fmt.Errorf("reserving worker %d rank %d: %w", v.Rank.Worker, v.Rank.DPRank, ErrUnknownWorker)
	}
	req := load.Request{
		PromptTokens: v.PromptTokens, NewTokens: v.NewTokens, ExpectedOutput: v.ExpectedOutput,
		Leased: true, Prefilled: v.Stage == DecodeStage,
	}
	if r.tracks(v.Stage) {
		req.Blocks = v.Blocks
	}
	k := load.Key{Owner: r.cfg.ID, ID: v.RequestID, Stage: uint8(v.Stage)}
	err := r.add(k, m.slot, v.Rank, req, now)
	if err == nil {
		r.send(k, m, 0, 0, false, now)
	}
	return err
}

// MarkPrefillComplete tells that the request's first token is out. A booking
// of the prefill stage ends by it. It reports whether a booking was waiting
// for that.
func (r *Router) MarkPrefillComplete(requestID string) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	stages := r.stages()
	var attempts [DecodeStage + 1]*attempt
	for stage := range stages {
		attempts[stage] = r.attempts[r.key(requestID, stage)]
		r.succeeded(attempts[stage], now)
	}
	for stage := range stages {
		k, a := r.key(requestID, stage), attempts[stage]
		if a == nil {
			continue
		}
		found = found || stage == PrefillStage || a.trip.first.IsZero()
		if stage != PrefillStage && r.table.PrefillComplete(k, now) {
			r.record(load.Change{Kind: load.Prefilled, Key: k})
		}
		r.firstToken(k, a, now)
		if stage == PrefillStage {
			r.free(k)
		}
	}
	return r.known(found)
}

// Output tells that n more tokens came out of the request: it renews the
// booking's lease, and with Settings.TrackOutputBlocks counts the blocks that
// they fill. It reports whether the request has a booking.
func (r *Router) Output(requestID string, n int) bool {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for stage := range r.stages() {
		k := r.key(requestID, stage)
		if _, live := r.table.Output(k, n, now); live {
			found = true
			r.spokeNow(k, now)
			if r.settings.TrackOutputBlocks && n > 0 {
				r.record(load.Change{Kind: load.Generated, Key: k, Tokens: n})
			}
		}
	}
	return r.known(found)
}

// OutputBlock tells that the request has filled one more block with output,
// and what each of its output blocks counts from now on: 0 to 1, or below 0
// for no change. It reports whether the request has a booking.
func (r *Router) OutputBlock(requestID string, weight float64) bool {
	if !(weight >= 0 && weight <= 1) {
		weight = -1
	}
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for _, stage := range [...]Stage{Whole, DecodeStage} {
		k := r.key(requestID, stage)
		if r.table.OutputBlock(k, weight, now) {
			found = true
			r.record(load.Change{Kind: load.Filled, Key: k, Weight: weight})
		}
	}
	return r.known(found)
}

// Free tells that the request is over, however it ended. It reports whether
// it had a booking.
func (r *Router) Free(requestID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	found := false
	for stage := range r.stages() {
		found = r.free(r.key(requestID, stage)) || found
	}
	return r.known(found)
}

// Holds reports whether the request has a booking. Unlike the calls that follow
// a request it counts nothing as unknown.
func (r *Router) Holds(requestID string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for stage := range r.stages() {
		if r.table.Has(r.key(requestID, stage)) {
			return true
		}
	}
	return false
}

// FreeStage ends the booking of one stage, as when a prefill has failed and
// the request goes on without it.
func (r *Router) FreeStage(requestID string, stage Stage) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known(r.free(r.key(requestID, stage)))
}

func (r *Router) key(requestID string, stage Stage) load.Key {
	return load.Key{Owner: r.cfg.ID, ID: requestID, Stage: uint8(stage)}
}

// stages returns how many of the stages, from Whole on, live bookings may be of: as a rule
// none is of a part, and each look for one costs as much as the rest of a call.
func (r *Router) stages() Stage {
	if r.table.Parts() == 0 {
		return Whole + 1
	}
	return DecodeStage + 1
}

func (r *Router) free(k load.Key) bool {
	slot, tokens, live := r.table.End(k)
	if !live {
		return false
	}
	r.ended(k, slot, tokens)
	r.record(load.Change{Kind: load.Freed, Key: k})
	return true
}

// firstToken and ended tell a policy that learns about own bookings.
func (r *Router) firstToken(k load.Key, a *attempt, now time.Time) {
	if !a.trip.first.IsZero() {
		return
	}
	l := r.table.Load(a.slot)
	r.times.firstToken(&a.trip, now, l)
	if r.observer != nil {
		r.observer.FirstToken(k, now, l)
	}
}

func (r *Router) ended(k load.Key, slot uint32, tokens int) {
	now, l := r.cfg.Now(), r.table.Load(slot)
	if a := r.attempts[k]; a != nil {
		delete(r.attempts, k)
		r.gone(k, a, now)
		if a.chosen {
			r.times.ended(&a.trip, Stage(k.Stage), now, l, tokens)
		}
		r.spares(a)
	}
	if r.observer != nil {
		r.observer.Ended(k, now, l, tokens)
	}
}

// known counts the calls about requests that have no booking.
func (r *Router) known(found bool) bool {
	if !found {
		r.stats.Unknown++
	}
	return found
}

// Expire ends the bookings whose lease is over. Choices do it too; call it
// now and then so that an idle router forgets.
func (r *Router) Expire() {
	now := r.cfg.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.expire(now)
}

func (r *Router) expire(now time.Time) {
	r.unseen.until(now, func(k load.Key, at time.Time) {
		if r.awaits(k, at) && r.table.PrefillComplete(k, at) {
			r.times.fetches(&r.attempts[k].trip, -1) // it should have what it fetched
			r.record(load.Change{Kind: load.Prefilled, Key: k})
		}
	})
	r.table.Expire(now, r.settings.Lease, func(k load.Key) {
		r.stats.Expired++
		r.ended(k, math.MaxUint32, 0)
		r.record(load.Change{Kind: load.Freed, Key: k})
	})
}

// rest is Rest as a booking may have it.
func (p *Prompt) rest() int { return min(max(p.Rest, 0), load.MaxCount) }
