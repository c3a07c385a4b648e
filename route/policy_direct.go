package route

import "fmt"

// direct sends each request to the worker that it names.
type direct struct{}

func (direct) UsesIndex(*Weighing) bool { return false }

func (direct) Choose(w *Weighing, cands []Candidate) (int, error) {
	if !w.Pinned {
		return 0, fmt.Errorf("%w: in mode direct a request names its worker", ErrSettings)
	}
	byRequests(cands) // among the worker's ranks
	return w.Lowest(cands), nil
}

func (direct) Formula(*Weighing, *Candidate) string { return "named by the request" }
