package mocker

import (
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
)

// Through chooses who serves a request, and is told what becomes of it, by the goroutine
// of Run.
type Through interface {
	// Choose returns a worker and its rank for the request, whose prompt has so many tokens
	// and the hashes. Without one, ok is false and Routing decides.
	Choose(id uint64, input int, prompt []uint64) (worker uint64, rank uint32, ok bool)
	// Began tells how many tokens of the prompt the engine had.
	Began(id uint64, reused int)
	First(id uint64)
	// Failed tells that the worker does not answer, or never will: another is chosen.
	Failed(id uint64)
	// Ended tells that the request is answered, refused or lost.
	Ended(id uint64)
}

// outcome is what a step of an engine that ends at a time has done.
type outcome struct {
	at              time.Duration
	engine          int
	first, finished []uint64
}

// choose returns the engine of a request. One that is dead does not answer, and another is
// chosen; ok is false if all are.
func (r *run) choose(q *mock.Request, session string) (engine int, ok bool) {
	for r.cfg.Through != nil {
		worker, rank, ok := r.cfg.Through.Choose(q.ID, q.Input, q.Local[:q.Input/r.cfg.Engine.BlockSize])
		e := (int(worker)-r.cfg.FirstWorker)*r.cfg.DPRanks + int(rank)
		if !ok || e < 0 || e >= r.cfg.engines() {
			break
		}
		if !r.mortal.has(e) {
			return e, true
		}
		r.cfg.Through.Failed(q.ID)
	}
	e, n := r.router.choose(session), r.cfg.engines()
	for range n {
		if !r.mortal.has(e) {
			return e, true
		}
		e = (e + 1) % n
	}
	return 0, false
}

// later keeps what is to be told when the step has ended: not before, or engines would
// seem to compute in no time.
func (r *run) later(engine int, end time.Duration, report *mock.Report) {
	if r.cfg.Through == nil {
		return
	}
	for _, b := range report.Began {
		if !b.Again {
			r.cfg.Through.Began(b.ID, b.Reused)
		}
	}
	if len(report.First)+len(report.Finished) == 0 {
		return
	}
	o := outcome{end, engine, slices.Clone(report.First), slices.Clone(report.Finished)}
	at, _ := slices.BinarySearchFunc(r.outcomes, end, func(o outcome, end time.Duration) int { return int(o.at - end) })
	r.outcomes = slices.Insert(r.outcomes, at, o)
}

// tell tells what one of the steps has done.
func (r *run) tell(first int) {
	o := r.outcomes[first]
	r.outcomes = slices.Delete(r.outcomes, first, first+1)
	for _, id := range o.first {
		r.cfg.Through.First(id)
	}
	for _, id := range o.finished {
		r.cfg.Through.Ended(id)
	}
}
