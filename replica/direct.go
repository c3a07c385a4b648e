package replica

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/registry"
)

// openDirect makes what follows the engines whose events come over ZMQ.
func (r *Replica) openDirect(reg *registry.Registry) (*direct.Direct, error) {
	return direct.New(direct.Config{
		Index: ingest.Into(r.set),
		Tell: func(k direct.Key, s direct.RankStatus) {
			status := registry.ListenerPending
			switch {
			case s.State != follow.Away:
				status = registry.ListenerActive
			case s.Tried:
				status = registry.ListenerFailed
			}
			var cause error
			if s.LastError != "" {
				cause = errors.New(s.LastError)
			}
			// It fails for a worker that has just left: nobody looks then.
			_ = reg.SetListener(registry.Key{Space: k.Space, Worker: k.Worker}, s.DPRank, status, cause)
		},
		Metrics: r.metrics, Log: r.log,
	})
}

// listen follows the worker's engine as it is registered, or no longer.
func (w *workers) listen(ctx context.Context, e *registry.Entry) {
	if !w.r.share.Has(e.Key.Worker) {
		return
	}
	k := direct.Key{Space: e.Key.Space, Worker: e.Key.Worker}
	if e.Present() && e.Transport == registry.Core {
		if err := w.r.ingest.Load().Expect(ctx, k.Space, k.Worker, e.Ranks); err != nil {
			w.r.log.Warn("a worker is not asked for what it holds", "worker", k.Worker, "model", k.Space.Model, "error", err)
		}
	}
	if !e.Present() || e.Transport != registry.ZMQ {
		if w.direct.Follows(k) {
			w.direct.Unfollow(k)
			if sp := w.r.set.Lookup(k.Space); sp != nil {
				w.note(sp.RemoveWorker(ctx, k.Worker)) // what its socket said is void
			}
		}
		return
	}
	ranks := make(map[uint32]direct.Endpoint)
	for rank, endpoint := range e.Endpoints.Events {
		ranks[rank] = direct.Endpoint{Events: endpoint, Replay: e.Endpoints.Replay[rank], Snapshot: e.Endpoints.Snapshot[rank],
			Lora: e.Lora, Salt: e.Salt, Loras: e.Loras, Remote: event.PoolOf(e.Pools, event.External)}
	}
	if err := w.direct.Follow(k, ranks); err != nil {
		w.r.log.Warn("an engine is not followed", "worker", k.Worker, "model", k.Space.Model, "error", err)
		for rank := range ranks {
			_ = w.reg.SetListener(e.Key, rank, registry.ListenerFailed, err) // it fails for a worker that has just left
		}
	}
}

func (w *workers) listenAll(ctx context.Context) {
	for _, e := range w.reg.Snapshot(true) {
		w.listen(ctx, &e)
	}
}

// behindEngines says which engine, or publisher without a stream, is still to be
// caught up with; "" for none. Publishers that come later do not end readiness.
func (w *workers) behindEngines() string {
	if !w.listening.Load() {
		return "engines are not followed yet"
	}
	if err := w.direct.Ready(); err != nil {
		return err.Error()
	}
	if !w.dumped.Load() {
		if err := w.r.ingest.Load().Awaited(); err != nil {
			return err.Error()
		}
		w.dumped.Store(true)
	}
	return ""
}
