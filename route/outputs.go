package route

// How long an answer will be nobody knows before: requests say what they expect, or how much they allow, and others' answers tell what is usual.

// plausibleOutputs is how many usual answers one counts as at most, whatever its request says.
const plausibleOutputs = 8

// output is how many tokens a request with the options should generate, as far as they say; 0 if they do not.
func (o *Options) output() int {
	if o.ExpectedOutput > 0 {
		return o.ExpectedOutput
	}
	return max(o.MostOutput, 0)
}

// output is how many tokens the request should generate: as many as it says itself, though no more than
// plausibleOutputs usual ones, or else as others do, if it may. A limit alone is no more than that: many clients name one that is far off.
func (w *Weighing) output(usual float64) float64 {
	switch {
	case w.expected > 0:
		return min(float64(w.expected), plausibleOutputs*usual)
	case w.most > 0:
		return min(float64(w.most), usual)
	}
	return usual
}

// longest is how many tokens the request may generate, for who waits for them: as many as it says itself, or else as others do.
func (w *Weighing) longest(usual float64) float64 {
	switch {
	case w.expected > 0:
		return float64(w.expected)
	case w.most > 0:
		return float64(w.most)
	}
	return usual
}
