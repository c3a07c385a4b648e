package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
)

// store is where registrations over HTTP and drained marks are kept: the bucket, for all replicas, or
// without one the ledger of this replica alone. What it is given are the same values.
type store interface {
	// addHTTP stores the registration of one rank and returns its revision. The
	// error wraps ErrAlready if there is another one; the same one again is fine
	// and returns repeated.
	addHTTP(ctx context.Context, w Worker) (revision uint64, repeated bool, err error)
	// removeHTTP ends the registrations of ranks.
	removeHTTP(ctx context.Context, targets []target) error
	// Drain and Resume say whether a worker gets requests. The error wraps ErrAlready
	// if that is so.
	Drain(ctx context.Context, worker uint64, by string) error
	Resume(ctx context.Context, worker uint64) error
}

// store returns where registrations over HTTP go.
func (r *Registry) store() store {
	if r.cfg.Conn == nil {
		return local{r}
	}
	return r.bucket()
}

// local is the store of a Registry without a connection.
type local struct{ *Registry }

func (r local) addHTTP(_ context.Context, w Worker) (revision uint64, repeated bool, err error) {
	if err := w.normalise(); err != nil {
		return 0, false, err
	}
	value, err := json.Marshal(record{Version: recordVersion, Worker: w})
	if err != nil {
		return 0, false, fmt.Errorf("registering worker %d: %w", w.ID, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if m := r.mu.ledger.members[w.Key()]; m != nil {
		if h := m.http[w.Ranks[0]]; h != nil && h.worker.equal(&w) {
			return h.revision, true, nil
		} else if h != nil {
			return 0, false, otherwise(&w)
		}
	}
	key := httpKey(w.Key(), w.Ranks[0])
	revision = r.apply(change{key: key, value: value})
	if bad, is := r.mu.ledger.corrupt[key]; is { // there is no room
		delete(r.mu.ledger.corrupt, key)
		return 0, false, fmt.Errorf("registering worker %d: %s", w.ID, bad.Error)
	}
	return revision, false, nil
}

// removeHTTP forgets at once what has left: nobody published anything that would be
// void.
func (r local) removeHTTP(_ context.Context, targets []target) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.mu.ledger
	for _, t := range targets {
		key := httpKey(t.key, t.rank)
		r.apply(change{key: key, deleted: true})
		delete(l.markers, key)
		if m := l.members[t.key]; m != nil {
			delete(m.departed, key)
			if !m.registered() {
				l.forget(m)
			}
		}
		delete(l.byKey, key)
	}
	return nil
}

// apply applies a change as if a bucket had stored it. r.mu is held.
func (r local) apply(c change) (revision uint64) {
	r.mu.local++
	c.revision, c.created = r.mu.local, time.Now()
	r.mu.ledger.apply(r.cfg.Now(), c)
	r.mu.seen = c.revision
	close(r.mu.moved)
	r.mu.moved = make(chan struct{})
	return c.revision
}
