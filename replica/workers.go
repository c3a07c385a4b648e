package replica

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// workerEvents bounds the changes of workers that wait for the index.
const workerEvents = 1024

// workers brings what the registry says to the index: who leaves holds nothing
// any more. Its goroutine owns the subscription.
type workers struct {
	r      *Replica
	reg    *registry.Registry
	sub    *registry.Subscription
	direct *direct.Direct
	// listening is set once the engines that were registered before are
	// followed.
	listening atomic.Bool
	// dumped is set once publishers without a stream, of those that were there
	// before, have said what they hold, or do not answer.
	dumped atomic.Bool
	cancel context.CancelFunc
	done   chan struct{}
}

func (r *Replica) newWorkers(reg *registry.Registry) (*workers, error) {
	engines, err := r.openDirect(reg)
	if err != nil {
		return nil, err
	}
	return &workers{r: r, reg: reg, direct: engines, sub: reg.Subscribe(workerEvents), done: make(chan struct{})}, nil
}

// left is what ingest asks about workers that it meets.
func (w *workers) left(sp event.Space, worker uint64) (time.Time, bool) {
	return w.reg.Left(registry.Key{Space: sp, Worker: worker})
}

// follow starts the goroutine; ingest is open.
func (w *workers) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.listenAll(ctx) // those that were there before
		w.listening.Store(true)
		for {
			for _, e := range w.sub.Next() {
				w.take(ctx, e)
			}
			select {
			case <-w.sub.Wait():
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (w *workers) take(ctx context.Context, e registry.Event) {
	if e.Kind == registry.Resync {
		w.listenAll(ctx)
	} else {
		w.listen(ctx, &e.Entry)
	}
	switch e.Kind {
	case registry.Left:
		w.drop(ctx, &e.Entry)
	case registry.Returned:
		w.r.ingest.Load().WorkerReturned(ctx, e.Entry.Key.Space, e.Entry.Key.Worker)
	case registry.Resync:
		for _, entry := range w.reg.Snapshot(true) {
			if !entry.Present() {
				w.drop(ctx, &entry)
			}
		}
	case registry.Joined, registry.Updated:
	}
	for _, rank := range e.RemovedRanks {
		if sp := w.r.set.Lookup(e.Entry.Key.Space); sp != nil {
			w.note(sp.RemoveRank(ctx, shard.RankID{Worker: e.Entry.Key.Worker, DPRank: rank}))
		}
	}
}

// drop takes the worker's blocks out of the index: in order with its events
// where they come through a stream.
func (w *workers) drop(ctx context.Context, e *registry.Entry) {
	if w.r.ingest.Load().WorkerLeft(ctx, e.Key.Space, e.Key.Worker, e.LeftAt) {
		return
	}
	if sp := w.r.set.Lookup(e.Key.Space); sp != nil {
		w.note(sp.RemoveWorker(ctx, e.Key.Worker))
	}
}

func (w *workers) note(err error) {
	if err != nil {
		w.r.log.Warn("blocks of a worker that left stay in the index", "error", err)
	}
}

// close ends the goroutine and the watch.
func (w *workers) close() {
	if w.cancel != nil {
		w.cancel()
		<-w.done
	}
	w.direct.Close()
	w.sub.Close()
}
