package route

import "fmt"

// leastLoaded takes the rank with the fewest live requests.
type leastLoaded struct{}

func (leastLoaded) UsesIndex(*Weighing) bool { return false }

func (leastLoaded) Choose(w *Weighing, cands []Candidate) (int, error) {
	byRequests(cands)
	return w.Lowest(cands), nil
}

// byRequests sets the cost: live requests.
func byRequests(cands []Candidate) {
	for i := range cands {
		cands[i].Cost = float64(cands[i].Requests)
	}
}

func (leastLoaded) Formula(_ *Weighing, c *Candidate) string {
	return fmt.Sprintf("%d requests", c.Requests)
}
