package mock

// calm lets steps pass in which every running request only goes on by one token, without
// looking at the requests: most steps of a fleet are such, and to touch each sequence in
// each of them is most of what they cost. How many steps it holds for is known when it
// begins: until the first of them fills a block or is to end. What the requests have
// gained meanwhile is added when somebody looks at them again.
type calm struct {
	left    int // steps that can still pass
	passed  int // steps that the sequences do not show yet
	context int // tokens attended to in the next one
}

// pass does a calm step, or returns false.
func (e *Engine) pass(r *Report) bool {
	c := &e.calm
	if c.left == 0 || e.waiting.len() > 0 {
		return false
	}
	r.Decode, r.Context = len(e.running), c.context
	c.context += len(e.running)
	c.left--
	c.passed++
	return true
}

// settle ends a calm: the sequences show all steps again.
func (e *Engine) settle() {
	if e.calm.passed > 0 {
		for _, s := range e.running {
			s.computed += e.calm.passed
			s.generated += e.calm.passed
		}
	}
	e.calm = calm{}
}

// foresee looks for how many steps what runs will only go on.
func (e *Engine) foresee() {
	if len(e.running) == 0 || e.waiting.len() > 0 || len(e.running) > e.cfg.MaxBatched {
		return
	}
	left, context := 1<<30, 0
	for _, s := range e.running {
		if s.generated == 0 || s.computed != s.input+s.generated-1 {
			return // its prompt is not complete
		}
		left = min(left, len(s.blocks)*e.cfg.BlockSize-s.computed-1, s.output-s.generated-1)
		if left <= 0 {
			return
		}
		context += s.computed + 1
	}
	e.calm = calm{left: left, context: context}
}
