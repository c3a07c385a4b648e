package route

// dynamo is the linear cost as Dynamo 1.6 names it: prefill load scale ×
// blocks to be computed + blocks in use. A request's own overlap weight is its
// scale, as older clients expect.
type dynamo struct{}

func (d dynamo) UsesIndex(w *Weighing) bool { return d.scale(w) > 0 }

func (dynamo) scale(w *Weighing) float64 {
	if w.HasWeight {
		return w.Weight
	}
	return w.Settings.PrefillLoadScale
}

func (d dynamo) Choose(w *Weighing, cands []Candidate) (int, error) {
	linear(w, cands, d.scale(w))
	return w.Lowest(cands), nil
}

func (d dynamo) Formula(w *Weighing, c *Candidate) string { return linearFormula(w, c, d.scale(w)) }
