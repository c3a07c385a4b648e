package replica

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/query"
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

// openRegistry reads who is registered and watches from then on.
func (r *Replica) openRegistry(ctx context.Context) error {
	cfg := registry.Config{
		Conn: r.broker.Conn(), Namespace: r.cfg.Namespace, Replica: r.cfg.Replica,
		Metrics: r.metrics, Log: r.log,
	}
	if err := r.cfg.Registry.Apply(&cfg); err != nil {
		return err
	}
	reg, err := registry.Open(ctx, cfg)
	if err != nil {
		return err
	}
	engines, err := r.openDirect(reg)
	if err != nil {
		reg.Close()
		return err
	}
	r.workers = &workers{r: r, reg: reg, direct: engines, sub: reg.Subscribe(workerEvents), done: make(chan struct{})}
	r.registry.Store(reg)
	return nil
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
	w.reg.Close()
}

// registryRoutes is the query.Registry of a program that may not have read its
// registry yet.
type registryRoutes struct {
	atomic.Pointer[registry.Registry]
}

var _ query.Registry = (*registryRoutes)(nil)

// Snapshot implements query.Registry.
func (r *registryRoutes) Snapshot(departed bool) []registry.Entry {
	if reg := r.Load(); reg != nil {
		return reg.Snapshot(departed)
	}
	return nil
}

// Name implements query.Registry.
func (r *registryRoutes) Name(k registry.Key) string {
	if reg := r.Load(); reg != nil {
		return reg.Name(k)
	}
	return ""
}

// engineScheme returns the worker's; "" if that is not known.
func (r *registryRoutes) engineScheme(space event.Space, worker uint64) string {
	if reg := r.Load(); reg != nil {
		if e, ok := reg.Lookup(registry.Key{Space: space, Worker: worker}); ok {
			return e.EngineScheme
		}
	}
	return ""
}

// IsDrained implements query.Registry.
func (r *registryRoutes) IsDrained(worker uint64) bool {
	reg := r.Load()
	return reg != nil && reg.IsDrained(worker)
}

func notYet() (int, []byte) {
	return http.StatusServiceUnavailable, []byte(`{"error":"not connected to NATS yet; try again"}` + "\n")
}

// ServeRegister implements query.Registry.
func (r *registryRoutes) ServeRegister(ctx context.Context, body []byte) (int, []byte) {
	if reg := r.Load(); reg != nil {
		return reg.ServeRegister(ctx, body)
	}
	return notYet()
}

// ServeUnregister implements query.Registry.
func (r *registryRoutes) ServeUnregister(ctx context.Context, body []byte) (int, []byte) {
	if reg := r.Load(); reg != nil {
		return reg.ServeUnregister(ctx, body)
	}
	return notYet()
}

// ServeWorkers implements query.Registry.
func (r *registryRoutes) ServeWorkers(model, group string) []byte {
	if reg := r.Load(); reg != nil {
		return reg.ServeWorkers(model, group)
	}
	return []byte("[]\n")
}
