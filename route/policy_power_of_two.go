package route

import "fmt"

// powerOfTwo takes the less loaded of two ranks drawn by chance.
type powerOfTwo struct{}

func (powerOfTwo) UsesIndex(*Weighing) bool { return false }

func (powerOfTwo) Choose(w *Weighing, cands []Candidate) (int, error) {
	byRequests(cands)
	a := w.Rand.IntN(len(cands))
	if len(cands) == 1 {
		return a, nil
	}
	b := w.Rand.IntN(len(cands) - 1)
	if b >= a {
		b++ // any but a
	}
	if cands[b].Cost < cands[a].Cost {
		return b, nil
	}
	return a, nil
}

func (powerOfTwo) Formula(_ *Weighing, c *Candidate) string {
	return fmt.Sprintf("%d requests, two drawn by chance", c.Requests)
}
