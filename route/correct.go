package route

import "github.com/kvatlas/kvatlas/route/account"

// correction is how much of what a model's full attention had cached its engines find
// reusable: of a model with other caches besides, which are not indexed, the index has an
// upper bound. It is learnt from what engines report, and a Router has one, as it has one
// model. The zero correction knows nothing: the bound counts whole.
type correction struct {
	reports      int
	bound, found float64 // tokens, of which the last reports count most
}

const (
	// correctAfter is how many reports there must be before they count.
	correctAfter = 8
	// correctOver is of about how many reports what is learnt is the mean.
	correctOver = 64
)

// learn takes what one engine found, where the index had a bound above 0.
func (c *correction) learn(bound, found int) {
	const keep = 1 - 1.0/correctOver
	c.reports = min(c.reports+1, correctAfter)
	c.bound, c.found = keep*c.bound+float64(bound), keep*c.found+float64(min(max(found, 0), bound))
}

// part returns how much of a bound is expected, 0 to 1.
func (c *correction) part() float64 {
	if c.reports < correctAfter {
		return 1
	}
	return min(c.found/c.bound, 1)
}

// estimated reports whether the depths that were found are bounds, and what is left of them
// then.
func (r *Router) estimated(s *scratch) (part float64, is bool) {
	if r.cfg.Estimated == nil || s.exact || !r.cfg.Estimated() {
		return 1, false
	}
	return r.correction.part(), true
}

// bounded is what the index had of the prompt of a choice whose depths are bounds; zero of others.
type bounded struct {
	tokens int     // on the chosen rank, uncorrected
	part   float64 // of them that was expected
	stale  bool
}

// boundOf returns the bound of a choice.
func (r *Router) boundOf(s *scratch, c *Candidate) bounded {
	return bounded{r.foundOn(s, c.RankID, 1, c.Pooled), r.weigh.part, c.Stale}
}

// correct learns from what an engine found of a prompt of so many tokens, where the choice
// had counted others. That blocks went, came late or are others says nothing of
// the model's caches, and no more does what was stored meanwhile.
func (r *Router) correct(f *followed, out *Account) {
	bound := f.bound.tokens
	if n := f.choice.Prompt; n > 0 && out.Prompt != n { // the tokens were estimated
		bound = int(int64(bound) * int64(out.Prompt) / int64(n))
	}
	if bound <= 0 || f.bound.stale || out.Actual > bound+r.cfg.BlockSize {
		return
	}
	switch out.Miss {
	case account.Evicted, account.Late, account.TokensDiffer:
	default:
		r.correction.learn(bound, out.Actual)
	}
}
