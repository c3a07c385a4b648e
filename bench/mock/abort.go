package mock

import "slices"

// Abort ends a request whose client is gone. The blocks that it completed stay
// reusable. It reports whether the request was running or waiting.
func (e *Engine) Abort(id uint64) bool {
	e.settle()
	for i, s := range e.running {
		if s.id == id {
			e.running = slices.Delete(e.running, i, i+1)
			e.cache.release(s)
			e.spare = append(e.spare, s)
			return true
		}
	}
	s := e.waiting.remove(id)
	if s == nil {
		return false
	}
	if e.blocked == s {
		e.blocked = nil
	}
	e.spare = append(e.spare, s)
	return true
}

// unfinished returns the requests that are running or waiting, as they were admitted,
// with nothing received.
func (e *Engine) unfinished() []Request {
	list := make([]Request, 0, len(e.running)+e.waiting.len())
	for _, of := range [][]*sequence{e.running, e.waiting.items[e.waiting.head:]} {
		for _, s := range of {
			list = append(list, Request{ID: s.id, Input: s.input, Output: s.output, Local: s.local})
		}
	}
	return list
}

// Load is what an engine is busy with.
type Load struct {
	Running, Waiting int // requests
	Blocks           int // in use by running requests
	PrefillTokens    int // that running and waiting requests have yet to compute
}

// Load returns the engine's load between two steps.
func (e *Engine) Load() Load {
	l := Load{Running: len(e.running), Waiting: e.waiting.len(), Blocks: e.cfg.Blocks - e.cache.free}
	for _, s := range e.running {
		if left := s.input - s.computed; left > 0 {
			l.PrefillTokens += left
		}
	}
	for _, s := range e.waiting.items[e.waiting.head:] {
		l.PrefillTokens += s.input
	}
	return l
}
