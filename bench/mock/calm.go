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
	steps, decode, context := e.Calm()
	if steps == 0 {
		return false
	}
	r.Decode, r.Context = decode, context
	e.Skip(1)
	return true
}

// Calm returns in how many steps from now on nothing happens but that each running request goes
// on by one token, how many those are, and what they attend to in the first such step: in each
// further one it is as much more as there are requests. It holds while nothing is admitted or aborted.
func (e *Engine) Calm() (steps, decode, context int) {
	if e.waiting.len() > 0 {
		return 0, 0, 0
	}
	return e.calm.left, len(e.running), e.calm.context
}

// Skip does so many of the steps of Calm at once, also if something was admitted since, for whoever
// knows that they had begun before. Nothing is reported of them.
func (e *Engine) Skip(steps int) {
	e.calm.left -= steps
	e.calm.passed += steps
	e.calm.context += steps * len(e.running)
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
		left = min(left, s.blocks*e.cfg.BlockSize-s.computed-1, s.output-s.generated-1)
		if left <= 0 {
			return
		}
		context += s.computed + 1
	}
	e.calm = calm{left: left, context: context}
}
