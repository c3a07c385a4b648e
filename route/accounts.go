package route

import (
	"cmp"
	"context"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// reach is who had most of a prompt cached of those that are there, but were busy, full or
// not for this request. Who drains, fails, or is dead could not have been asked by any router.
type reach struct {
	tokens int
	at     shard.RankID
	why    account.Shortfall // why it could not be chosen; Stale if for less than it had
}

// without considers a rank that cannot be chosen, or not for all that it has.
func (b *reach) without(r *Router, m *member, why account.Shortfall, prompt int) {
	depth := r.depth[m.slot]
	if m.worker.Pooled {
		r.believePools(&depth, prompt)
	}
	if r.weigh.estimated {
		discount(&depth, r.weigh.part)
	}
	if n := r.tokensOf(&depth, prompt, m.worker.Pooled); n > b.tokens && why != account.NoShortfall {
		b.tokens, b.at, b.why = n, m.RankID, why
	}
}

// shortfall is why a rank was left out, if it was there to be asked.
func (r Reason) shortfall() account.Shortfall {
	switch r {
	case BusyDecodeBlocks, BusyPrefillTokens:
		return account.Busy
	case Refusing:
		return account.NoRoom
	case Excluded, NotAllowed:
		return account.Excluded
	}
	return account.NoShortfall
}

// tokensOf returns how much of a prompt an engine should find with such depths, that reads from
// a pool or not.
func (r *Router) tokensOf(depth *[event.NumTiers]uint32, prompt int, pooled bool) (n int) {
	for t, d := range depth {
		if r.cfg.Settings.credit(event.Tier(t), pooled) > 0 {
			n = min(int(d)*r.cfg.BlockSize, prompt)
		}
	}
	return n
}

// foundOn returns how much of the prompt a rank's engine should find, if it finds a part of what
// was looked up.
func (r *Router) foundOn(s *scratch, at shard.RankID, part float64, pooled bool) (n int) {
	s.each(func(id shard.RankID, depth *[event.NumTiers]uint32) {
		if id == at {
			var within [event.NumTiers]uint32
			setWithin(&within, depth, len(s.local))
			if part < 1 {
				discount(&within, part)
			}
			n = max(n, r.tokensOf(&within, s.tokens, pooled))
		}
	})
	return n
}

// storedFor returns how much of the prompt a rank's engine may find if all tiers count: also
// those without a credit, and external storage into which another one has put it.
func (r *Router) storedFor(s *scratch, at shard.RankID) (n int) {
	s.each(func(id shard.RankID, depth *[event.NumTiers]uint32) {
		if id == at || depth[event.External] > depth[event.Disk] {
			n = max(n, min(int(depth[event.External])*r.cfg.BlockSize, s.tokens))
		}
	})
	return n
}

// account says what was to be found cached of a prompt that went to the candidate i, where
// the policy preferred another one, or the same.
func (r *Router) account(o *Options, s *scratch, preferred, i int) account.Choice {
	c := &s.cands[i]
	a := account.Choice{Known: s.looked && !c.Unknown && s.private == 0 && o.Stage != DecodeStage, Prompt: s.tokens}
	if !a.Known {
		return a
	}
	a.Estimated = r.weigh.estimated
	a.Selected, a.Best = c.CachedTokens+c.Pull.Tokens, c.RankID
	if a.Reachable = a.Selected; c.Pull.Tokens > 0 {
		a.Best, a.Pull, a.PullFrom = c.Pull.From, c.Pull.Tokens, c.Pull.From
	}
	most, at := c.CachedTokens, i
	// Who had most is looked for only where somebody may have had more: as a rule it is the
	// chosen one, and to keep it while ranks are weighed would cost 2 % of a choice.
	if most < min(int(r.deepest)*r.cfg.BlockSize, s.tokens) {
		for j := range s.cands {
			if n := s.cands[j].CachedTokens; n > most {
				most, at = n, j
			}
		}
	}
	switch {
	case a.Selected >= max(most, r.missed.tokens), a.Pull > 0 && a.Selected == s.tokens-1: // the last token is never fetched
	case r.missed.tokens > most:
		a.Reachable, a.Best, a.Why = r.missed.tokens, r.missed.at, r.missed.why
	default:
		a.Reachable, a.Best, a.Why = most, s.cands[at].RankID, account.Load
		if s.cands[preferred].CachedTokens > a.Selected {
			a.Why = account.Session
		}
	}
	return a
}

// followed is a booking that was chosen, until it is over.
type followed struct {
	chosen   bool // not by the caller
	whole    bool
	at       shard.RankID
	name     string
	choice   account.Choice
	expected time.Duration // until the first token
	first    time.Time     // when something came of it; zero before
	holder   shard.Member  // of the rank in the index then; none if it held nothing
	losses   shard.Losses  // its, then
	bound    bounded
	pooled   bool   // its worker reads from a pool
	own      int    // tokens that the rank was said to have itself, of one that reads from a pool
	pool     int    // those that the pool was said to have beyond them
	table    *table // if it is sampled
	trace    string // the id of its trace; empty without

	reported bool
	actual   int
	miss     account.Miss
}

func (f *followed) choose(a *Answer, o *Options, m *member, trace string, blockSize int) {
	f.bound, f.pooled, f.pool = bounded{}, m.worker.Pooled, a.pool
	f.own = min(int(a.Cached[event.Disk])*blockSize, a.Account.Prompt)
	f.chosen, f.whole, f.at, f.name, f.choice, f.expected, f.trace = true, o.Whole, a.RankID, o.Name, a.Account, a.First, trace
	if (a.Account.Selected > 0 || m.belief.doubted) && m.indexed != (shard.Member{}) {
		f.holder = m.indexed
		f.losses = f.holder.Losses()
	}
}

// decision begins one for Config.Decisions.
func (r *Router) decision(k load.Key, a *attempt) *account.Decision {
	d := &account.Decision{
		ID: r.cfg.Decisions.ID(), Time: a.sent, Model: r.cfg.Space.Model, BlockSize: r.cfg.BlockSize, Group: r.cfg.Space.Group,
		RequestID: a.name, TraceID: a.trace, Phase: Stage(k.Stage).String(), Mode: r.settings.Mode, Worker: a.at.Worker, DPRank: a.at.DPRank,
		Predicted: ms(a.expected),
	}
	if r.cfg.Policy != nil {
		d.Mode = "custom"
	}
	return d
}

// closeAccount counts a booking that is over, and gives it to Config.Decisions.
func (r *Router) closeAccount(k load.Key, a *attempt, now time.Time) {
	if !a.chosen {
		return
	}
	r.totals.Add(&a.choice, a.reported, a.actual, a.miss)
	if a.reported {
		if m := r.member(a.at); m != nil {
			m.prompt, m.found = m.prompt+uint64(max(a.choice.Prompt, 0)), m.found+uint64(a.actual)
		}
	}
	answered := !a.first.IsZero() && !a.failed
	if answered && !a.whole && k.Stage != uint8(PrefillStage) {
		r.totals.First.Add(a.first.Sub(a.sent))
	}
	judged := answered && !a.whole && k.Stage != uint8(DecodeStage)
	first := ms(a.first.Sub(a.sent))
	var d *account.Decision
	t := a.table
	if t != nil {
		d = t.Decision
	} else {
		if !answered || !r.cfg.Decisions.Notable(now, first, ms(a.expected), judged) {
			return
		}
		d = r.decision(k, a)
	}
	d.Choose(&a.choice)
	d.Total, d.Failed = ms(now.Sub(a.sent)), a.failed
	if answered {
		shown := first // the one that has an address is made here only
		d.First = &shown
	}
	if a.reported {
		actual := a.actual
		d.Actual, d.Miss = &actual, a.miss.String()
	}
	if t != nil && !t.written { // then whoever writes it gives it
		t.over, t.ended, t.judged = true, now, judged
		return
	}
	r.cfg.Decisions.Add(now, d, t != nil, judged)
}

// Totals returns what was reachable, selected and found of the requests that are over.
func (r *Router) Totals() account.Totals {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.totals
}

// Usage is what an engine says of a prompt.
type Usage struct {
	Prompt int // its tokens; 0 if it does not say
	Cached int // those that it found cached
}

// Account is what became of a choice.
type Account struct {
	// Choice is as it was, or of a prompt whose tokens were estimated in proportion to
	// those that the engine has counted.
	account.Choice
	Actual int          // tokens that the engine says it found cached
	Miss   account.Miss // why Actual is not Selected
}

// Reported tells what the engine that computes the request's prompt says of it, once, and
// before the request is freed. If it is not what was expected the prompt is looked up again.
// It returns false where it was not looked up before, or the request has no booking of the
// stage.
func (r *Router) Reported(requestID string, stage Stage, p Prompt, u Usage) (Account, bool) {
	u.Prompt = min(max(u.Prompt, 0), load.MaxCount)
	k := r.key(requestID, stage)
	r.mu.Lock()
	a := r.attempts[k]
	if a == nil || !a.choice.Known || a.reported {
		r.mu.Unlock()
		return Account{}, false
	}
	out := Account{Choice: a.choice, Actual: min(max(u.Cached, 0), cmp.Or(u.Prompt, a.choice.Prompt))}
	has := out.Selected
	if !out.Estimated && a.bound.tokens > 0 { // of what the index has, a part was believed
		has = a.bound.tokens
	}
	if a.pool > 0 && !out.Estimated {
		has = max(has, a.own+a.pool) // likewise
	}
	if n := out.Prompt; p.Local != nil && n > 0 && u.Prompt > 0 {
		for _, tokens := range [...]*int{&out.Prompt, &out.Reachable, &out.Selected, &has} {
			*tokens = int(int64(*tokens) * int64(u.Prompt) / int64(n))
		}
	}
	if out.Pull > 0 {
		r.pulled(a, &out, r.cfg.Now())
		r.mu.Unlock()
		return out, true
	}
	e := account.Evidence{BlockSize: r.cfg.BlockSize, Counted: u.Prompt, Looked: len(p.Tokens), Selected: has, Actual: out.Actual}
	if !e.Differs() {
		at, doubt := a.at, r.reported(a, &out, has)
		r.mu.Unlock()
		if doubt {
			r.cfg.Doubted(at)
		}
		return out, true
	}
	f, since := a.followed, a.sent
	if m := r.member(f.at); m != nil {
		e.Stale = m.stale
	}
	r.mu.Unlock()

	e = r.lookAgain(e, f, since, p)
	out.Miss = account.Judge(&e)
	r.mu.Lock()
	doubt := false
	if a := r.attempts[k]; a != nil && !a.reported {
		doubt = r.reported(a, &out, has)
	}
	r.mu.Unlock()
	if doubt {
		r.cfg.Doubted(f.at)
	}
	return out, true
}

// reported keeps what an engine says, where the index has so many tokens. It reports whether
// somebody is to be told that the rank is doubted.
func (r *Router) reported(f *attempt, out *Account, has int) (doubt bool) {
	if f.choice.Estimated {
		r.correct(&f.followed, out)
	}
	if out.Prompt != f.choice.Prompt { // its tokens were estimated
		f.pool = 0
	}
	f.reported, f.choice, f.actual, f.miss = true, out.Choice, out.Actual, out.Miss
	if f.pool > 0 {
		return r.believeBeside(&f.followed, out)
	}
	return r.believe(f.at, has, out, r.cfg.Now())
}

// lookAgain compares the index with what was seen at the choice. The lock is not held. What
// it is given and gives are copies: else they would be allocated for every request.
func (r *Router) lookAgain(e account.Evidence, f followed, since time.Time, p Prompt) account.Evidence {
	s := r.scratch.Get().(*scratch)
	defer r.scratch.Put(s)
	e.Now = e.Selected // as long as nobody says otherwise
	if r.prepare(context.Background(), s, &p, new(Options)) != nil || !s.looked || s.unknown != nil && s.unknown(f.at.Worker) {
		return e
	}
	part := 1.0
	if f.choice.Estimated {
		part = f.bound.part // that of the choice: what was learnt since is no change of the index
	}
	e.Now = r.foundOn(s, f.at, part, f.pooled)
	if e.Actual > e.Now && !f.choice.Estimated {
		e.Now = max(e.Now, r.storedFor(s, f.at))
	}
	if f.holder == (shard.Member{}) {
		return e
	}
	e.Renewed = true
	r.cfg.Index.EachMember(func(m shard.Member) {
		e.Renewed = e.Renewed && m != f.holder
	})
	l := f.holder.Losses()
	e.Lost = int(l.Blocks-f.losses.Blocks) * r.cfg.BlockSize
	e.LostBefore = l.Published <= since.UnixNano()
	return e
}
