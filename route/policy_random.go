package route

// random takes any rank.
type random struct{}

func (random) UsesIndex(*Weighing) bool { return false }

func (random) Choose(w *Weighing, cands []Candidate) (int, error) {
	return w.Rand.IntN(len(cands)), nil
}

func (random) Formula(*Weighing, *Candidate) string { return "by chance" }
