package registry

import (
	"context"
	"encoding/json"
	"time"
)

// beatOn writes this replica's beat until ctx ends.
func (r *Registry) beatOn(ctx context.Context, b *Bucket) {
	ticker := time.NewTicker(r.cfg.Beat)
	defer ticker.Stop()
	for {
		request, cancel := context.WithTimeout(ctx, 2*r.cfg.Beat)
		_, err := r.beat(request, b)
		cancel()
		if err == nil {
			r.m.beats.Inc()
		} else if ctx.Err() == nil {
			r.m.failedBeats.Inc() // the connection's own log says more
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// beat writes this replica's beat once and returns its revision.
func (r *Registry) beat(ctx context.Context, b *Bucket) (uint64, error) {
	value, err := json.Marshal(beatRecord{Version: recordVersion, Nonce: r.nonce})
	if err != nil {
		return 0, err
	}
	return b.kv.Put(ctx, replicaKey(r.cfg.Replica), value)
}

// await waits until the watch has brought what seen asks for under the lock, so that a
// client sees what it has written; a second at most.
func (r *Registry) await(ctx context.Context, seen func() bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = r.until(ctx, seen)
}

// catchUp waits until this replica knows all that the bucket has now: a beat of its own has come back.
func (r *Registry) catchUp(ctx context.Context) error {
	if r.cfg.Conn == nil {
		return nil
	}
	revision, err := r.beat(ctx, r.bucket())
	if err != nil {
		return err
	}
	return r.until(ctx, func() bool { return r.mu.seen >= revision })
}

// until waits until the watch has brought what seen asks for under the lock.
func (r *Registry) until(ctx context.Context, seen func() bool) error {
	for {
		r.mu.Lock()
		done, moved := seen(), r.mu.moved
		r.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
