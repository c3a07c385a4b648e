package route

import "fmt"

// kv is the linear cost of Dynamo's documents: overlap weight × blocks to be
// computed + blocks in use.
type kv struct{}

func (kv) UsesIndex(w *Weighing) bool { return w.Weight > 0 }

func (kv) Choose(w *Weighing, cands []Candidate) (int, error) {
	linear(w, cands, w.Weight)
	return w.Lowest(cands), nil
}

func (kv) Formula(w *Weighing, c *Candidate) string { return linearFormula(w, c, w.Weight) }

// linear sets the cost: weight × prefill blocks + decode blocks.
func linear(w *Weighing, cands []Candidate, weight float64) {
	weight /= float64(w.BlockSize)
	for i := range cands {
		cands[i].Cost = weight*float64(cands[i].PrefillTokens) + cands[i].DecodeBlocks
	}
}

func linearFormula(w *Weighing, c *Candidate, weight float64) string {
	return fmt.Sprintf("%.1f = %.1f * %.1f + %.1f", c.Cost, weight, float64(c.PrefillTokens)/float64(w.BlockSize), c.DecodeBlocks)
}
