package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/bench/trace"
	"github.com/kvatlas/kvatlas/route"
)

// routed lets a router choose for the mock fleet (mocker.Through), and tells it what
// becomes of the requests: so there are decisions to look at.
type routed struct {
	ctx    context.Context // of the run, for its calls
	router *route.Router
	live   map[uint64]route.Prompt // without hashes once its engine has begun
}

func newRouted(ctx context.Context, router *route.Router) *routed {
	return &routed{ctx, router, make(map[uint64]route.Prompt)}
}

func requestID(id uint64) string { return strconv.FormatUint(id, 10) }

// Choose implements mocker.Through. There is no choice until the workers are known.
func (x *routed) Choose(q *trace.Request, prompt []uint64) (worker uint64, rank uint32, ok bool) {
	p := route.Prompt{Local: prompt, Length: q.Input}
	a, err := x.router.BestWorker(x.ctx, p, route.Options{RequestID: requestID(q.Serial)})
	if err != nil {
		return 0, 0, false
	}
	p.Local = slices.Clone(prompt)
	x.live[q.Serial] = p
	return a.Worker, a.DPRank, true
}

// Began implements mocker.Through.
func (x *routed) Began(id uint64, reused int) {
	if p, ok := x.live[id]; ok {
		x.router.Reported(requestID(id), route.Whole, p, route.Usage{Prompt: p.Length, Cached: reused})
		x.live[id] = route.Prompt{}
	}
}

// First implements mocker.Through.
func (x *routed) First(id uint64) {
	if _, ok := x.live[id]; ok {
		x.router.MarkPrefillComplete(requestID(id))
	}
}

// Ended implements mocker.Through.
func (x *routed) Ended(id uint64) {
	if _, ok := x.live[id]; ok {
		delete(x.live, id)
		x.router.Free(requestID(id))
	}
}
