package main

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/program/startup"
)

// readiness is what the router knows of whether requests may come, beside its replica. Its fields
// only ever change to true.
type readiness struct {
	begun        time.Time
	workersKnown atomic.Bool // who is registered is known to the fleet
	// alone: NATS did not answer for so long that requests may come for the workers that the settings name. They go on
	// coming when it does: the other routers may be in the same state, and all of them would leave at once.
	alone atomic.Bool
}

// checks are the conditions of /readyz that the router adds to the replica's.
func (x *router) checks() []edge.Check {
	return []edge.Check{
		{Name: "started", Reason: x.starting}, {Name: "ready_workers", Reason: x.fewWorkers}, {Name: "routing", Reason: x.unknown, Note: true},
		{Name: "nats", Reason: x.replica.Silent, Note: true}, {Name: "tokenizers", Reason: func() string { return x.proxy.WrongTokens() }, Note: true},
	}
}

// notReady says why requests should not come, as /readyz does but for the end; "" if they may.
func (x *router) notReady() string { return cmp.Or(x.starting(), x.fewWorkers()) }

// starting says what the start waits for, and requests with it; "" if for nothing.
func (x *router) starting() string {
	why := x.behind()
	switch {
	case why == "" || !x.servesAlone():
		return why
	case x.fleet.Serving() == 0:
		return why + ", and no worker of the settings can take requests"
	}
	return ""
}

// behind says what of workers and their caches is not known since the start; "" if nothing.
func (x *router) behind() string { return cmp.Or(x.replica.Behind(), x.unknown()) }

// unknown says that the workers are not known yet; "" if they are.
func (x *router) unknown() string {
	if !x.ready.workersKnown.Load() {
		return "who is registered is being read"
	}
	return ""
}

// servesAlone reports whether requests may come although not all of that is known.
func (x *router) servesAlone() bool {
	r, after := &x.ready, x.cfg.ReadyWithoutNATS
	if r.alone.Load() {
		return true
	}
	if after == 0 || time.Since(r.begun) < after || x.replica.Progress().Phase != startup.Connecting || x.fleet.Serving() == 0 {
		return false
	}
	if r.alone.CompareAndSwap(false, true) {
		x.log.Warn("NATS is away: only workers that the settings name are served", "after", after)
	}
	return true
}

// withheld says why nobody is told what workers hold, although the router is ready; "" if they are.
func (x *router) withheld() string {
	if !x.ready.alone.Load() {
		return ""
	}
	return x.behind()
}

// fewWorkers says that too few are there to take requests; "" if enough are.
func (x *router) fewWorkers() string {
	if x.cfg.ReadyWorkers == 0 {
		return ""
	}
	if n := x.fleet.Serving(); n < x.cfg.ReadyWorkers {
		return fmt.Sprintf("%d workers are there to take requests", n)
	}
	return ""
}
