package route

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// Session is a session's last request: its rank, and the tokens of its prompt.
type Session struct {
	Rank   shard.RankID
	Tokens int
}

// choose weighs the ranks and books the chosen one. The lock is held: another request
// that was weighed before this one is booked would take the same idle rank. So nothing
// here waits or asks a clock.
//
// Candidates are of this call: a policy may write to them (Cost), and Answer has a copy.
func (r *Router) choose(ctx context.Context, s *scratch, o *Options, now time.Time) (chosen Answer, err error) {
	k := load.Key{Owner: r.cfg.ID, ID: o.RequestID, Stage: uint8(o.Stage)}
	if o.RequestID != "" && r.table.Has(k) {
		r.stats.Duplicate++
		return Answer{}, fmt.Errorf("booking request %q: %w", o.RequestID, load.ErrDuplicate)
	}
	sampled := o.RequestID != "" && r.cfg.Decisions.Sample(now, len(r.members))
	defer func() {
		if sampled && err != nil { // it may be asked again, and often
			r.cfg.Decisions.Unsample(len(r.members))
		}
	}()
	explain := o.Explain || sampled || r.cfg.Log != nil && r.cfg.Log.Enabled(ctx, slog.LevelDebug)
	r.weigh.PromptTokens, r.counted = s.tokens, false
	r.weigh.override(o)
	r.weigh.Now, r.weigh.Stage, r.weigh.guessed, r.weigh.explained = now, o.Stage, s.private > 0, explain
	left := r.gather(s, o, now, explain)
	if len(s.cands) == 0 && o.Trial > 0 { // there is nobody else
		whoever := *o
		whoever.Trial = 0
		left = r.gather(s, &whoever, now, explain)
	}
	if len(s.cands) == 0 {
		none := &NoWorkerError{Left: left}
		if none.Overloaded() {
			r.stats.Overloaded++
		} else {
			r.stats.NoWorker++
		}
		return Answer{}, none
	}
	contest := r.contend(s, o, k, now)
	preferred, err := r.policy.Choose(&r.weigh, s.cands)
	if err != nil {
		return Answer{}, err
	}
	if preferred < 0 || preferred >= len(s.cands) {
		return Answer{}, fmt.Errorf("%w: the policy chose candidate %d of %d", ErrSettings, preferred, len(s.cands))
	}
	i := r.stay(o, s, preferred)
	r.times.complete(&r.weigh, s.cands[i:i+1]) // a session's rank may have been passed over
	if contest.pays {
		i = r.near(s, i)
	}
	if o.Patient && o.RequestID != "" && !r.weigh.Pinned && r.policy == Policy(r.times) {
		var e estimate
		r.times.estimate(&e, &r.weigh, &s.cands[i], 0)
		if r.times.later(&r.weigh, s.cands, i, &e, o.Waiting) {
			r.stats.Later++
			r.hold(s, &contest, now)
			return Answer{Candidate: s.cands[i]}, laterError(o.RequestID)
		}
	}
	if contest.pays && r.bySlot[s.cands[i].slot].contested() {
		r.bids.chose(now)
		r.tender(s, &contest)
		r.stats.Later++
		r.stats.Settled++
		return Answer{Candidate: s.cands[i], Settle: r.bids.delay}, laterError(o.RequestID)
	}
	if !contest.settled && len(r.others) > 0 && o.Stage != DecodeStage {
		r.bids.chose(now)
	}
	a := Answer{Candidate: s.cands[i], Blocks: len(s.local), Account: r.account(o, s, preferred, i)}
	r.stats.Chosen++
	if sampled && o.Stage != DecodeStage {
		r.cfg.Prompts.Add(r.cfg.Space, s.local)
	}
	var booked *attempt
	if o.RequestID != "" {
		var e estimate
		r.times.estimate(&e, &r.weigh, &a.Candidate, 0)
		if err := r.book(k, &a.Candidate, s, o, now); err != nil {
			return Answer{}, err
		}
		a.Overdue = r.allowed(o, &a.Candidate, &e)
		a.First = duration(e.first)
		allowed := a.Overdue
		if a.Quiet = r.quiet(); o.Question || allowed == 0 {
			allowed, a.Quiet = 0, 0
		}
		booked = r.send(k, r.bySlot[a.slot], o.Client, allowed, o.Question, now)
		booked.watched = o.Watched
		a.Trial = Trial{!booked.worker.breaker.Closed(), r.unproven(booked.worker)}
		booked.choose(&a, o, r.bySlot[a.slot], s.trace.TraceID(), r.cfg.BlockSize)
		if a.Account.Estimated || r.bySlot[a.slot].belief.doubted {
			booked.bound = r.boundOf(s, &a.Candidate)
		}
		r.times.follow(&booked.trip, &r.weigh, &a.Candidate, &e, o.Whole)
		if a.Pull.Tokens > 0 {
			r.record(load.Change{Kind: load.Fetched, Key: k, Rank: a.Pull.From})
		}
		if o.Whole && o.Stage == Whole {
			r.awaitUnseen(k, booked, now.Add(a.First))
		}
		if r.observer != nil {
			r.observer.Booked(&r.weigh, k, &s.cands[i])
		}
	}
	if explain {
		r.note(s, k, booked, sampled)
		if sampled {
			a.Decision = booked.table.ID
		}
	}
	return a, nil
}

// stay returns the rank of the request's session if that gives way to none for its
// load, else the chosen one. What is looked up tells more of what a session has left there than that it
// was there: then its rank has to cost less. (In the lab, to stay where costs are equal made first tokens of
// agents that think for 30 s a fifth later, as of equal ranks it takes the fuller one.)
func (r *Router) stay(o *Options, s *scratch, i int) int {
	if o.Session == nil || r.weigh.Pinned || o.Stage == PrefillStage {
		return i
	}
	for j := range s.cands {
		c := &s.cands[j]
		if c.RankID != o.Session.Rank {
			continue
		}
		var there, best estimate
		r.times.estimate(&there, &r.weigh, c, 0)
		r.times.estimate(&best, &r.weigh, &s.cands[i], 0)
		cost, stays := r.times.total(&r.weigh, &s.cands[i], &best), r.times.total(&r.weigh, c, &there)
		if s.looked && !s.guessed && !c.Unknown {
			if r.policy != Policy(r.times) && stays < cost { // that has weighed more than these estimates
				return j
			}
			return i
		}
		if stays <= cost+there.token*float64(min(o.Session.Tokens, s.tokens)) {
			return j
		}
	}
	return i
}

// gather makes the candidates of a request, and counts the ranks left out by
// reason. Each source is read once, into a table by slot: the index (lookUp), the blocks
// that live requests share with this one (active), and each slot's load. What is made of
// them is what the request would add: new tokens are prompt less credit for what is
// cached, new blocks are those that no live request on the rank has already.
func (r *Router) gather(s *scratch, o *Options, now time.Time, explain bool) (left [numReasons]int) {
	r.weigh.part, r.weigh.estimated = r.estimated(s)
	r.markWorkers(o)
	r.assign()
	r.lookUp(s)
	slots := r.table.Slots()
	r.active = slices.Grow(r.active[:0], slots)[:slots]
	clear(r.active)
	track := r.tracks(o.Stage)
	if track {
		r.table.Active(s.local, r.active)
	}
	s.cands, s.left = slices.Grow(s.cands[:0], len(r.members)), s.left[:0]
	missed := reach{} // here, as they are looked at for each rank
	// As a rule nothing leaves a rank out but its worker's role and absence. Whether that
	// is so is asked once, as asking each rank would cost as much as to weigh it.
	well, prefill := r.allWell(now), o.Stage == PrefillStage
	look := !well || o.Trial > 0 && !r.allProven || o.names() || r.settings.Busy != (Thresholds{}) || r.apart != nil
	members := r.members
	if most := r.passing(s, o, explain || look, track); most != nil {
		members = r.passBy(s, most, o.Waiting)
	}
	for _, m := range members {
		l := r.table.Load(m.slot)
		why := m.worker.absent()
		if look || why != Eligible || (m.worker.Role == Prefill) != prefill {
			if why = r.eligible(m, o, now, well); why == Eligible {
				why = r.busy(m, &l, now)
			}
			if why == Eligible && r.apart != nil && !r.mayPair(m.worker, o) {
				why = Apart
			}
		}
		left[why]++
		if why != Eligible {
			if s.looked {
				missed.without(r, m, why.shortfall(), s.tokens)
			}
			if !explain {
				continue
			}
		}
		// Filled in its place: copying would cost as much as the rest.
		n := len(s.cands)
		s.cands = s.cands[:n+1]
		c := &s.cands[n]
		r.fill(c, s, m, &l, o.Stage, track, now)
		if c.Stale && why == Eligible {
			missed.without(r, m, account.Stale, s.tokens)
		}
		if why != Eligible {
			s.left = append(s.left, Explained{Candidate: *c, Left: why})
			s.cands = s.cands[:n]
			continue
		}
	}
	r.missed = missed
	r.findSources(s, o, now)
	r.forget()
	left[Eligible] = 0
	return left
}

// fill makes a candidate of a rank.
func (r *Router) fill(c *Candidate, s *scratch, m *member, l *load.Load, stage Stage, track bool, now time.Time) {
	c.RankID, c.slot, c.others = m.RankID, m.slot, m.others
	c.TotalBlocks, c.MaxBatchedTokens, c.CPU, c.Pooled = m.worker.TotalBlocks, m.worker.MaxBatchedTokens, m.worker.CPU, m.worker.Pooled
	c.Requests, c.Prefilling = l.Requests, l.Prefilling
	c.Context = l.PromptTokens
	c.HeadTokens, c.Since = r.table.Turn(m.slot)
	c.Cached, c.Cost, c.pool = r.depth[m.slot], 0, 0
	if c.Pooled {
		c.pool = r.believePools(&c.Cached, s.tokens)
	}
	c.Pull, c.peer = Pull{}, m.worker.Peer
	if r.weigh.estimated {
		discount(&c.Cached, r.weigh.part)
	}
	if c.Stale = m.stale; c.Stale {
		discount(&c.Cached, r.settings.StaleCredit)
	}
	if m.belief.doubted && !r.weigh.estimated { // else a part counts as it is
		discount(&c.Cached, m.belief.credit(now))
	}
	c.Unknown = s.unknown != nil && s.unknown(m.RankID.Worker)
	r.credit(c, s.tokens)
	if stage == DecodeStage {
		c.NewTokens = 0
	}
	c.NewBlocks = 0
	if track {
		c.NewBlocks = len(s.local) - int(r.active[m.slot]) + s.private
	}
	c.PrefillTokens = l.PrefillTokens + c.NewTokens
	c.DecodeBlocks = l.DecodeBlocks + float64(c.NewBlocks)
}

// credit turns what is cached into tokens. Depths are cumulative, so each tier is
// credited for what it adds to those above it. CachedTokens is what the engine will
// find, which is compared with what it says afterwards; NewTokens is what it costs,
// where a block to be fetched from the disk counts as partly new.
func (r *Router) credit(c *Candidate, prompt int) {
	credits, size := &r.settings.TierCredits, r.cfg.BlockSize
	if d := int(c.Cached[event.Device]); credits[event.Device] == 1 && d == int(c.Cached[event.External]) {
		// All of it is on the device, or there is none: nothing to weigh.
		c.CachedTokens = min(d*size, prompt)
		c.NewTokens = prompt - c.CachedTokens
		return
	}
	c.CachedTokens = 0
	blocks, above := 0.0, uint32(0)
	for t, d := range c.Cached {
		credit := r.settings.credit(event.Tier(t), c.Pooled)
		if credit > 0 {
			c.CachedTokens = min(int(d)*size, prompt)
		}
		blocks += credit * float64(d-above)
		above = d
	}
	c.NewTokens = max(0, prompt-int(math.Round(blocks*float64(size))))
}

// tracks reports whether bookings of the stage occupy decode blocks.
func (r *Router) tracks(s Stage) bool { return r.settings.TrackActiveBlocks && s != PrefillStage }

const (
	listAllowed = 1 << iota
	listExcluded
)

// markWorkers notes on each worker whether the request names it, so that a
// long list costs no search per rank.
func (r *Router) markWorkers(o *Options) {
	if o.Allowed == nil && len(o.Excluded) == 0 {
		return
	}
	r.mark++
	for _, list := range [...]struct {
		ids []uint64
		as  uint8
	}{{o.Allowed, listAllowed}, {o.Excluded, listExcluded}} {
		for _, id := range list.ids {
			if w := r.workers[id]; w != nil {
				if w.mark != r.mark {
					w.mark, w.list = r.mark, 0
				}
				w.list |= list.as
			}
		}
	}
}

// names reports whether the request names workers that it may go to, or may not.
func (o *Options) names() bool {
	return o.Worker != nil || o.DPRank != nil || o.Allowed != nil || o.Ranks != nil || len(o.Excluded) > 0
}

// eligible says whether the request may go to the rank, however busy it is. well is
// allWell's answer.
func (r *Router) eligible(m *member, o *Options, now time.Time, well bool) Reason {
	w := m.worker
	if (o.Stage == PrefillStage) != (w.Role == Prefill) {
		return OtherRole
	}
	if o.Worker != nil && *o.Worker != w.ID || o.DPRank != nil && *o.DPRank != m.DPRank || o.Ranks != nil && o.Stage != PrefillStage && !o.Ranks[m.RankID] {
		return NotAllowed
	}
	if why := r.listed(w, o); why != Eligible {
		return why
	}
	if absent := w.absent(); absent != Eligible || well && (o.Trial <= 0 || r.allProven) || o.Worker != nil {
		return absent // whoever names a worker knows why
	}
	if why := r.leftOut(w, now); why != Eligible || o.Trial <= 0 || !r.onTrial(w, o.Trial, now) {
		return why
	}
	return Failing
}

// listed says whether the request's lists let it go to the worker, as markWorkers has them.
func (r *Router) listed(w *workerState, o *Options) Reason {
	if o.Allowed == nil && len(o.Excluded) == 0 {
		return Eligible
	}
	var list uint8
	if w.mark == r.mark {
		list = w.list
	}
	switch {
	case list&listExcluded != 0:
		return Excluded
	case o.Allowed != nil && list&listAllowed == 0:
		return NotAllowed
	}
	return Eligible
}

// lookUp spreads the answer of the index over the slots.
func (r *Router) lookUp(s *scratch) {
	if n := r.table.Slots(); n > len(r.depth) {
		r.depth = append(r.depth, make([][event.NumTiers]uint32, n-len(r.depth))...)
		r.found = append(r.found, make([]uint64, words(n)-len(r.found))...)
	}
	r.deepest, r.fullest, r.most = 0, 0, 0
	switch {
	case !s.looked:
	case s.listed:
		for i := range s.shares {
			k := &s.shares[i]
			if m := r.member(k.RankID); m != nil {
				var within [event.NumTiers]uint32
				setWithin(&within, &k.depth, len(s.local))
				for t, d := range within { // it may be found in two ways
					r.depth[m.slot][t] = max(r.depth[m.slot][t], d)
				}
				r.finds(m.slot)
			}
			r.deepest = max(r.deepest, k.depth[event.External])
		}
	default:
		s.result.EachMember(func(k shard.Member, depth [event.NumTiers]uint32) {
			if n := r.number(k); n.member {
				setWithin(&r.depth[n.slot], &depth, len(s.local))
				r.finds(n.slot)
			}
			r.deepest = max(r.deepest, depth[event.External])
		})
	}
}

// setWithin holds an index to its promise, whichever it is: depths are
// cumulative and end with the prompt. All that is weighed is differences of
// them, and one below zero would make a cold rank the best. It goes by pointers
// because a copy of what was just written waits for it (9 ns a rank).
func setWithin(to, said *[event.NumTiers]uint32, blocks int) {
	longest := uint32(min(uint64(blocks), math.MaxUint32))
	for t := event.NumTiers - 1; t >= 0; t-- {
		longest = min(longest, said[t])
		to[t] = longest
	}
}

// numbered caches which slot the index's rank of a number is.
type numbered struct {
	rank   shard.Member
	slot   uint32
	member bool
}

// number returns which slot a rank of the index is. It is kept by the index's number
// for the rank, which another one may get later: the Member tells. That a worker comes
// or goes is not in it, so whoever changes the members empties it.
func (r *Router) number(k shard.Member) *numbered {
	n := k.Number()
	if n >= len(r.numbers) {
		r.numbers = slices.Grow(r.numbers, n+1-len(r.numbers))
		for len(r.numbers) <= n {
			r.numbers = append(r.numbers, numbered{})
		}
	}
	if c := &r.numbers[n]; c.rank == k {
		return c
	}
	c := numbered{rank: k}
	if m := r.member(k.ID()); m != nil {
		c.slot, c.member = m.slot, true
		if m.indexed != k { // read anew
			m.indexed, m.belief = k, m.belief.anew()
		}
	}
	r.numbers[n] = c
	return &r.numbers[n]
}

// member returns the rank, or nil if it is none that may be chosen.
func (r *Router) member(id shard.RankID) *member {
	if slot, ok := r.table.Find(id); ok && int(slot) < len(r.bySlot) {
		return r.bySlot[slot]
	}
	return nil
}

// holds returns how many blocks the slot's rank holds. Few ranks of a choice are asked for, and all of
// them are counted only where the index has another Member for the rank than it had, or none.
func (r *Router) holds(slot uint32) int {
	if m := r.bySlot[slot]; r.cfg.Shares != nil {
		return m.held
	} else if r.cfg.Guesses == nil && m.indexed.Present() {
		return m.indexed.Held()
	}
	if !r.counted {
		r.countHeld()
	}
	return r.held[slot]
}

func (r *Router) countHeld() {
	slots := r.table.Slots()
	r.held, r.counted = slices.Grow(r.held[:0], slots)[:slots], true
	clear(r.held)
	switch {
	case r.cfg.Guesses != nil:
		r.cfg.Guesses.EachRank(r.noteGuessed)
	case r.cfg.Index != nil:
		r.cfg.Index.EachMember(r.noteHeld)
	}
}

// noteHeldOf is noteHeld: a field, as a closure made for each call would be
// allocated for each.
func (r *Router) noteHeldOf(k shard.Member) {
	if n := r.number(k); n.member {
		r.held[n.slot] = k.Held()
	}
}

// noteGuessedOf is noteGuessed, which is a field for the same reason.
func (r *Router) noteGuessedOf(id shard.RankID, blocks int) {
	if m := r.member(id); m != nil {
		r.held[m.slot] = blocks
	}
}
