package lab

import (
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
)

// leap is a row of steps of a worker in which nothing happens but that its requests go on by a
// token each (mock.Engine.Calm): most steps of a fleet. The agenda has only its end. Who
// comes meanwhile, or changes the worker's speed, lets it land: what has begun by then has
// passed, the step under way ends as any other, and the entry at the end is void. What a run
// gives is to the bit what it would be step by step.
type leap struct {
	steps  int           // 0: there is none
	began  time.Duration // when the step before them did
	first  time.Duration // when the first of them starts
	seq    uint64        // on the agenda
	number uint32        // of the worker's leaps
}

// leaps lets a worker leap after the step that has just started and ends at the time, if
// nothing comes of that either. It reports whether it does.
func (s *sim) leaps(i int, end time.Duration) bool {
	w := s.workers[i]
	if s.plain || len(w.report.First)+len(w.report.Finished) > 0 {
		return false
	}
	steps, _, _ := w.engine.Calm()
	if steps == 0 {
		return false
	}
	w.leap = leap{steps: steps, began: s.now, first: end, seq: s.agenda.seq, number: w.leap.number + 1}
	s.agenda.seq++
	_, last, end := s.fly(i, 1<<62)
	s.agenda.push(happening{at: end, made: last, seq: w.leap.seq, kind: stepEnds, of: w.epoch*maxWorkers2 + i, leap: w.leap.number})
	return true
}

// fly goes along a leap until a time, and returns how many of its steps start before that, and
// when the last of these does, or else the one before them, and when that ends.
func (s *sim) fly(i int, until time.Duration) (passed int, last, end time.Duration) {
	w := s.workers[i]
	var r mock.Report
	_, r.Decode, r.Context = w.engine.Calm()
	last, end = w.leap.began, w.leap.first
	for ; passed < w.leap.steps && end < until; passed++ {
		last, end = end, end+s.stepTime(i, end, &r)
		r.Context += r.Decode
	}
	return passed, last, end
}

// land ends a worker's leap before its time, if there is one, before anything comes to its engine.
func (s *sim) land(i int) {
	w := s.workers[i]
	if w.leap.steps == 0 {
		return
	}
	until := s.now
	if s.doing > stepStarts {
		until++ // steps that start at this moment have done so
	}
	passed, last, end := s.fly(i, until)
	s.passed(i, passed, end)
	s.agenda.push(happening{at: end, made: last, seq: w.leap.seq, kind: stepEnds, of: w.epoch*maxWorkers2 + i})
}

// passed ends a worker's leap after so many steps, of which the last ends at the time.
func (s *sim) passed(i, steps int, end time.Duration) {
	w := s.workers[i]
	_, decode, _ := w.engine.Calm()
	w.engine.Skip(steps)
	w.worked += end - w.leap.first
	s.result.Steps += steps
	s.result.Decoded += steps * decode
	w.leap.steps = 0
}

// void reports whether the entry is the end of a leap that has landed before.
func (s *sim) void(h *happening) bool {
	if h.leap == 0 {
		return false
	}
	l := &s.workers[h.of%maxWorkers2].leap
	return l.steps == 0 || l.number != h.leap
}
