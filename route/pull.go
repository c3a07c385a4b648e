package route

import (
	"math"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/route/breaker"
	"github.com/kvatlas/kvatlas/route/load"
	"github.com/kvatlas/kvatlas/shard"
)

// A worker that is a Peer fetches what another one has of a prompt when it is told whose that
// is, and gives what it has itself. So a request may go where there is room, and its prefix
// come from where it is: auto weighs each rank with what it would fetch of the best source,
// where that is sooner than to compute it. How long a fetched token takes is learned as with
// lower tiers, and links are shared: who gives or fetches already does it slower. Engines say
// what they found cached, which tells of a fetch whether it came; of sources of which little
// comes little is expected, until a minute has passed without a word.

// Pull is a prefix that a rank's engine is to fetch from another one's.
type Pull struct {
	From   shard.RankID
	Tokens int // beyond those that it has itself; 0: it fetches nothing
}

const (
	// pullCredit is how much of the time to compute a token is saved by fetching it, until that
	// is learned.
	pullCredit = 0.5
	// pullTaught is how many ms of computing have to be fetched for that to count as much: few, as a
	// slow link costs first tokens more than a slow disk, of which no more is loaded than there is.
	pullTaught = 200
	// pullWorth is the part of the time to compute that fetching may take.
	pullWorth = 0.9
	// pullOld is after how long without a report a source counts whole again, and after how long
	// without a fetch their time is as at first, for one.
	pullOld = time.Minute
	// pullPrior is as many tokens as if they had come.
	pullPrior = 4096
)

// source is who may give a prompt's prefix.
type source struct {
	shard.RankID
	slot   uint32
	tokens int // it has; 0: there is none
	part   float64
	why    string // nothing is fetched, if it is not for want of a source
}

// pulls is what came of fetches from a rank, in tokens; the last count most.
type pulls struct {
	asked, came float64
	last        time.Time
}

func (p *pulls) part(now time.Time) float64 {
	if now.Sub(p.last) > pullOld {
		return 1
	}
	return (p.came + pullPrior) / (p.asked + pullPrior)
}

func (p *pulls) learn(asked, came int, now time.Time) {
	const keep = 1 - 1.0/32
	p.asked, p.came, p.last = keep*p.asked+float64(asked), keep*p.came+float64(came), now
}

// findSource looks for the rank that has most of the prompt and gives it away, whatever its role. The
// lock is held, and lookUp's depths are there.
func (r *Router) findSource(s *scratch, o *Options, now time.Time) (best source) {
	if !o.Pull || r.peers < 2 || !s.looked || o.Stage == DecodeStage || r.policy != Policy(r.times) {
		return best
	}
	if r.weigh.estimated {
		// How much of it an engine can use of another one's nobody knows.
		return source{why: "depths are estimates"}
	}
	for _, m := range r.members {
		n := min(int(r.depth[m.slot][event.HostPinned])*r.cfg.BlockSize, s.tokens)
		if n < best.tokens || n == 0 || !m.worker.Peer || m.stale || m.belief.doubted || !r.gives(m.worker, o, now) {
			continue
		}
		if n == best.tokens && r.times.pulling(m.slot) >= r.times.pulling(best.slot) {
			continue
		}
		best = source{RankID: m.RankID, slot: m.slot, tokens: n, part: m.pulls.part(now)}
	}
	return best
}

// gives reports whether others may be told to fetch from the worker: it is there, requests do not
// fail there, and neither has this one, which may go there. One that has no room for requests gives.
func (r *Router) gives(w *workerState, o *Options, now time.Time) bool {
	if w.absent() != Eligible || w.silent || !w.breaker.Closed() && w.breaker.State(now) != breaker.Full {
		return false
	}
	return r.listed(w, o) == Eligible && !slices.Contains(o.avoid, w.ID)
}

// unfetched says why the candidate fetches nothing, for its formula; "" where no fetch could be asked for.
func (w *Weighing) unfetched(c *Candidate) string {
	switch {
	case c.Pull.Tokens > 0:
	case w.source.why != "":
		return ", nothing is fetched: " + w.source.why
	case w.source.tokens > 0 && !c.peer:
		return ", nothing is fetched: its engine is none that can be told to"
	}
	return ""
}

// pull has the candidate fetch what the source has and it has not, where that is sooner than to
// compute it.
func (a *auto) pull(w *Weighing, c *Candidate) {
	n := min(w.source.tokens, w.PromptTokens-1) - c.CachedTokens
	if n < w.BlockSize || !c.peer || c.Worker == w.source.Worker {
		return
	}
	part := 1 - pullCredit
	if w.Now.Sub(a.fetched) <= pullOld { // what was learned before may be so no more: one tries
		part = a.speeds.loads[pulled].after(pullCredit, pullTaught)
	}
	part *= float64(a.crowd(w, c))
	part = part*w.source.part + 1 - w.source.part // what does not come is computed
	if part >= pullWorth {
		return
	}
	c.Pull, c.pullCost = Pull{w.source.RankID, n}, math.Ceil(part*float64(n))
	saved := n - int(c.pullCost)
	c.NewTokens, c.PrefillTokens = c.NewTokens-saved, c.PrefillTokens-saved
}

// crowd is how many fetches share the links of the candidate and its source, with this one.
func (a *auto) crowd(w *Weighing, c *Candidate) int {
	return 1 + max(a.pulling(w.source.slot), a.pulling(c.slot))
}

// pulling returns how many fetches from or to the slot's rank are under way.
func (a *auto) pulling(slot uint32) int {
	if int(slot) < len(a.fetching) {
		return a.fetching[slot]
	}
	return 0
}

// fetches notes that a fetch has begun, or with -1 that it is over.
func (a *auto) fetches(t *trip, n int) {
	if !t.fetching {
		return
	}
	a.link(t.source, t.slot, n)
	t.fetching = n > 0
}

// link counts fetches, n more of them, over the links of both slots' ranks.
func (a *auto) link(from, to uint32, n int) {
	for _, slot := range [...]uint32{from, to} {
		for int(slot) >= len(a.fetching) {
			a.fetching = append(a.fetching, 0)
		}
		a.fetching[slot] += n
	}
}

// away is which slots' ranks give and fetch for bookings of other routers, until their prefills are complete:
// no more of them than there are bookings. The Router's lock guards it.
type away map[load.Key][2]uint32

// over ends the booking's fetch, if there is one.
func (w away) over(a *auto, k load.Key) {
	if slots, is := w[k]; is {
		a.link(slots[0], slots[1], -1)
		delete(w, k)
	}
}

// fetchedElsewhere notes that another router has told a rank to fetch. One of a booking that is not known, or that
// has its prompt by now, is over.
func (r *Router) fetchedElsewhere(c load.Change) bool {
	to, is := r.table.Prefilling(c.Key)
	from := r.member(c.Rank)
	if _, known := r.times.away[c.Key]; known || !is || from == nil {
		return false
	}
	r.times.away[c.Key] = [2]uint32{from.slot, to}
	r.times.link(from.slot, to, 1)
	return true
}

// fetchesOf ends those of the owner whose bookings have their prompts, or are gone.
func (r *Router) fetchesOf(owner uint64) {
	for k := range r.times.away {
		if _, is := r.table.Prefilling(k); k.Owner == owner && !is {
			r.times.away.over(r.times, k)
		}
	}
}

// arrived notes that the request should have what it fetched, where nobody sees its first token.
func (a *auto) arrived(k load.Key) {
	if t := a.trips[k]; t != nil {
		a.fetches(t, -1)
	}
}

// pulled learns from what an engine found that was to fetch a part of it.
func (r *Router) pulled(a *attempt, out *Account, now time.Time) {
	want := min(out.Pull, out.Selected)
	came := min(max(out.Actual-(out.Selected-want), 0), want)
	if m := r.member(out.PullFrom); m != nil {
		m.pulls.learn(want, came, now)
	}
	if came+r.cfg.BlockSize < want {
		r.stats.NotPulled++
	} else {
		r.stats.Pulled++
	}
	switch e := (account.Evidence{BlockSize: r.cfg.BlockSize, Selected: out.Selected, Actual: out.Actual}); {
	case !e.Differs():
	case out.Actual < out.Selected:
		out.Miss = account.NotPulled
	default:
		out.Miss = account.Stored // where they are fetched from there may be more by then
	}
	a.reported, a.choice, a.actual, a.miss = true, out.Choice, out.Actual, out.Miss
}
