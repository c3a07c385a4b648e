package registry

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// This file is how registrations over HTTP outlive a bucket that the server has lost:
// nobody but the replicas knows of them, since those clients send no heartbeats.

// lost returns the HTTP registrations that were known and that a load did not bring,
// limit at most. One that was ended has left a tombstone or a marker, for Config.Forget:
// after half of that without the bucket nothing can be told from its silence any more.
func (l *ledger) lost(limit int) (list []Worker) {
	for _, m := range l.members {
		for rank, h := range m.http {
			_, ended := l.markers[httpKey(m.key, rank)]
			if h.missing.IsZero() || ended || l.away > l.cfg.forget/2 || len(list) >= limit {
				continue
			}
			list = append(list, h.worker)
		}
	}
	return list
}

// awayFor returns for how long the bucket was not heard before this load.
func (l *ledger) awayFor(now time.Time) time.Duration {
	if l.beatAt.IsZero() {
		return l.cfg.forget // it was never heard
	}
	return now.Sub(l.beatAt)
}

// restore brings back what lost returns. Another replica may be faster; what fails is
// tried again, until it counts as gone.
func (r *Registry) restore(ctx context.Context, b *Bucket) {
	const atATime = 100
	r.mu.Lock()
	list := r.mu.ledger.lost(atATime)
	r.mu.Unlock()
	for i := range list {
		w := &list[i]
		value, err := json.Marshal(record{Version: recordVersion, Worker: *w})
		if err != nil {
			return // it was read from such a value
		}
		request, cancel := context.WithTimeout(ctx, time.Second)
		_, err = b.kv.Create(request, httpKey(w.Key(), w.Ranks[0]), value)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrKeyExists):
		case err != nil:
			return
		default:
			r.cfg.Log.Warn("the server has lost a registration over HTTP: it is stored again", "worker", w.ID, "model", w.Model, "dp_rank", w.Ranks[0])
			r.m.restored.Inc()
		}
	}
}
