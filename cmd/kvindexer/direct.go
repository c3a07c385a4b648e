package main

import (
	"context"
	"errors"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/internal/engines/zmqfeed"
	"github.com/kvatlas/kvatlas/registry"
)

// openDirect makes what follows the engines whose events come over ZMQ.
func (x *indexer) openDirect(reg *registry.Registry) (*direct.Direct, error) {
	return direct.New(direct.Config{
		Index: func(id event.Space) (ingest.Applier, error) {
			sp, err := x.set.Open(id)
			if err != nil {
				return nil, err // not sp: a nil *Space is no nil Applier
			}
			return sp, nil
		},
		Tell: func(k direct.Key, s direct.RankStatus) {
			status := registry.ListenerPending
			switch {
			case s.Phase != zmqfeed.Connecting:
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
		Metrics: x.cfg.Ingest.Metrics, Log: x.log,
	})
}

// listen follows the worker's engine as it is registered, or no longer.
func (w *workers) listen(ctx context.Context, e *registry.Entry) {
	k := direct.Key{Space: e.Key.Space, Worker: e.Key.Worker}
	if e.Present() && e.Transport == registry.Core {
		if err := w.x.ingest.Load().Expect(ctx, k.Space, k.Worker, e.Ranks); err != nil {
			w.x.log.Warn("a worker is not asked for what it holds", "worker", k.Worker, "model", k.Space.Model, "error", err)
		}
	}
	if !e.Present() || e.Transport != registry.ZMQ {
		if w.direct.Follows(k) {
			w.direct.Unfollow(k)
			if sp := w.x.set.Lookup(k.Space); sp != nil {
				w.note(sp.RemoveWorker(ctx, k.Worker)) // what its socket said is void
			}
		}
		return
	}
	ranks := make(map[uint32]direct.Endpoint)
	for rank, endpoint := range e.Endpoints.Events {
		ranks[rank] = direct.Endpoint{Events: endpoint, Replay: e.Endpoints.Replay[rank], Lora: e.Lora, Salt: e.Salt}
	}
	if err := w.direct.Follow(k, ranks); err != nil {
		w.x.log.Warn("an engine is not followed", "worker", k.Worker, "model", k.Space.Model, "error", err)
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
		if err := w.x.ingest.Load().Awaited(); err != nil {
			return err.Error()
		}
		w.dumped.Store(true)
	}
	return ""
}
