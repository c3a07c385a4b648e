package route

import "fmt"

// leastLoaded takes the rank with the fewest live requests.
type leastLoaded struct{}

func (leastLoaded) UsesIndex(*Weighing) bool { return false }

func (leastLoaded) Choose(w *Weighing, cands []Candidate) (int, error) {
	for i := range cands {
		cands[i].Cost = float64(cands[i].Requests)
	}
	return w.Lowest(cands), nil
}

func (leastLoaded) Formula(_ *Weighing, c *Candidate) string {
	return fmt.Sprintf("%d requests", c.Requests)
}
