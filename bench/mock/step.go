package mock

import "github.com/kvatlas/kvatlas/event"

// Step computes one batch: every running request goes on by one token or one
// chunk of its prompt, then waiting ones begin, until the token budget is used.
// Its events have been passed to the sink when it returns. The Report lives
// until the next Step.
//
// A block is reusable from the step on in which it is computed, also within
// that step, as in vLLM's scheduler.
func (e *Engine) Step() *Report {
	r := &e.report
	*r = Report{Began: r.Began[:0], First: r.First[:0], Finished: r.Finished[:0], Preempted: r.Preempted[:0]}
	if e.pass(r) {
		return r
	}
	e.settle()
	budget := e.cfg.MaxBatched
	for i := 0; i < len(e.running) && budget > 0; i++ {
		s := e.running[i]
		n := min(s.input+s.generated-s.computed, budget)
		if !e.makeRoom(s, n) {
			break // s was the last one running and has been preempted
		}
		if s.generated > 0 && s.computed+n == s.input+s.generated && n == 1 {
			r.Decode++
			r.Context += s.computed + 1
		} else {
			r.Prefill += n
		}
		e.goOn(s, n)
		budget -= n
	}
	for budget > 0 && len(r.Preempted) == 0 && e.waiting.len() > 0 && len(e.running) < e.cfg.MaxRunning {
		n, ok := e.begin(e.waiting.front(), budget)
		if !ok {
			break
		}
		s := e.waiting.popFront()
		e.running = append(e.running, s)
		cost := n
		if s.received {
			cost = 1
		}
		r.Prefill += cost
		e.goOn(s, n)
		budget -= cost
	}
	e.endStep()
	e.foresee()
	return r
}

// need returns how many blocks s lacks to compute n more tokens.
func (e *Engine) need(s *sequence, n int) int {
	return (s.computed+n+e.cfg.BlockSize-1)/e.cfg.BlockSize - s.blocks
}

// makeRoom gives s the blocks for n more tokens. When too few are free, the
// requests that began last give theirs up, s last; then it returns false.
// Requests before s have already been computed in this step and are spared.
func (e *Engine) makeRoom(s *sequence, n int) bool {
	need := e.need(s, n)
	for e.cache.free < need {
		last := e.running[len(e.running)-1]
		e.running = e.running[:len(e.running)-1]
		e.report.Lost += last.computed
		e.report.Preempted = append(e.report.Preempted, last.id)
		e.cache.release(last)
		last.again, last.received = true, false
		e.waiting.pushFront(last)
		if last == s {
			return false
		}
	}
	for range need {
		e.take(s)
	}
	return true
}

// begin gives s its cached prefix, what follows it on lower tiers, and the
// blocks for what the budget allows beyond: n tokens, or all of a prompt that
// was received. It returns false, with nothing changed, if too few are free. The
// last token is always computed, as the next one comes from it.
func (e *Engine) begin(s *sequence, budget int) (n int, ok bool) {
	if s == e.blocked && e.cache.freed == e.blockedAt {
		return 0, false // no block has become free since it was found too few are
	}
	tokens := s.input + s.generated
	names := s.name[:min(len(s.name), (tokens-1)/e.cfg.BlockSize)]
	cached := e.cache.match(names)
	loads := e.loadable(names[cached:])
	if n := e.agreed(names, cached+loads); n < cached+loads {
		cached = min(cached, n)
		loads = n - cached
	}
	given := 0 // blocks that follow
	if len(e.groups) == 0 {
		given = max(0, min(s.fetched, len(names))-cached-loads)
	}
	s.computed = (cached + loads + given) * e.cfg.BlockSize
	if n = tokens - s.computed; !s.received {
		n = min(n, budget)
	}
	need := e.need(s, n) - cached
	if e.cache.free-e.cache.idle(cached) < need {
		e.blocked, e.blockedAt = s, e.cache.freed
		return 0, false
	}
	e.blocked = nil
	e.cache.use(s, cached)
	e.load(names[cached : cached+loads])
	e.touchGroups(names, cached+loads)
	for range need {
		e.take(s)
	}
	e.report.Reused += s.computed
	e.report.Began = append(e.report.Began, Begun{ID: s.id, Reused: s.computed, Again: s.again})
	if s.fetched = 0; loads+given > 0 {
		s.computed = cached * e.cfg.BlockSize
		e.compute(s, (loads+given)*e.cfg.BlockSize)
	}
	return n, true
}

// compute adds n tokens to s, which has the blocks for them, and names the
// blocks that this completes. What another request has computed meanwhile is
// shared instead of kept twice. Each run of new blocks is one Stored event.
func (e *Engine) compute(s *sequence, n int) {
	from := s.computed / e.cfg.BlockSize
	s.computed += n
	s.step = true
	to := min(s.computed/e.cfg.BlockSize, len(s.name))
	if from >= to {
		return
	}
	if shared := e.cache.matchAfter(s, s.name[from:to]); shared > 0 {
		e.cache.giveBlank(s, shared)
		e.cache.use(s, shared)
		from += shared
	}
	if from < to {
		e.cache.name(s, to-from)
		e.stored(s, from, to)
	}
}

// goOn computes n tokens of s in all cache groups.
func (e *Engine) goOn(s *sequence, n int) {
	from := s.computed / e.cfg.BlockSize
	if e.compute(s, n); len(e.groups) > 0 {
		e.group(s, from, min(s.computed/e.cfg.BlockSize, len(s.name)))
	}
}

// stored emits that blocks [from, to) of s are in the cache.
func (e *Engine) stored(s *sequence, from, to int) {
	e.flush()
	ev := event.Event{Kind: event.Stored, Tier: event.Device, Engine: s.name[from:to], Local: s.local[from:to]}
	if from > 0 {
		ev.HasParent, ev.Parent = true, s.name[from-1]
	}
	e.emit(ev)
	if e.cfg.Shared != nil {
		for _, name := range ev.Engine {
			e.cfg.Shared.pool.put(name)
		}
	}
}

// endStep generates a token for each request that is complete so far, and ends
// those that have all of theirs.
func (e *Engine) endStep() {
	r := &e.report
	keep := e.running[:0]
	for _, s := range e.running {
		if s.step && s.computed == s.input+s.generated {
			if s.generated == 0 {
				r.First = append(r.First, s.id)
			}
			if s.generated++; s.generated >= s.output {
				r.Finished = append(r.Finished, s.id)
				e.cache.release(s)
				e.spare = append(e.spare, s)
				continue
			}
		}
		s.step = false
		keep = append(keep, s)
	}
	clear(e.running[len(keep):])
	e.running = keep
	e.flush()
}
