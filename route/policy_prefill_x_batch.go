package route

import "fmt"

// prefillXBatch multiplies the prompt tokens to be computed by the batch that
// they would join (LMetric, arXiv 2603.15202): no weight, as scaling either
// factor changes no order.
type prefillXBatch struct{}

func (prefillXBatch) UsesIndex(*Weighing) bool { return true }

func (prefillXBatch) Choose(w *Weighing, cands []Candidate) (int, error) {
	for i := range cands {
		// With nothing to compute, as for decode workers, the batch decides.
		cands[i].Cost = float64(max(cands[i].PrefillTokens, 1)) * float64(cands[i].Requests+1)
	}
	return w.Lowest(cands), nil
}

func (prefillXBatch) Formula(_ *Weighing, c *Candidate) string {
	return fmt.Sprintf("%.0f = %d tokens * %d requests", c.Cost, c.PrefillTokens, c.Requests+1)
}
