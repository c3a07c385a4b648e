package replica

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/direct"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
)

// workerEvents bounds the changes of workers that wait for the index.
const workerEvents = 1024

// tellEvery is how often announcements are compared with the index.
const tellEvery = 5 * time.Second

// workers brings what the registry says to the index: who leaves holds nothing
// any more. Its goroutine owns the subscription.
type workers struct {
	r      *Replica
	reg    *registry.Registry
	sub    *registry.Subscription
	direct *direct.Direct
	pools  *poolStreams
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
	return &workers{r: r, reg: reg, direct: engines, pools: newPoolStreams(r), sub: reg.Subscribe(workerEvents), done: make(chan struct{})}, nil
}

// left is what ingest asks about workers that it meets.
func (w *workers) left(sp event.Space, worker uint64, dpRank uint32) (ingest.Departure, bool) {
	d, left := w.reg.Left(registry.Key{Space: sp, Worker: worker}, dpRank)
	return ingest.Departure(d), left
}

// registered is what ingest asks about ranks that it meets.
func (w *workers) registered(sp event.Space, worker uint64, dpRank uint32) bool {
	return w.reg.HasRank(registry.Key{Space: sp, Worker: worker}, dpRank)
}

// follow starts the goroutine; ingest is open.
func (w *workers) follow() {
	ctx, cancel := context.WithCancel(context.Background())
	w.cancel = cancel
	go func() {
		defer close(w.done)
		w.listenAll(ctx) // those that were there before
		w.listening.Store(true)
		ticker := time.NewTicker(tellEvery)
		defer ticker.Stop()
		defer w.pools.close()
		w.pools.follow(w.sourced())
		for {
			for _, e := range w.sub.Next() {
				w.apply(ctx, e)
			}
			if w.pools.changed {
				w.pools.follow(w.sourced())
			}
			select {
			case <-w.sub.Wait():
			case <-ticker.C:
				w.tell(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
}

func (w *workers) apply(ctx context.Context, e registry.Event) {
	if e.Kind == registry.Resync {
		w.compare(ctx)
		return
	}
	w.heed(ctx, &e.Entry)
	w.listen(ctx, &e.Entry)
	for rank, d := range e.RemovedRanks {
		w.drop(ctx, e.Entry.Key, []uint32{rank}, d)
	}
	w.bring(ctx, &e.Entry)
}

// heedAll heeds those that are registered: after snapshots were loaded, as only an empty index takes one,
// and before events are read, as what one says of a pool is the pool's only once its worker names that.
func (w *workers) heedAll(ctx context.Context) {
	for _, e := range w.reg.Snapshot(true) {
		w.heed(ctx, &e)
	}
}

// heed has requests be looked up with the hashes that the worker says it makes, and
// answers be exact, or called estimated, by what it says of its caches.
func (w *workers) heed(ctx context.Context, e *registry.Entry) {
	sp := w.r.set.Lookup(e.Key.Space)
	if says := e.Eagle() || e.Hybrid || len(e.CacheGroups) > 0 || len(e.Pools) > 0; sp == nil && says && e.Present() {
		var err error
		if sp, err = w.r.set.Open(e.Key.Space); err != nil {
			w.r.log.Warn("what a worker registers of its hashes and caches is not heeded", "worker", e.Key.Worker, "model", e.Key.Space.Model, "error", err)
			return
		}
	}
	switch {
	case sp == nil:
		return
	case !e.Present():
		w.pools.heed(nil)
		sp.Unregistered(e.Key.Worker)
		return
	}
	if e.Eagle() {
		sp.MarkEagle()
	}
	if e.Hybrid {
		sp.MarkHybrid()
	}
	sp.SetCacheGroups(e.Key.Worker, e.CacheGroups) // or none, where it has said something before
	w.heedPools(ctx, sp, e, e.Pools)
}

// heedPools has lookups know what pools the worker reads from, and events of theirs be the
// pools'.
func (w *workers) heedPools(ctx context.Context, sp *shard.Space, e *registry.Entry, pools []event.Pool) {
	if !w.r.share.Has(e.Key.Worker) {
		return // another replica's
	}
	w.pools.heed(pools)
	if err := sp.SetPools(ctx, e.Key.Worker, e.Ranks, pools); err != nil && ctx.Err() == nil {
		w.r.log.Warn("the pools that a worker registers are not heeded", "worker", e.Key.Worker, "model", e.Key.Space.Model, "error", err)
	}
}

// bring has the index hold nothing of a worker that is not there, and asks one
// that is back what it holds.
func (w *workers) bring(ctx context.Context, e *registry.Entry) {
	switch {
	case !e.Present():
		w.drop(ctx, e.Key, nil, e.Left)
	case e.Transport != registry.ZMQ: // an engine's own socket tells all from its beginning
		w.r.ingest.Load().WorkerReturned(ctx, e.Key.Space, e.Key.Worker, e.Ranks)
	}
}

// tell has the index compare what it has with how far the workers' announcements
// say that their streams are: a stream that takes no events brings no heartbeats
// either.
func (w *workers) tell(ctx context.Context) {
	for _, key := range w.r.set.Spaces() {
		if err := w.r.set.Lookup(key).AgePools(ctx, time.Now()); err != nil && ctx.Err() == nil {
			w.r.log.Warn("blocks of pools do not grow old", "model", key.Model, "error", err)
		}
	}
	for _, e := range w.reg.Snapshot(false) {
		switch sp := w.r.set.Lookup(e.Key.Space); {
		case !e.Present():
		case len(e.Pools) > 0: // it may have left and come back meanwhile
			w.heed(ctx, &e)
		case sp != nil: // which may be newer than the registration
			w.heedPools(ctx, sp, &e, nil)
		}
		if e.Announced && e.Present() && e.Conflict == "" && e.Transport != registry.ZMQ {
			w.r.ingest.Load().WorkerTold(ctx, e.Key.Space, e.Key.Worker, ingest.Told{Incarnation: e.Incarnation, Last: e.Last})
		}
	}
}

// compare brings the index what changed in events that were lost.
func (w *workers) compare(ctx context.Context) {
	for _, e := range w.reg.Snapshot(true) {
		w.heed(ctx, &e)
		w.listen(ctx, &e)
		w.bring(ctx, &e)
	}
	for _, s := range w.r.ingest.Load().Ranks() {
		k := registry.Key{Space: s.Space, Worker: s.Worker}
		if d, left := w.reg.Left(k, s.DPRank); left {
			w.drop(ctx, k, []uint32{s.DPRank}, d)
		}
	}
}

// drop takes what the worker's ranks hold, of all if none is given, out of the
// index: in order with their events where those come through NATS.
func (w *workers) drop(ctx context.Context, k registry.Key, ranks []uint32, d registry.Departure) {
	if w.r.ingest.Load().WorkerLeft(ctx, k.Space, k.Worker, ranks, ingest.Departure(d)) {
		return
	}
	sp := w.r.set.Lookup(k.Space)
	switch {
	case sp == nil:
	case ranks == nil:
		w.note(sp.RemoveWorker(ctx, k.Worker))
	default:
		for _, rank := range ranks {
			w.note(sp.RemoveRank(ctx, shard.RankID{Worker: k.Worker, DPRank: rank}))
		}
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

// registered returns who is registered; nil before that is read.
func (r *Replica) registered() query.Registry {
	if reg := r.registry.Load(); reg != nil {
		return query.OfShare(reg, r.share)
	}
	return nil // not reg: a nil *Registry is no nil query.Registry
}

// engineScheme returns the worker's; "" if that is not known.
func (r *Replica) engineScheme(space event.Space, worker uint64) string {
	if reg := r.registry.Load(); reg != nil {
		if e, ok := reg.Lookup(registry.Key{Space: space, Worker: worker}); ok {
			return e.EngineScheme
		}
	}
	return ""
}
