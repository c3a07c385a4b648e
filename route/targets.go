package route

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Targets are times that a request is to keep; 0 is none.
type Targets struct {
	// FirstToken is the time from when the request came to its first token.
	FirstToken time.Duration
	// Token is the mean time of each further token.
	Token time.Duration
}

// Check returns an error that wraps ErrSettings for a time out of range.
func (t Targets) Check() error {
	if t.FirstToken < 0 || t.Token < 0 {
		return fmt.Errorf("%w: targets of %v to the first token and %v for each further one, give times from 0 on", ErrSettings, t.FirstToken, t.Token)
	}
	return nil
}

// aim is a request's Targets in ms when a rank is chosen; 0 is none.
type aim struct {
	first float64 // what is left of it; below 0 where it is missed already
	token float64
}

// aim returns what the request aims at: its own targets, or its model's.
func (o *Options) aim(s *Settings) aim {
	t := s.Targets
	if o.FirstToken != nil {
		t.FirstToken = *o.FirstToken
	}
	if o.Token != nil {
		t.Token = *o.Token
	}
	m := aim{token: ms(t.Token)}
	if t.FirstToken > 0 {
		m.first = ms(t.FirstToken - o.Waited)
		if m.first <= 0 {
			m.first = -1
		}
	}
	return m
}

// aimers are live requests of one rank, with one target of their own for each token.
type aimers struct {
	token float64 // ms; 0 is none
	count int
}

// lostPrompts is how many usual prompts take as long to compute as keeping one request's targets is
// worth: more than what a request costs, so that as many as can be keep theirs, and not so much that a
// small risk outweighs all else. In the lab with two or five times that as many are within
// targets, and those that are not end later.
const lostPrompts = 10

// late is the chance that a first token that is predicted to take so long misses the target: a half where that
// is just met, a sixty-fifth at half of it. Who can keep it nowhere goes where it costs least.
func late(predicted, target float64) float64 {
	x := target / predicted
	x *= x * x
	return 1 / (1 + x*x)
}

// slow is what it costs a request that its rank takes so long for a token now. What counts is the mean over
// all of its tokens, and others come and go meanwhile: so it is half of the cube, and no chance. With one, as
// late's, those that miss their targets are brought together on few ranks, and up to 4 % more
// miss them where many are near their targets. But it has no more than one target to lose: from there on,
// at a quarter above the target, what is later still counts half, so that who has lost his spares those who may keep theirs
// and is not forgotten; beyond three times the target it is nothing.
func slow(predicted, target float64) float64 {
	if target == 0 {
		return 0
	}
	x := min(predicted/target, 3)
	return min(x*x*x, x+0.74) / 2 // of which the cube is less up to its being 2
}

// total is the whole cost of a request on a rank: where targets count, with what it takes for them.
func (a *auto) total(w *Weighing, c *Candidate, e *estimate) float64 {
	if !a.aiming(w) {
		return e.cost()
	}
	e.lost = lostPrompts * a.speeds.prefill.b * a.speeds.prompt * a.losses(w, c, e)
	return e.cost() + e.lost
}

// losses is how many requests the choice of the rank costs their targets, about: this one, and those that
// decode there, as it shares their batch and its prompt is computed between their tokens. Prompts that
// wait there are ahead of it, and come no later for it.
func (a *auto) losses(w *Weighing, c *Candidate, e *estimate) (lost float64) {
	switch {
	case w.Stage == DecodeStage:
	case w.aim.first > 0:
		lost = late(e.first, w.aim.first)
	case w.aim.first < 0:
		lost = 1
	}
	if w.Stage == PrefillStage {
		return lost
	}
	v := a.speeds.of(c.slot, rankKey{c.Worker, c.DPRank})
	before := v.decodeStep + v.decodeToken*float64(c.Context)
	after := before + v.decodeToken*float64(w.PromptTokens)
	lost = max(lost, slow(after, w.aim.token))
	// The others have half of their answers before them, in the mean.
	after += e.token * float64(c.NewTokens) / (a.speeds.output / 2)
	others, all := c.Requests, ms(w.Settings.Targets.Token)
	if int(c.slot) < len(a.aims) {
		for _, o := range a.aims[c.slot] {
			others -= o.count
			lost += float64(o.count) * (slow(after, o.token) - slow(before, o.token))
		}
	}
	return lost + float64(max(others, 0))*(slow(after, all)-slow(before, all))
}

// aiming reports whether targets count: the request has some, or others that it may harm.
func (a *auto) aiming(w *Weighing) bool {
	return w.aim != aim{} || w.Settings.Targets.Token > 0 || a.aimedAt > 0
}

// aimed notes that a request comes to its rank, or with -1 that it is there no more, if it has targets
// of its own.
func (a *auto) aimed(t *trip, by int) {
	if !t.aims {
		return
	}
	for int(t.slot) >= len(a.aims) {
		a.aims = append(a.aims, nil)
	}
	a.aimedAt += by
	token := 0.0
	if t.aim > 0 { // to within 5 %, so that there are few, whatever callers say
		token = math.Exp2(math.Round(8*math.Log2(t.aim)) / 8)
	}
	list := a.aims[t.slot]
	for i := range list {
		if list[i].token != token {
			continue
		}
		if list[i].count += by; list[i].count == 0 {
			a.aims[t.slot] = slices.Delete(list, i, i+1)
		}
		return
	}
	if by > 0 {
		a.aims[t.slot] = append(list, aimers{token, by})
	}
}
