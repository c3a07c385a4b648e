package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/kvatlas/kvatlas/route"
)

// routed lets a router choose for the mock fleet (mocker.Through), and tells it what
// becomes of the requests: so there are decisions to look at.
type routed struct {
	ctx    context.Context // of the run, for its calls
	router *route.Router
	live   map[uint64]*routedRequest
}

// routedRequest is a request that is booked.
type routedRequest struct {
	prompt route.Prompt // without hashes once its engine has begun
	worker uint64
	failed []uint64 // workers that did not answer it
}

func newRouted(ctx context.Context, router *route.Router) *routed {
	return &routed{ctx, router, make(map[uint64]*routedRequest)}
}

func requestID(id uint64) string { return strconv.FormatUint(id, 10) }

// Choose implements mocker.Through. There is no choice until the workers are known.
func (x *routed) Choose(id uint64, input int, prompt []uint64) (worker uint64, rank uint32, ok bool) {
	q := x.live[id]
	if q == nil {
		q = &routedRequest{}
	}
	p := route.Prompt{Local: prompt, Length: input}
	a, err := x.router.BestWorker(x.ctx, p, route.Options{RequestID: requestID(id), Excluded: q.failed, Watched: true})
	if err != nil {
		delete(x.live, id)
		return 0, 0, false
	}
	p.Local = slices.Clone(prompt)
	q.prompt, q.worker = p, a.Worker
	x.live[id] = q
	return a.Worker, a.DPRank, true
}

// Failed implements mocker.Through.
func (x *routed) Failed(id uint64) {
	if q, ok := x.live[id]; ok {
		x.router.Failed(requestID(id), route.Whole, route.Failure{})
		x.router.Free(requestID(id))
		q.failed = append(q.failed, q.worker)
	}
}

// Began implements mocker.Through.
func (x *routed) Began(id uint64, reused int) {
	if q, ok := x.live[id]; ok {
		x.router.Reported(requestID(id), route.Whole, q.prompt, route.Usage{Prompt: q.prompt.Length, Cached: reused})
		q.prompt = route.Prompt{}
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
