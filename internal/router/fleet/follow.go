package fleet

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/registry"
)

// followQueue is how many changes of the registry may wait.
const followQueue = 4096

// expireEvery is how often it is looked at whose lease is over.
const expireEvery = time.Second

// Follow takes the workers that the registry has, and returns what keeps them as it has
// them, and ends bookings whose lease is over, until ctx ends.
func (f *Fleet) Follow(ctx context.Context, r *registry.Registry) (keep func()) {
	sub := r.Subscribe(followQueue)
	f.setWorkers(r.Snapshot(false))
	return func() {
		defer sub.Close()
		tick := time.NewTicker(expireEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				f.Expire()
				f.discountStale()
			case <-sub.Wait():
			}
			f.take(r, sub.Next())
		}
	}
}

// take makes the changes of the registry that are told.
func (f *Fleet) take(r *registry.Registry, events []registry.Event) {
	for _, ev := range events {
		switch ev.Kind {
		case registry.Resync:
			f.setWorkers(r.Snapshot(false))
		case registry.Left:
			f.RemoveWorker(ev.Entry.Key)
		default:
			if ev.Restarted {
				f.RemoveWorker(ev.Entry.Key) // the engine has forgotten its requests and its cache
			}
			f.set(&ev.Entry)
		}
	}
}

func (f *Fleet) set(e *registry.Entry) {
	if err := f.SetWorker(e.Worker, e.Drained); err != nil {
		f.log.Error("a registered worker is left out", "worker", e.ID, "error", err)
	}
}

// setWorkers makes the workers those of a snapshot.
func (f *Fleet) setWorkers(entries []registry.Entry) {
	there := make(map[registry.Key]bool, len(entries))
	for i := range entries {
		there[entries[i].Key] = true
		f.set(&entries[i])
	}
	for _, m := range f.Models() {
		for id := range m.Engines() {
			if k := (registry.Key{Space: m.Space, Worker: id}); !there[k] {
				f.RemoveWorker(k)
			}
		}
	}
}
