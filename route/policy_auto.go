package route

import (
	"fmt"
	"math"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/load"
)

// auto predicts, in ms, what a request costs on each rank, and takes the rank
// where it costs least:
//
//	first token   the wait for the prompts ahead, the request's own one, and the wait for
//	              KV blocks where those in use leave too few
//	+ displaced   what its new blocks push out of a full cache
//	+ decoding    how much longer its own tokens and those of the requests
//	              there take because they share a batch; in overload, where that is long on
//	              every rank, it counts for ever less, as first tokens are what then differs.
//	              Who has a long prompt decodes more slowly than others anyway, and ends last:
//	              half of each ms of decoding counts by the length of the prompt whose it is
//	+ others      as much as its own prompt takes, where another router's may come first
//	+ lost        where there are targets, what it costs that they are missed (see Targets)
//
// Tokens that a lower tier has count as those that could be computed in the time
// that loading them takes. Nothing is to be tuned: how long tokens take is
// learned (see speeds), and how long loading does. What
// remains is the objective, and proportions which need not fit a fleet: the constants below.
//
// The lab's comparison is in docs/routing.md.
type auto struct {
	speeds speeds

	aims    [][]aimers // by slot: live requests that this router has chosen for, with targets of their own
	aimedAt int        // how many those are
	// fetching counts by slot the fetches from or to it that are under way.
	fetching []int
	fetched  time.Time // when the last of this router's began
	away     away      // those of them that other routers have asked for
}

const (
	// displacedShare is how much of the time to compute a block is lost with
	// the block that it displaces: the chance that this would have been used
	// again. The lab's figures are flat from 0 to 1.
	displacedShare = 1.0 / 3
	// cappedPrompts is how many prompts of the request's length take as long as decoding counts at most,
	// where the objective caps that. From 1 to 4 first tokens in overload come as soon; uncapped, 1 % later.
	cappedPrompts = 2
	// usable is the part of a cache that live requests' blocks may fill before a request is
	// taken to wait for some of them: the rest is for what they generate.
	usable = 0.95
	// defaultChunk is the tokens that a step computes at most where the worker
	// does not say.
	defaultChunk = 8192
)

// trip is what was known of a live request when this router chose its rank.
type trip struct {
	slot           uint32
	id             rankKey
	at             time.Time
	past           float64 // ms that the prompt ahead had already taken
	steps          float64 // steps that compute the prompts ahead and its own
	tokens         float64 // prompt tokens in them
	stalls         float64 // decode steps among them
	prompt         float64 // tokens
	whole, guessed bool    // how the answer comes, and what of the prompt is known
	blocks         bool    // it was to wait for KV blocks
	expected       float64 // ms to the first token
	trust          float64 // what part of its rank's slowness counted
	again          bool    // the rank was known well, and nothing of it counted
	aims           bool    // it brought targets of its own, of
	aim            float64 // ms for each token; 0 is none
	// How many of them are loaded from each lower tier, and how many could be
	// computed in the time that this was expected to take.
	loads, loading tiers
	source         uint32 // slot of who it is fetched from
	fetching       bool   // that is under way
	shared         int    // fetches on its links when it began, with this one

	// What the rank's requests attended to, in tokens: when the rank was
	// chosen, at the first token, and at the end.
	context, begun, ended float64
	first                 time.Time // when the first token came; zero before
}

func newAuto() *auto {
	return &auto{speeds: newSpeeds(), away: make(away)}
}

// UsesIndex implements Policy. As for kv, an overlap weight of 0 is for load
// balancing alone; others do not matter here.
func (*auto) UsesIndex(w *Weighing) bool { return w.Weight > 0 }

func (a *auto) Choose(w *Weighing, cands []Candidate) (int, error) {
	var e estimate // written in place: copying it for each rank shows
	aiming := a.aiming(w)
	// Most ranks of a large fleet cannot be the best one, as little of the prompt is cached there.
	best, skips := math.Inf(1), w.Temperature == 0 && w.Stage != DecodeStage && w.sources.n == 0 && !aiming && !w.explained
	if skips {
		most := 0
		for i := range cands {
			if cands[i].NewTokens < cands[most].NewTokens {
				most = i
			}
		}
		if c := &cands[most]; c.Cached[event.External] == c.Cached[event.Device] {
			a.estimate(&e, w, c, w.heldBy(c))
			best = e.cost()
		}
	}
	for i := range cands {
		c := &cands[i]
		c.atLeast = false
		v := a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank})
		if skips && c.Cached[event.External] == c.Cached[event.Device] {
			if c.Cost = v.leastOf(w, c); c.Cost > best {
				c.atLeast = true
				continue
			}
		}
		if c.Cached[event.External] != c.Cached[event.Device] {
			a.count(w, c)
		}
		if w.sources.n > 0 {
			a.pull(w, c)
		}
		a.estimateAt(&e, w, c, w.heldBy(c), v)
		if c.Cost = e.cost(); aiming {
			c.Cost = a.total(w, c, &e)
		}
		best = min(best, c.Cost)
		if w.explained {
			a.explain(w, c, &e)
		}
	}
	return w.Lowest(cands), nil
}

// tiers has a number for each tier, and one for what is fetched from other workers.
type tiers [event.NumTiers + 1]float64

// pulled is the latter's place.
const pulled = event.NumTiers

func (t *tiers) sum() (n float64) {
	for _, v := range t {
		n += v
	}
	return n
}

// loads returns how many of the prompt's tokens an engine loads from each tier
// below the device, or fetches, and how many it could compute in the time that this takes. A
// tier whose credit is 0 is not there.
func (a *auto) loads(w *Weighing, c *Candidate) (loads, loading tiers) {
	if c.Pull.Tokens > 0 {
		loads[pulled], loading[pulled] = float64(c.Pull.Tokens), c.pullCost
	}
	above := c.Cached[event.Device]
	if w.Stage == DecodeStage || c.Cached[event.External] == above {
		return loads, loading
	}
	for t := event.HostPinned; t < event.NumTiers; t++ {
		credit := w.Settings.credit(t, c.Pooled)
		if credit == 0 || c.Cached[t] == above {
			continue
		}
		loads[t] = float64(min(int(c.Cached[t])*w.BlockSize, w.PromptTokens) - min(int(above)*w.BlockSize, w.PromptTokens))
		loading[t] = loads[t] * a.speeds.loads[t].value(credit)
		above = c.Cached[t]
	}
	return loads, loading
}

// count makes the candidate's new tokens those that are to be computed, and for
// those to be loaded as many as take as long.
func (a *auto) count(w *Weighing, c *Candidate) {
	if _, loading := a.loads(w, c); loading != (tiers{}) {
		n := w.PromptTokens - c.CachedTokens + int(loading.sum())
		c.PrefillTokens += n - c.NewTokens
		c.NewTokens = n
	}
}

// estimate is what a request costs on a rank, in ms, and what of that a trip keeps. It is
// made for every rank, a trip for the chosen one only.
type estimate struct {
	first, displaced, decoding, others float64
	lost                               float64 // targets; see total
	blocks                             float64 // the wait for them, which is of first
	token                              float64 // to compute one of the prompt
	past, steps, tokens, stalls        float64
	context                            float64
}

func (e *estimate) cost() float64 { return e.first + e.displaced + e.decoding + e.others }

// estimate reckons what the request costs on the rank.
func (a *auto) estimate(e *estimate, w *Weighing, c *Candidate, held int) {
	a.estimateAt(e, w, c, held, a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank}))
}

// estimateAt is estimate for who knows the rank's speed.
func (a *auto) estimateAt(e *estimate, w *Weighing, c *Candidate, held int, v speed) {
	*e = estimate{}
	chunk := float64(c.MaxBatchedTokens)
	if chunk <= 0 {
		chunk = defaultChunk
	}
	mine := float64(c.NewTokens)
	queued := float64(c.PrefillTokens - c.NewTokens)
	decodes := w.Stage != PrefillStage && c.Requests > 0
	step := v.prefillStep // ms of a step with prompt tokens, besides these
	decode := 0.0         // ms that the decodes in a step take
	if decodes {
		e.context = float64(c.Context)
		decode = v.decodeStep + v.decodeToken*e.context
		step += decode
	}
	wait, rest := decode/2, queued // half of the decode step that is under way
	e.stalls = 0.5
	if c.Prefilling > 0 {
		// The one ahead has had its turn for a while.
		head := float64(c.HeadTokens)
		steps := max(1, head/chunk)
		all := steps*step + v.prefillToken*head
		e.past = min(max(ms(w.Now.Sub(c.Since)), 0), all)
		wait, rest = all-e.past, queued-head
		e.steps, e.tokens, e.stalls = steps, head, steps
	}
	steps := max(1, (rest+mine)/chunk)
	e.steps, e.tokens, e.stalls = e.steps+steps, e.tokens+rest+mine, e.stalls+steps
	if w.Stage == DecodeStage {
		steps, rest, wait = 0, 0, 0
	}
	e.first = wait + steps*step + v.prefillToken*(rest+mine)
	if room := usable * float64(c.TotalBlocks); decodes && room > 0 && c.DecodeBlocks > room {
		// Engines let in in order, or preempt, as blocks allow: what is missing comes back with the answers
		// there, all of a request's blocks with its last token.
		missing := (c.DecodeBlocks - room) * float64(c.Requests) / max(1, c.DecodeBlocks-float64(c.NewBlocks))
		missing = min(math.Ceil(missing), float64(c.Requests))
		e.blocks = untilEnd(int(missing), c.Requests) * a.speeds.output * decode
		e.first += e.blocks
	}
	e.token = v.prefillToken
	own := v.prefillToken * mine
	if c.TotalBlocks == 0 || held+int(mine)/w.BlockSize > c.TotalBlocks {
		e.displaced = displacedShare * own
	}
	if c.others {
		e.others = own
	}
	if w.Stage != PrefillStage {
		share, tail := w.Settings.decodeShare()
		shared := float64(c.Context) + float64(c.Requests)*float64(w.PromptTokens)
		if tail { // half of it by how long the prompts of both sides are, beside usual ones, which comes to the same for both
			shared = shared/2 + float64(c.Context)*float64(w.PromptTokens)/max(1, a.speeds.prompt)
		}
		// What sharing the batch costs, and what its prompt does that is computed between the others' tokens.
		e.decoding = share * (w.output(a.speeds.output)*v.decodeToken*shared + own*float64(c.Requests-c.Prefilling))
		if most := cappedPrompts * v.prefillToken * float64(w.PromptTokens); tail && e.decoding > 0 {
			e.decoding *= most / (most + e.decoding)
		}
	}
}

// untilEnd returns how long it takes until so many of n answers have ended, in mean answers, where each that
// goes on is as likely to end at any moment as the others, however long it is already.
func untilEnd(of, n int) float64 { return harmonic(n) - harmonic(max(0, n-of)) }

// harmonic returns 1 + 1/2 + … + 1/n. A choice asks for it twice a rank, and ranks may have any number of requests.
func harmonic(n int) float64 {
	if n < len(harmonics) {
		return harmonics[n]
	}
	const euler = 0.5772156649015329
	return math.Log(float64(n)) + euler + 1/float64(2*n)
}

// harmonics are the first: engines seldom run more requests at once.
var harmonics = func() (h [257]float64) {
	for n := 1; n < len(h); n++ {
		h[n] = h[n-1] + 1/float64(n)
	}
	return h
}()

// leastOf returns no more than estimate's cost, for less: one step of the rank, with its decodes, and the
// prompts that are behind the one whose turn it is.
func (v speed) leastOf(w *Weighing, c *Candidate) float64 {
	return v.in(w.Stage).least(c.Requests, c.Context, c.PrefillTokens-c.HeadTokens)
}

// least is leastOf of a rank that has so many requests, which attend to so many tokens, and so many to compute behind the
// prompt whose turn it is.
func (v speed) least(requests, context, behind int) float64 {
	ms := v.prefillStep + v.prefillToken*float64(behind)
	if requests > 0 {
		ms += v.decodeStep + v.decodeToken*float64(context)
	}
	const rounding = 1 - 1e-9 // as the sums are others
	return rounding * ms
}

// complete weighs the candidates that Choose has passed over, for who compares more than the best one.
func (a *auto) complete(w *Weighing, cands []Candidate) {
	var e estimate
	for i := range cands {
		if c := &cands[i]; c.atLeast {
			a.estimate(&e, w, c, w.heldBy(c))
			c.Cost, c.atLeast = e.cost(), false
		}
	}
}

// alone returns how long the rank takes to compute all of the prompt, and to generate what
// is expected, in ms, if nothing else is there but what its requests attend to.
func (a *auto) alone(w *Weighing, c *Candidate) (prompt, answer float64) {
	v := a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank})
	prompt = v.prefillStep + v.prefillToken*float64(w.PromptTokens)
	return prompt, (v.decodeStep + v.decodeToken*(float64(c.Context)+float64(w.PromptTokens))) * w.longest(a.speeds.output)
}

// waiting returns how much of the time to the first token is before the request's own prompt
// has its turn.
func (a *auto) waiting(w *Weighing, c *Candidate, e *estimate) float64 {
	if w.Stage == DecodeStage {
		return 0
	}
	v := a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank})
	step, chunk := v.prefillStep, float64(c.MaxBatchedTokens)
	if chunk <= 0 {
		chunk = defaultChunk
	}
	if w.Stage != PrefillStage && c.Requests > 0 {
		step += v.decodeStep + v.decodeToken*float64(c.Context)
	}
	mine := float64(c.NewTokens)
	return max(0, e.first-max(1, mine/chunk)*step-v.prefillToken*mine)
}

// leastHeld is what it takes at least, in ms, to hold a request at the router: the news of a first
// token and the request have a way to go, over which the rank has nothing to compute, and the router
// chooses twice. Where engines answer as fast as that, to hold requests only costs.
const leastHeld = 2

// later reports whether the request should rather wait at the router than be sent to the rank
// at i: the prompts ahead of it there take longer than what it could lose, a step that it has to
// itself because it comes too late for theirs, and the way (leastHeld; of first tokens of other routers'
// requests also the word of these). Until then a shorter one may go first, and it to a
// rank that is free sooner than expected. Those that wait count on no rank as load, so where they
// are many, none is held while a rank has no prompt to compute: the others would all be for the
// same one, and that rank's time lost. Blocks that are missing are waited for at the engine, which
// knows best when they are enough.
func (a *auto) later(w *Weighing, cands []Candidate, i int, e *estimate, waiting int) bool {
	if w.Stage != Whole || cands[i].Prefilling == 0 {
		return false
	}
	many := waiting >= (len(cands)+w.passed.ranks+1)/2
	if many && w.passed.idle {
		return false
	}
	for j := 0; many && j < len(cands); j++ {
		if cands[j].Prefilling == 0 {
			return false
		}
	}
	c := &cands[i]
	v := a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank})
	return a.waiting(w, c, e)-e.blocks > leastHeld+w.news+v.prefillStep+v.decodeStep+v.decodeToken*e.context
}

// The parts of a cost in ms; partWaiting, partLoading and partPulling are of partFirst.
const (
	partFirst = iota
	partWaiting
	partLoading
	partPulling
	partDisplaced
	partDecoding
	partOthers
	partLost
	numParts
)

// explain keeps the parts of a cost for its formula, which is made later.
func (a *auto) explain(w *Weighing, c *Candidate, e *estimate) {
	if n := int(c.slot) + 1; n > len(w.parts) {
		w.parts = append(w.parts, make([][numParts]float64, n-len(w.parts))...)
	}
	_, loading := a.loads(w, c)
	w.parts[c.slot] = [...]float64{
		partFirst: e.first, partWaiting: a.waiting(w, c, e), partLoading: e.token * (loading.sum() - loading[pulled]), partPulling: e.token * loading[pulled], partDisplaced: e.displaced, partDecoding: e.decoding, partOthers: e.others,
		partLost: e.lost,
	}
}

// Formula implements Policy.
func (*auto) Formula(w *Weighing, c *Candidate) string {
	if int(c.slot) >= len(w.parts) {
		return fmt.Sprintf("%.1f ms", c.Cost) // nobody was to explain it
	}
	p, parts, others := &w.parts[c.slot], "", ""
	if p[partOthers] > 0 {
		others = fmt.Sprintf(" + %.1f for other routers", p[partOthers])
	}
	if p[partLost] > 0 {
		others += fmt.Sprintf(" + %.1f for targets", p[partLost])
	}
	const shown = 0.05 // less is 0.0
	switch wait, load, pull := p[partWaiting], p[partLoading], p[partPulling]; {
	case pull > 0:
		parts = fmt.Sprintf(" (%.1f waiting, %.1f loading, %.1f fetching %d tokens from worker %d)", wait, load, pull, c.Pull.Tokens, c.Pull.From.Worker)
	case load > 0 && wait >= shown:
		parts = fmt.Sprintf(" (%.1f waiting, %.1f loading)", wait, load)
	case load > 0:
		parts = fmt.Sprintf(" (%.1f loading)", load)
	case wait >= shown:
		parts = fmt.Sprintf(" (%.1f waiting)", wait)
	}
	return fmt.Sprintf("%.1f ms = %.1f to the first token%s + %.1f displaced + %.1f decoding%s%s", c.Cost, p[partFirst], parts, p[partDisplaced], p[partDecoding], others, w.unfetched(c))
}

// follow keeps what was expected of a request that is booked, to learn from it.
func (a *auto) follow(t *trip, w *Weighing, c *Candidate, e *estimate, whole bool) {
	*t = trip{
		slot: c.slot, id: rankKey{c.Worker, c.DPRank}, at: w.Now,
		past: e.past, steps: e.steps, tokens: e.tokens, stalls: e.stalls, context: e.context,
		prompt: float64(w.PromptTokens), whole: whole, guessed: c.Unknown || w.guessed, blocks: e.blocks > 0, expected: e.first,
	}
	t.aims, t.aim = w.aims, w.aim.token
	a.aimed(t, 1)
	t.loads, t.loading = a.loads(w, c)
	if c.Pull.Tokens > 0 {
		t.source, t.shared, t.fetching = c.source, 1+max(a.pulling(c.source), a.pulling(c.slot)), true
		a.fetches(t, 1)
		a.fetched = w.Now
	}
	a.speeds.prompt += (t.prompt - a.speeds.prompt) / memory
	a.speeds.sent(t)
}

// firstToken is as an Observer's.
func (a *auto) firstToken(t *trip, now time.Time, l load.Load) {
	a.fetches(t, -1)
	t.first, t.begun = now, float64(l.PromptTokens)
}

// ended is as an Observer's. Times are learned only now: an answer that came
// as a whole has no time of its first token.
func (a *auto) ended(t *trip, stage Stage, now time.Time, l load.Load, tokens int) {
	a.fetches(t, -1)
	a.speeds.left(t)
	a.aimed(t, -1)
	t.ended = float64(l.PromptTokens) + t.prompt
	if t.first.IsZero() {
		return
	}
	first, rest := ms(t.first.Sub(t.at)), ms(now.Sub(t.first))
	if t.whole {
		if tokens < 2 {
			return
		}
		// Nobody saw where the prompt ended: both parts took as many times longer as
		// the whole did.
		r := a.speeds.rank(t.slot, t.id)
		decoding := math.Exp(r.decode.log) * a.speeds.decode.at(1, (t.context+t.ended)/2) * float64(tokens-1)
		share := t.expected / (t.expected + decoding)
		all := first + rest
		first, rest, t.begun = all*share, all*(1-share), t.context
	}
	if stage != PrefillStage && (rest < first/100 || tokens == 1) {
		return
	}
	// How much of its wait was for blocks nobody saw: it is no slowness of computing prompts.
	if stage != DecodeStage && !t.guessed && !t.blocks {
		a.speeds.learnPrefill(t, first)
	}
	if tokens > 1 {
		a.speeds.learnDecode(t, rest/float64(tokens-1), tokens)
	}
	a.speeds.took(t)
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// finite keeps a learned number usable whatever was observed.
func finite(v, lo, hi float64) float64 {
	if !(v >= lo) {
		return lo
	}
	return math.Min(v, hi)
}
