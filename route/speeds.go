package route

import (
	"math"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// speeds is how long an engine's steps take, learned from requests that have
// ended: a line for prompts (ms for a step, ms for a token), a line for decoding
// (ms for a step, ms for a token attended to), and for each rank a factor on
// either.
//
// A rank's factor is the typical ratio of its times to those of the lines. The
// lines are learned from times divided by the factors, and the middle one of
// the ranks' factors is 1: so the lines are those of most ranks, and one that
// is slow or lies moves its own factor only. Within a quarter of 1 a factor
// counts as 1, so that like ranks tie and chance in their times decides
// nothing; and within more while its samples are few and samples lie far from their
// line, as those of engines do whose times do not go by what they have. There one
// sample made a rank slow, which got none of 64 requests then.
type speeds struct {
	prefill, decode line
	beside          float64 // ms of others' decodes that prompts usually wait for
	output, prompt  float64 // mean tokens generated, and of prompts
	loads           [event.NumTiers + 1]loadTime
	ranks           []rankSpeed
	learned         int        // since the factors were centred
	samples         int        // requests that were learned from
	fastest         [2]float64 // the least logarithms of factors that count, for prompts and decoding
	unsure          bool       // a rank that it may have been is another, or all of them are
	scratch         []float64
}

// rankKey tells whose slot it was, as slots are used again.
type rankKey struct {
	worker uint64
	rank   uint32
}

// rankSpeed has the logarithms of a rank's factors.
type rankSpeed struct {
	id              rankKey
	prefill, decode factor

	counted [2]float64 // what speeds.fastest had of it

	live     int // requests of this router that are there
	heard    int // requests that were learned from
	last     int // speeds.samples at the last of them
	patience int // see firstPatience
}

// factor is a rank's: the ms that its requests took, and would have on the line; prior
// is the weight, in the latter, of that it is like the others. times is e^log, or 1 for
// what may be chance, which is within band: every choice needs it of every rank. samples
// is how many it goes by, of which older ones count less.
type factor struct{ log, times, band, spent, expected, prior, samples float64 }

// speed is one rank's, in ms.
type speed struct {
	prefillStep, prefillToken float64
	decodeStep, decodeToken   float64
}

// in is what counts of it in a stage: who computes prompts for others decodes nothing.
func (v speed) in(stage Stage) speed {
	if stage == PrefillStage {
		v.decodeStep, v.decodeToken = 0, 0
	}
	return v
}

const (
	// memory is how many samples a line goes by, about, and rankMemory a factor.
	memory     = 512
	rankMemory = 64
	deadBand   = 0.2231 // ln 1.25
	// chance is how many times their typical distance from the line, over the root of their
	// number, what samples say of a rank may be by chance.
	chance = 2
	// A factor stays within 1/4 and 16: a rank that answers at once, with
	// errors perhaps, is not taken to be infinitely fast.
	minFactor, maxFactor = -1.3863, 2.7726
	centreEvery          = 16
	// What is known of a rank that gets nothing grows old: once there were so many
	// samples of each rank without one of it, or twice as many as it ever had, it
	// counts as the fastest, until one request has told. If that finds it as slow as
	// before, the next time is after twice as many. So it is with usual ranks beside a faster
	// one, too: nobody knows of what gets all requests whether it became faster, or all did.
	firstPatience, maxPatience = 32, 128
)

// newSpeeds starts with the times of a common accelerator and model, which
// count as much as eight samples.
func newSpeeds() speeds {
	s := speeds{output: 256, prompt: 8192}
	s.prefill.begin([2]float64{16, 0.0175}, [2]float64{1, 512}, [2]float64{2, 16384})
	s.decode.begin([2]float64{6, 5e-5}, [2]float64{1, 4096}, [2]float64{1, 131072})
	return s
}

func newRankSpeed(id rankKey) rankSpeed {
	return rankSpeed{id: id, prefill: factor{times: 1, band: deadBand}, decode: factor{times: 1, band: deadBand}}
}

func (s *speeds) rank(slot uint32, id rankKey) *rankSpeed {
	for int(slot) >= len(s.ranks) {
		s.ranks = append(s.ranks, newRankSpeed(rankKey{}))
	}
	r := &s.ranks[slot]
	if r.id != id {
		*r = newRankSpeed(id)
		s.unsure = true
	}
	return r
}

// of returns the rank's speed.
func (s *speeds) of(slot uint32, id rankKey) speed {
	var p, d float64 = 1, 1
	if int(slot) < len(s.ranks) && s.ranks[slot].id == id {
		r := &s.ranks[slot]
		p, d = r.prefill.times, r.decode.times
		if r.prefill.ages(s.fastest[0]) || r.decode.ages(s.fastest[1]) {
			trust := s.trust(r)
			p, d = r.prefill.value(trust, s.fastest[0]), r.decode.value(trust, s.fastest[1])
		}
	}
	return speed{p * s.prefill.a, p * s.prefill.b, d * s.decode.a, d * s.decode.b}
}

// best returns a speed that no rank's is above.
func (s *speeds) best() speed {
	p, d := math.Exp(s.fastest[0]), math.Exp(s.fastest[1])
	return speed{p * s.prefill.a, p * s.prefill.b, d * s.decode.a, d * s.decode.b}
}

// trust is what part of what is known of a rank still counts: less with each request
// that others were learned from, and all of it while a request is there, as one at a
// time finds out.
func (s *speeds) trust(r *rankSpeed) float64 {
	if r.live > 0 {
		return 1
	}
	patience := max(r.patience, min(2*r.heard, firstPatience)) * len(s.ranks)
	return max(0, 1-float64(s.samples-r.last)/float64(max(patience, 1)))
}

// tried judges a rank that was left alone, as others are taken for faster, by a request that
// took so many times as long as the line says: it is as it was, or what was known counts as
// little as it was trusted. One that is not slow is judged only when it was tried again.
func (s *speeds) tried(t *trip, r *rankSpeed, f *factor, fastest, ratio float64) {
	was, better := banded(f.log, f.band), 0.0
	if was <= 0 {
		better = fastest
	}
	switch {
	case was <= better || was <= 0 && !t.again:
	case !(math.Log(ratio) > (was+better)/2):
		r.patience, r.heard = 0, 0
		const doubt = 1.0 / 4 // how well the most recent of it is trusted then
		f.spent *= doubt * t.trust
		f.expected *= doubt * t.trust
	case t.trust < 0.5 && r.heard > 0: // else its prompt has just told otherwise
		r.patience = min(2*max(r.patience, firstPatience), maxPatience)
	}
}

// ages reports whether its age counts: that of a rank as fast as the fastest, or not slower
// than it by more than chance, need not be known.
func (f *factor) ages(fastest float64) bool {
	return f.log > fastest && (fastest < 0 || f.log >= f.band)
}

// value is the factor as far as it is trusted, and for the rest the fastest. One that is not
// slow counts until all its trust is gone, as such ranks are used beside faster ones, at times
// seldom.
func (f *factor) value(trust, fastest float64) float64 {
	if trust == 1 || !f.ages(fastest) || trust > 0 && f.log < f.band {
		return f.times
	}
	return math.Exp(banded(trust*f.log+(1-trust)*fastest, f.band))
}

// banded is 0 for what may be chance.
func banded(log, band float64) float64 {
	if math.Abs(log) < band {
		return 0
	}
	return log
}

// weigh says what the samples make of it, that are typically so far off their line.
func (f *factor) weigh(off float64) {
	f.log = finite(math.Log((f.spent+f.prior)/(f.expected+f.prior)), minFactor, maxFactor)
	f.band = max(deadBand, chance*off/math.Sqrt(f.samples))
	f.times = 1
	if log := banded(f.log, f.band); log != 0 { // as of few ranks
		f.times = math.Exp(log)
	}
}

// learn takes in that so many ms were spent where the line expects so many, and
// reports whether that is less than fourfold off the rank's own; of what is
// more, the rest does not count.
func (f *factor) learn(spent, expected, off float64) (usual bool) {
	own := math.Exp(f.log) * expected
	usual = spent > own/4 && spent < own*4
	const keep = 1 - 1.0/rankMemory
	f.spent = keep*f.spent + finite(spent, own/4, own*4)
	f.expected = keep*f.expected + expected
	f.samples = keep*f.samples + 1
	// As if a few more requests had taken as long as expected.
	f.prior = 4 * expected
	f.weigh(off)
	return usual
}

// loadTime is how long loading a token from a lower tier takes, as a part of the
// time to compute it: ms that loads took, and that computing would have.
type loadTime struct{ spent, computing float64 }

// A loadTime stays within these: not nothing, and not much more than computing,
// as an engine that loads what it could compute sooner is rare.
const minLoad, maxLoad = 0.01, 4

// maxPull is likewise the most for what is fetched.
const maxPull = 16

// value is that part: what the tier's credit leaves, until tokens that take
// about a second to compute have been loaded.
func (l *loadTime) value(credit float64) float64 { return min(l.after(credit, 1000), maxLoad) }

// after is value where so many ms count as much as what the credit says.
func (l *loadTime) after(credit, prior float64) float64 {
	return finite((l.spent+prior*(1-credit))/(l.computing+prior), minLoad, maxPull)
}

// learnLoads learns from a request that loaded more tokens than were computed
// before its first one, whose wait was so many ms longer than those take.
func (s *speeds) learnLoads(t *trip, spent float64) {
	all := t.loading.sum()
	for i, tokens := range t.loads {
		if tokens == 0 {
			continue
		}
		l, computing := &s.loads[i], s.prefill.b*tokens
		took, keep, most := spent*t.loading[i]/all, 1-1.0/memory, float64(maxLoad)
		if i == pulled { // links change, and a slow one is worse than a slow disk
			took, keep, most = took/float64(t.shared), 1-1.0/rankMemory, maxPull
		}
		l.spent = keep*l.spent + finite(took, 0, most*computing)
		l.computing = keep*l.computing + computing
	}
}

// learnPrefill learns from a request whose first token came after so many ms.
func (s *speeds) learnPrefill(t *trip, first float64) {
	r := s.rank(t.slot, t.id)
	decodes := 0.0
	if t.context > 0 {
		decodes = r.decode.times * (s.decode.a + s.decode.b*t.context) * t.stalls
	}
	spent := first + t.past - decodes
	if loading := t.loading.sum(); t.loads.sum() > t.tokens-loading {
		s.learnLoads(t, spent/math.Exp(r.prefill.log)-s.prefill.at(t.steps, t.tokens-loading))
		return
	}
	expected := s.prefill.at(t.steps, t.tokens)
	// The line has learned what is left where there are as many decodes as usual, and not all
	// of their time is what prompts wait for: on an idle rank they look slower by up to that.
	// A rank that is taken for slow is chosen only while it is idle, so to judge it by that
	// would leave it slow for ever. Where it is slow indeed, it shows once it is used.
	judged := max(min(spent, expected), spent-max(0, s.beside-decodes))
	s.beside += (decodes - s.beside) / rankMemory
	s.tried(t, r, &r.prefill, s.fastest[0], judged/expected)
	if r.prefill.learn(judged, expected, s.prefill.off) {
		s.prefill.learn(t.steps, t.tokens, spent/math.Exp(r.prefill.log))
	}
}

// learnDecode learns from a request that took so many ms for each token.
func (s *speeds) learnDecode(t *trip, each float64, tokens int) {
	r := s.rank(t.slot, t.id)
	context := (t.begun + t.ended) / 2
	expected := s.decode.at(1, context)
	s.tried(t, r, &r.decode, s.fastest[1], each/expected)
	if r.decode.learn(each, expected, s.decode.off) {
		s.decode.learn(1, context, each/math.Exp(r.decode.log))
	}
	s.output += (float64(tokens) - s.output) / memory
}

// sent notes that a request is sent to its rank.
func (s *speeds) sent(t *trip) {
	r := s.rank(t.slot, t.id)
	t.trust = s.trust(r)
	t.again = t.trust == 0 && 2*r.heard >= firstPatience
	r.live++
}

// left notes that it is there no more.
func (s *speeds) left(t *trip) {
	if r := s.rank(t.slot, t.id); r.live > 0 {
		r.live--
	}
}

// took notes that it was learned from.
func (s *speeds) took(t *trip) {
	s.samples++
	r := s.rank(t.slot, t.id)
	r.heard++
	r.last = s.samples
	s.centre()
	for i, was := range r.counted { // one that was the fastest may be so no more
		s.unsure = s.unsure || was != 0 && was == s.fastest[i]
	}
	if !s.unsure {
		s.count(r)
		return
	}
	s.unsure, s.fastest = false, [2]float64{}
	for i := range s.ranks {
		s.count(&s.ranks[i])
	}
}

// count lets the rank be the fastest.
func (s *speeds) count(r *rankSpeed) {
	r.counted = [2]float64{banded(r.prefill.log, r.prefill.band), banded(r.decode.log, r.decode.band)}
	for i, log := range r.counted {
		s.fastest[i] = min(s.fastest[i], log)
	}
}

// centre makes the middle factors 1 now and then: what most ranks differ by
// from a line is the line's.
func (s *speeds) centre() {
	if s.learned++; s.learned < centreEvery {
		return
	}
	s.learned = 0
	s.centreOn(&s.prefill, func(r *rankSpeed) *factor { return &r.prefill })
	s.centreOn(&s.decode, func(r *rankSpeed) *factor { return &r.decode })
}

func (s *speeds) centreOn(l *line, of func(*rankSpeed) *factor) {
	middle := s.middle(of, func(f *factor) float64 { return f.log })
	if banded(middle, deadBand) != 0 {
		// The line is far off: go by what was observed, without the part of each
		// factor that says that the rank is as the line is.
		middle = finite(s.middle(of, func(f *factor) float64 { return math.Log(max(f.spent, 1e-9) / f.expected) }), minFactor, maxFactor)
	}
	if middle == 0 {
		return
	}
	s.unsure = true
	times := math.Exp(middle)
	l.scale(times)
	for i := range s.ranks {
		if f := of(&s.ranks[i]); f.expected > 0 {
			// The line that they are measured by has moved, and how much of a
			// factor its samples bear out with it.
			f.expected *= times
			f.prior *= times
			f.weigh(l.off)
		}
	}
}

// middle returns the middle one of what is said of the ranks that were learned from.
func (s *speeds) middle(of func(*rankSpeed) *factor, say func(*factor) float64) float64 {
	s.scratch = s.scratch[:0]
	for i := range s.ranks {
		if f := of(&s.ranks[i]); f.expected > 0 {
			s.scratch = append(s.scratch, say(f))
		}
	}
	n := len(s.scratch)
	if n == 0 {
		return 0
	}
	upper := nth(s.scratch, n/2)
	if n%2 == 1 {
		return upper
	}
	return (slices.Max(s.scratch[:n/2]) + upper) / 2
}

// nth returns what would be at k of v in order, and leaves no more before it, and no less behind it
// (Hoare's selection: to sort hundreds of ranks for each few requests shows).
func nth(v []float64, k int) float64 {
	lo, hi := 0, len(v)-1
	for lo < hi {
		pivot, i, j := v[(lo+hi)/2], lo, hi
		for i <= j {
			for v[i] < pivot {
				i++
			}
			for v[j] > pivot {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case k <= j:
			hi = j
		case k >= i:
			lo = i
		default:
			return v[k]
		}
	}
	return v[k]
}

// line is y = a x₁ + b x₂, fitted by least squares to samples that count less as
// others follow.
type line struct {
	a, b                    float64
	s11, s12, s22, s1y, s2y float64
	off                     float64 // typical distance of a sample, as a part of what was expected
}

// begin makes the line ab, by samples at two points that count as much as eight.
func (l *line) begin(ab, p, q [2]float64) {
	l.a, l.b, l.off = ab[0], ab[1], 1
	for range 4 {
		for _, x := range [...][2]float64{p, q} {
			l.add(x[0], x[1], l.at(x[0], x[1]))
		}
	}
}

func (l *line) at(x1, x2 float64) float64 { return l.a*x1 + l.b*x2 }

func (l *line) add(x1, x2, y float64) {
	// The longer a time, the less certain it is.
	w := 1 / max(l.at(x1, x2), 1e-3)
	const keep = 1 - 1.0/memory
	l.s11, l.s12, l.s22 = keep*l.s11+w*x1*x1, keep*l.s12+w*x1*x2, keep*l.s22+w*x2*x2
	l.s1y, l.s2y = keep*l.s1y+w*x1*y, keep*l.s2y+w*x2*y
}

// learn adds a sample. One far from the line counts as one that is three times
// as far as is typical.
func (l *line) learn(x1, x2, y float64) {
	e := l.at(x1, x2)
	off := finite((y-e)/e, -1, 1)
	l.off += (math.Abs(off) - l.off) / 64
	l.add(x1, x2, e*(1+finite(off, -3*l.off, 3*l.off)))
	det := l.s11*l.s22 - l.s12*l.s12
	if !(det > 1e-9*l.s11*l.s22) {
		return
	}
	a := (l.s1y*l.s22 - l.s2y*l.s12) / det
	b := (l.s2y*l.s11 - l.s1y*l.s12) / det
	switch {
	case a < 0:
		a, b = 0, l.s2y/l.s22
	case b < 0:
		a, b = l.s1y/l.s11, 0
	}
	l.a, l.b = finite(a, 1e-3, 1e6), finite(b, 1e-6, 1e4)
}

// scale makes every time of the line longer by a factor, those that it was
// learned from too.
func (l *line) scale(f float64) {
	l.a, l.b = finite(l.a*f, 1e-3, 1e6), finite(l.b*f, 1e-6, 1e4)
	l.s1y, l.s2y = l.s1y*f, l.s2y*f
}
