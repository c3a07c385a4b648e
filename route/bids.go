package route

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// Where requests come to several routers at one moment, none has heard of what the others
// choose just then. If that costs more than to hear of it, a request that would go to another
// router's rank (see assign) is put off for the time that a word takes, and its router says
// which ranks suit it: a bid. By then each router has heard the same bids, and goes through
// them in one order, the shortest prompt first, pairs by routers: those before its own it expects to go where each
// costs least. So all come to what one router would have chosen, for one word's time. A bid that
// is lost, or late, costs what not to have bid would have. Requests that wait at their routers
// (ErrLater) are told likewise, so that of all those the first in the queue's order goes first.

// PerToken is by how much a token that is to be computed puts a request back among those that
// wait (ErrLater), where the shortest go first: several times what it costs, so that they do, but
// none ever waits for all shorter ones that come later.
const PerToken = 100 * time.Microsecond

const (
	// maxBids is how many are known at once of others, and as many of one's own; maxWants how many ranks
	// one names, and maxForeseen how many of others a choice goes through, which takes microseconds for each.
	maxBids, maxWants, maxForeseen = 256, 16, 64
	// nearDelays is how many times the delay one's own rank may cost more, to be taken at once:
	// a request that waits has no more than a better chance for the better one, a half or so, and less where
	// nothing is held, as no queue orders what was put off.
	nearDelays, nearUnheld = 2, 4
	// heldFor is how long a bid of one that waits is believed, and tellHeld how often it is told anew
	// when it tries again: those that are not near their turn do not.
	heldFor, tellHeld = time.Second, time.Second / 4
	// maxDelay is the longest that is waited for others' words.
	maxDelay = 20 * time.Millisecond
	// crowdMemory is how many own choices the others' crowd is a mean of, and maxMoments how many of
	// these are remembered by their times.
	crowdMemory, maxMoments = 64, 64
	// crowdPrompts is how many usual prompts one request of another router counts at most, in it and where it is expected: what
	// it says may be wrong, and one long prompt is no crowd.
	crowdPrompts = 32
)

// bids is what routers of one fleet that choose at one moment tell each other. The Router's
// lock guards it.
type bids struct {
	id      uint64        // this router's
	delay   time.Duration // until others have heard one's word, and the other way, at most; 0: not known
	least   time.Duration // at least
	open    []bid         // by when they were heard
	list    []*bid        // of the last call of before
	own     bid           // likewise
	moments []time.Time   // of the last own choices, a ring
	next    int           // of moments
	seq     uint64        // of the last one made or heard
	crowd   float64       // tokens to be computed that others place, in the mean, while one cannot hear of it
}

type bid struct {
	load.Change
	made     time.Time // of another router's the latest that it may have been
	told     time.Time // or heard
	at       time.Time // its place among the others; see before
	shortest int       // tokens to be computed where most of the prompt is cached
	seq      uint64    // in the order in which those of one router were made
}

// SetDelay says how long it takes, at most and at least, until another router has heard what this one tells, and the
// other way. A most of 0, as at first, is unknown: then no request is put off for others.
func (r *Router) SetDelay(most, least time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bids.delay = max(most, 0); most > maxDelay {
		r.bids.delay = 0
	}
	r.bids.least = min(max(least, 0), r.bids.delay)
}

// hear notes another router's bid, where prompts have so many tokens in the mean. It reports whether that takes one back.
func (b *bids) hear(c load.Change, usual float64, now time.Time) (gone bool) {
	b.expire(now)
	_, known := b.take(c.Key) // it is told anew
	if b.delay == 0 || len(c.Ranks) == 0 || len(c.Key.ID) > MaxRequestID {
		return known
	}
	c.Ranks = slices.Clone(c.Ranks[:min(len(c.Ranks), maxWants)]) // of a long list the rest is not kept
	b.seq++
	b.open = append(b.open, bid{Change: c, made: now.Add(-b.least), shortest: fewest(c.Ranks), told: now, seq: b.seq})
	if !c.Held && !known {
		b.meet(c.Ranks[0].NewTokens, usual, now)
	}
	b.shed(c.Key.Owner)
	return false
}

// shed drops one bid if there are too many of others with that router's, which is new: of the router that has
// most the one that comes last. So one's long queue, or its lies, leave the others their room.
func (b *bids) shed(owner uint64) {
	if b.count(owner) <= maxBids {
		return
	}
	counts, most := make(map[uint64]int), owner
	for i := range b.open {
		if k := b.open[i].Key.Owner; k != b.id {
			counts[k]++
		}
	}
	for k, n := range counts {
		if n > counts[most] || n == counts[most] && most != owner && k < most {
			most = k
		}
	}
	last := -1
	for i := range b.open {
		if o := &b.open[i]; o.Key.Owner == most && (last < 0 || !o.turn().Before(b.open[last].turn())) {
			last = i
		}
	}
	b.open = slices.Delete(b.open, last, last+1)
}

// full reports whether there is no room for a bid of that router: a queue of one's own is no reason not to hear others.
func (b *bids) full(owner uint64) bool { return b.count(owner) >= maxBids }

// count returns how many bids are known of others, or of this router if that is the owner.
func (b *bids) count(owner uint64) (n int) {
	for i := range b.open {
		if (b.open[i].Key.Owner == b.id) == (owner == b.id) {
			n++
		}
	}
	return n
}

// leave forgets the bids of a router that is gone.
func (b *bids) leave(owner uint64) {
	b.open = slices.DeleteFunc(b.open, func(o bid) bool { return o.Key.Owner == owner })
}

// placed notes that another router has booked a request, where prompts have so many tokens in the mean.
func (b *bids) placed(k load.Key, tokens int, usual float64, now time.Time) {
	if _, known := b.take(k); !known {
		b.meet(tokens, usual, now)
	}
}

// meet notes that so many tokens come at one moment with own choices, as far as these could know.
func (b *bids) meet(tokens int, usual float64, now time.Time) {
	counts := finite(float64(tokens), 0, crowdPrompts*usual)
	for _, at := range b.moments {
		if now.Sub(at) <= 2*b.delay {
			b.crowd += counts / crowdMemory
		}
	}
}

// chose notes an own choice.
func (b *bids) chose(now time.Time) {
	b.crowd -= b.crowd / crowdMemory
	if len(b.moments) < maxMoments {
		b.moments = append(b.moments, now)
		return
	}
	b.moments[b.next] = now
	b.next = (b.next + 1) % maxMoments
}

// take removes a bid.
func (b *bids) take(k load.Key) (was bid, known bool) {
	for i := range b.open {
		if b.open[i].Key == k {
			was, known = b.open[i], true
			b.open = slices.Delete(b.open, i, i+1)
			break
		}
	}
	return was, known
}

// fewest returns what is to be computed on the rank that has most.
func fewest(ranks []load.Want) int {
	n := ranks[0].NewTokens
	for _, w := range ranks {
		n = min(n, w.NewTokens)
	}
	return n
}

// expire forgets what nothing came of.
func (b *bids) expire(now time.Time) {
	if len(b.open) > 0 {
		b.open = slices.DeleteFunc(b.open, func(o bid) bool {
			if o.Held {
				return now.Sub(o.told) > heldFor
			}
			return now.Sub(o.made) > 3*b.delay
		})
	}
}

// before returns the bids that come before one's own, which is none of them, in the order in which they choose. Of those that
// wait, at other routers, it is that of queues. Of the others those of one moment, as far as can be told, come the one with less to compute first
// or, of pairs, the one of the router before. It is one order of all: where routers that know the same compared but two at a
// time, three of them might each expect another's to come first. The result lives until the next call.
//
// Two that wait must not each be after the other: neither would go, beside an idle rank. So another router's counts as made as
// late as it may have been. Then of two that came within what words differ by both may go, as they would without a word.
func (b *bids) before(own *bid) []*bid {
	b.own = *own // which would be allocated for each choice
	mine, list := &b.own, b.list[:0]
	for i := range b.open {
		if !b.open[i].Held {
			list = append(list, &b.open[i])
		}
	}
	if !mine.Held {
		list = append(list, mine)
	}
	slices.SortFunc(list, func(x, y *bid) int { return x.made.Compare(y.made) })
	within := max(b.delay/8, b.delay-b.least)
	var moment time.Time
	for _, o := range list {
		if o.made.Sub(moment) > within {
			moment = o.made
		}
		o.at = moment
	}
	slices.SortFunc(list, func(x, y *bid) int {
		first := cmp.Or(x.at.Compare(y.at), cmp.Compare(x.Key.Stage, y.Key.Stage))
		if x.Key.Stage == uint8(PrefillStage) { // no queue orders these: each router goes through its own as they came
			return cmp.Or(first, cmp.Compare(x.Key.Owner, y.Key.Owner), cmp.Compare(x.seq, y.seq))
		}
		return cmp.Or(first, cmp.Compare(x.shortest, y.shortest), cmp.Compare(x.Key.Owner, y.Key.Owner), cmp.Compare(x.Key.ID, y.Key.ID))
	})
	var last time.Time
	for i, o := range list { // one that waits is before the first of the others that has its turn later
		if o.at = o.turn(); !o.at.After(last) {
			o.at = last.Add(1)
		}
		if last = o.at; o == mine {
			list = list[:i]
			break
		}
	}
	if mine.Held {
		mine.at = mine.turn()
	}
	order := func(x, y *bid) int {
		return cmp.Or(x.at.Compare(y.at), cmp.Compare(x.Key.Owner, y.Key.Owner), cmp.Compare(x.Key.ID, y.Key.ID))
	}
	for i := range b.open {
		o := &b.open[i]
		if !o.Held || o.Key.Owner == b.id {
			continue // which of those here comes first says the queue that they are in
		}
		if o.at = o.turn(); order(o, mine) < 0 {
			list = append(list, o)
		}
	}
	slices.SortFunc(list, order)
	if i := slices.IndexFunc(list, func(o *bid) bool { return order(o, mine) > 0 }); i >= 0 {
		list = list[:i]
	}
	b.list = list
	return list
}

// turn orders those that wait, as queues do.
func (o *bid) turn() time.Time {
	return o.made.Add(-o.Waited).Add(time.Duration(o.shortest) * PerToken)
}

// hold tells the others of a request that is to wait, unless they know.
func (r *Router) hold(s *scratch, c *contention, now time.Time) {
	b := &c.bid
	switch {
	case b.made.IsZero() || r.bids.full(b.Key.Owner):
		return
	case b.Held && now.Sub(b.told) < tellHeld:
		r.bids.open = append(r.bids.open, *b)
		return
	}
	b.Waited += now.Sub(b.made) // since when it has waited stays as it is, to the others, too
	b.made, b.told, b.Held = now, now, true
	r.tender(s, c)
}

// Forgo tells that a request that was put off (ErrLater) is not asked for again, as its client is gone: others leave it no
// room then. Of one that is booked, see Free.
func (r *Router) Forgo(requestID string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for stage := range DecodeStage + 1 {
		k := r.key(requestID, stage)
		if _, told := r.bids.take(k); told {
			r.record(load.Change{Kind: load.Sought, Key: k})
		}
	}
}

// contention is a choice that others may make at the same moment.
type contention struct {
	settled bool // it was put off or waited, and the others have heard of it
	pays    bool // to put it off costs less
	bid     bid
}

// contend has the candidates be as they should be when those have chosen who come first.
func (r *Router) contend(s *scratch, o *Options, k load.Key, now time.Time) (c contention) {
	b := &r.bids
	if r.weigh.news = 0; len(r.others) > 0 {
		r.weigh.news = ms(b.delay)
	}
	if b.delay == 0 || len(r.others) == 0 || !o.Patient || o.RequestID == "" || o.Stage == DecodeStage || r.weigh.Pinned || r.policy != Policy(r.times) {
		return c
	}
	b.expire(now)
	if c.bid, c.settled = b.take(k); !c.settled {
		c.settled = o.Settled // its bid is forgotten, as its time was over long ago
		b.seq++
		c.bid.made, c.bid.Waited, c.bid.Key, c.bid.shortest, c.bid.seq = now, o.Waited, k, s.tokens, b.seq
		for i := range s.cands {
			c.bid.shortest = min(c.bid.shortest, s.cands[i].NewTokens)
		}
		c.pays = !o.Settled && len(s.cands) > 1 && b.crowd*r.times.speeds.prefill.b/float64(len(s.cands)) > ms(b.delay) && !b.full(k.Owner)
	}
	r.foresee(s, &c, o.Waiting, now)
	if c.settled || c.pays {
		for i := range s.cands {
			s.cands[i].others = false
		}
	}
	return c
}

// foresee puts the requests of the bids that come first where they cost least. Once all have heard of all
// that is found out but once for each: they go first, so what is placed here meanwhile was not there for them.
func (r *Router) foresee(s *scratch, mine *contention, waiting int, now time.Time) {
	b := &r.bids
	if len(b.open) == 0 {
		return
	}
	plausible := func(tokens int) int { return min(max(tokens, 0), int(crowdPrompts*r.times.speeds.prompt)) }
	prompt, own, aims := r.weigh.PromptTokens, r.weigh.aim, Options{}
	var e estimate
	foreseen := 0
	s.beside = s.beside[:0]
	for _, o := range b.before(&mine.bid) {
		if foreseen == maxForeseen {
			break
		}
		r.weigh.PromptTokens = plausible(o.Request.PromptTokens)
		aims.Waited = o.Waited + now.Sub(o.made)
		r.weigh.aim = aims.aim(r.weigh.Settings) // its model's: its own, if it has some, are not told
		best, want, lowest, all := -1, 0, 0.0, true
		var there Candidate
		for k, w := range o.Ranks {
			j := r.candidate(s, w)
			if j < 0 {
				all = false
				continue
			}
			c := *s.expected(j)
			tokens := plausible(w.NewTokens)
			c.PrefillTokens += tokens - c.NewTokens
			c.NewTokens, c.others = tokens, false
			r.times.estimate(&e, &r.weigh, &c, r.weigh.heldBy(&c))
			if cost := r.times.total(&r.weigh, &c, &e); best < 0 || cost < lowest {
				best, want, lowest, there = j, k, cost, c
			}
		}
		if best < 0 {
			continue // it is not for any of these
		}
		foreseen++
		c, among, at := s.expected(best), s.cands, best
		if at >= len(among) {
			among, at = s.beside, at-len(among)
		}
		*c, there = there, *c
		r.times.estimate(&e, &r.weigh, c, 0)
		tokens, later := c.NewTokens, r.times.later(&r.weigh, among, at, &e, waiting)
		if *c = there; later {
			continue // it goes into its router's queue
		}
		if mine.settled && !o.Held && all {
			o.Ranks = o.Ranks[want : want+1]
		}
		if c.Prefilling == 0 {
			c.HeadTokens, c.Since = tokens, now
		}
		c.Prefilling++
		c.Requests++
		c.PrefillTokens += tokens
		c.Context += r.weigh.PromptTokens
	}
	r.weigh.PromptTokens, r.weigh.aim = prompt, own
}

// candidate returns the number, as of scratch.expected, of a rank that a bid names; below 0 if it may get no requests here.
// Where the request that is chosen for may not go, others may: else theirs would be expected where it may.
func (r *Router) candidate(s *scratch, w load.Want) int {
	m := r.member(w.Rank)
	if m == nil {
		return -1
	}
	j, ok := slices.BinarySearchFunc(s.cands, m.slot, func(c Candidate, slot uint32) int { return cmp.Compare(c.slot, slot) })
	if ok {
		return j
	}
	j = slices.IndexFunc(s.beside, func(c Candidate) bool { return c.slot == m.slot })
	if j < 0 {
		if m.worker.absent() != Eligible || (m.worker.Role == Prefill) != (r.weigh.Stage == PrefillStage) {
			return -1
		}
		j = len(s.beside)
		l := r.table.Load(m.slot)
		c := Candidate{
			RankID: m.RankID, slot: m.slot, TotalBlocks: m.worker.TotalBlocks, MaxBatchedTokens: m.worker.MaxBatchedTokens,
			Requests: l.Requests, Prefilling: l.Prefilling, PrefillTokens: l.PrefillTokens, DecodeBlocks: l.DecodeBlocks, Context: l.PromptTokens,
		}
		c.HeadTokens, c.Since = r.table.Turn(m.slot)
		s.beside = append(s.beside, c)
	}
	return len(s.cands) + j
}

// expected returns a candidate, or after these a rank that only others' requests may go to.
func (s *scratch) expected(j int) *Candidate {
	if j < len(s.cands) {
		return &s.cands[j]
	}
	return &s.beside[j-len(s.cands)]
}

// near returns the rank of this router's alone that costs least, if it is hardly dearer than the one
// at i, else that.
func (r *Router) near(s *scratch, i int) int {
	if !r.bySlot[s.cands[i].slot].contested() {
		return i
	}
	r.times.complete(&r.weigh, s.cands)
	delays := float64(nearDelays)
	if r.weigh.Stage == PrefillStage {
		delays = nearUnheld
	}
	s.beside = s.beside[:0]
	for j := range s.cands {
		if c := &s.cands[j]; !r.bySlot[c.slot].contested() {
			s.beside = append(s.beside, *c)
		}
	}
	if len(s.beside) == 0 {
		return i
	}
	own := &s.beside[r.weigh.Lowest(s.beside)]
	if own.Cost > s.cands[i].Cost+delays*ms(r.bids.delay) {
		return i
	}
	return slices.IndexFunc(s.cands, func(c Candidate) bool { return c.slot == own.slot })
}

// tender tells the others of a request that is put off.
func (r *Router) tender(s *scratch, c *contention) {
	r.times.complete(&r.weigh, s.cands)
	order := make([]int, len(s.cands))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(x, y int) int { return cmp.Compare(s.cands[x].Cost, s.cands[y].Cost) })
	c.bid.Ranks = nil // the journal may have the old ones
	c.bid.Kind, c.bid.Request.PromptTokens = load.Sought, s.tokens
	for _, i := range order[:min(len(order), maxWants)] {
		c.bid.Ranks = append(c.bid.Ranks, load.Want{Rank: s.cands[i].RankID, NewTokens: s.cands[i].NewTokens})
	}
	c.bid.shortest = fewest(c.bid.Ranks)
	r.bids.open = append(r.bids.open, c.bid)
	r.record(c.bid.Change)
}
