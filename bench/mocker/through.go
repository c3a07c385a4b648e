package mocker

import (
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// Through chooses who serves a request, and is told what becomes of it, by the goroutine
// of Run.
type Through interface {
	// Choose returns a worker and its rank for the request, whose prompt has the hashes.
	// Without one, ok is false, Routing decides and nothing more of the request is told.
	Choose(q *trace.Request, prompt []uint64) (worker uint64, rank uint32, ok bool)
	// Began tells how many tokens of the prompt the engine had.
	Began(id uint64, reused int)
	First(id uint64)
	// Ended tells that the request is answered, refused or lost.
	Ended(id uint64)
}

// outcome is what a step that ends at a time has done.
type outcome struct {
	at              time.Duration
	first, finished []uint64
}

// choose returns the engine of the request that arrives.
func (r *run) choose(q *trace.Request) int {
	if r.cfg.Through != nil {
		worker, rank, ok := r.cfg.Through.Choose(q, r.prompt)
		if e := (int(worker)-r.cfg.FirstWorker)*r.cfg.DPRanks + int(rank); ok && e >= 0 && e < r.cfg.engines() {
			return e
		}
	}
	return r.router.choose(q)
}

// later keeps what is to be told when the step has ended: not before, or engines would
// seem to compute in no time.
func (r *run) later(end time.Duration, report *mock.Report) {
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
	o := outcome{end, slices.Clone(report.First), slices.Clone(report.Finished)}
	at, _ := slices.BinarySearchFunc(r.outcomes, end, func(o outcome, end time.Duration) int { return int(o.at - end) })
	r.outcomes = slices.Insert(r.outcomes, at, o)
}

// tell tells what the first step to end has done.
func (r *run) tell() {
	o := r.outcomes[0]
	r.outcomes = slices.Delete(r.outcomes, 0, 1)
	for _, id := range o.first {
		r.cfg.Through.First(id)
	}
	for _, id := range o.finished {
		r.cfg.Through.Ended(id)
	}
}
