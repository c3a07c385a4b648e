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
// come from where it is: auto weighs each rank with what it would fetch of the source that is best
// for it, where that is sooner than to compute it. How long a fetched token takes is learned as with
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

// maxSources is how many a choice weighs each rank with at most. Those of which none has as much to give,
// as free and as reliably, as another one, which are all that can be best, were never more in the lab.
const maxSources = 4

// source is who may give a prompt's prefix.
type source struct {
	shard.RankID
	slot    uint32
	alone   bool // its worker has no other rank
	tokens  int  // it has
	fetches int  // over its link
	part    float64
	worth   float64 // tokens that need not be computed where it gives all of its own over a free link
}

// sources are those that candidates are weighed with.
type sources struct {
	list [maxSources + 1]source
	n    int
	free int     // tokens that one has which is the only rank of its worker, gives to nobody, and reliably: who has no more is outdone
	each float64 // what part of the time to compute a token is taken by fetching it over free links
	why  string  // nothing is fetched, if it is not for want of a source
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

// findSources looks for the ranks that have most of the prompt and give it away, whatever their role. The
// lock is held, and lookUp's depths are there.
func (r *Router) findSources(s *scratch, o *Options, now time.Time) {
	w := &r.weigh.sources
	w.n, w.free, w.why = 0, 0, ""
	if !o.Pull || r.peers < 2 || !s.looked || o.Stage == DecodeStage || r.policy != Policy(r.times) {
		return
	}
	if r.weigh.estimated {
		// How much of it an engine can use of another one's nobody knows.
		w.why = "depths are estimates"
		return
	}
	w.each = r.times.pullTime(now)
	for _, m := range r.members {
		n := min(int(r.depth[m.slot][event.HostPinned])*r.cfg.BlockSize, s.tokens)
		if n < r.cfg.BlockSize || n <= w.free || !m.worker.Peer || m.stale || m.belief.doubted {
			continue
		}
		f := source{m.RankID, m.slot, m.worker.Ranks == 1, n, r.times.pulling(m.slot), m.pulls.part(now), 0}
		f.worth = float64(n) * (1 - w.takes(&f, 0))
		if f.worth > 0 && !w.outdone(&f, -1) && r.gives(m.worker, o, now) {
			w.add(&f)
		}
	}
}

// takes returns what part of the time to compute what is fetched the fetch takes, among so many others over the
// candidate's link; 1 where it is not worth while.
func (w *sources) takes(f *source, others int) float64 {
	part := w.each * float64(1+max(f.fetches, others))
	if part = part*f.part + 1 - f.part; part >= pullWorth { // what does not come is computed
		return 1
	}
	return part
}

// outdone reports whether the source, which is at i of the list or, at -1, not there, is best for no candidate. What
// its own worker's ranks can do for others, they cannot for it: it takes two workers, but for one with one rank,
// which has itself what it would fetch.
func (w *sources) outdone(f *source, i int) bool {
	var by *source
	for j := range w.list[:w.n] {
		g := &w.list[j]
		if j == i || g.tokens < f.tokens || g.fetches > f.fetches || g.part < f.part {
			continue
		}
		if g.alone || g.Worker == f.Worker || by != nil && by.Worker != g.Worker {
			return true
		}
		by = g
	}
	return false
}

// add takes the source into the list, in place of those that it outdoes, and if they are too many, of one that is worth least.
func (w *sources) add(f *source) {
	if f.alone && f.fetches == 0 && f.part == 1 {
		w.free = f.tokens
	}
	w.list[w.n] = *f
	w.n++
	for i := w.n - 1; i >= 0; i-- {
		if w.outdone(&w.list[i], i) {
			w.remove(i)
		}
	}
	if w.n <= maxSources {
		return
	}
	least := 0
	for i := range w.list {
		if w.list[i].worth < w.list[least].worth {
			least = i
		}
	}
	w.remove(least)
}

func (w *sources) remove(i int) {
	w.n--
	w.list[i] = w.list[w.n]
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
	case w.sources.why != "":
		return ", nothing is fetched: " + w.sources.why
	case w.sources.n > 0 && !c.peer:
		return ", nothing is fetched: its engine is none that can be told to"
	}
	return ""
}

// pullTime returns what part of the time to compute a token is taken by fetching it over free links.
func (a *auto) pullTime(now time.Time) float64 {
	if now.Sub(a.fetched) > pullOld { // what was learned before may be so no more: one tries
		return 1 - pullCredit
	}
	return a.speeds.loads[pulled].after(pullCredit, pullTaught)
}

// pull has the candidate fetch what a source has and it has not, of that which saves it most, where it is sooner than to
// compute it.
func (a *auto) pull(w *Weighing, c *Candidate) {
	if !c.peer {
		return
	}
	saved, fetches := 0, a.pulling(c.slot)
	for i := range w.sources.list[:w.sources.n] {
		f := &w.sources.list[i]
		n := min(f.tokens, w.PromptTokens-1) - c.CachedTokens
		if n < w.BlockSize || c.Worker == f.Worker {
			continue
		}
		cost := math.Ceil(w.sources.takes(f, fetches) * float64(n))
		if less := n - int(cost); less > saved {
			saved, c.Pull, c.pullCost, c.source = less, Pull{f.RankID, n}, cost, f.slot
		}
	}
	c.NewTokens, c.PrefillTokens = c.NewTokens-saved, c.PrefillTokens-saved
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
