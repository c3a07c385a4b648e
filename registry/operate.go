package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// Errors of what operators and HTTP clients ask for.
var (
	// ErrAlready: the same rank is registered with something else, or the
	// worker is in the wanted state already.
	ErrAlready = errors.New("already so")
	// ErrAlive: the worker announces itself and would be back at once.
	ErrAlive = errors.New("the worker announces itself and would be back with its next heartbeat: stop it, or drain it")
)

// Drain takes the worker out of choice. It need not be registered. by says who
// asked. The error wraps ErrAlready if it is drained.
func (b *Bucket) Drain(ctx context.Context, worker uint64, by string) error {
	value, err := json.Marshal(drainRecord{Version: recordVersion, Since: time.Now().UTC().Truncate(time.Second), By: by})
	if err != nil {
		return fmt.Errorf("registry: draining worker %d: %w", worker, err)
	}
	_, err = b.kv.Create(ctx, drainKey(worker), value)
	if stream.IsConflict(err) {
		return fmt.Errorf("registry: worker %d is drained: %w", worker, ErrAlready)
	}
	if err != nil {
		return fmt.Errorf("registry: draining worker %d: %w", worker, unanswered(err))
	}
	return nil
}

// Resume lets the worker be chosen again. The error wraps ErrAlready if it is
// not drained.
func (b *Bucket) Resume(ctx context.Context, worker uint64) error {
	_, _, err := b.newest(ctx, drainKey(worker))
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return fmt.Errorf("registry: worker %d is not drained: %w", worker, ErrAlready)
	}
	if err == nil {
		err = b.kv.Delete(ctx, drainKey(worker))
	}
	if err != nil {
		return fmt.Errorf("registry: resuming worker %d: %w", worker, unanswered(err))
	}
	return nil
}

// Remove takes every registration of the worker out of the bucket, in all
// spaces, and its drained mark. A worker that announces itself is refused with
// ErrAlive unless force is set.
func (b *Bucket) Remove(ctx context.Context, worker uint64, force bool) error {
	all, err := b.Read(ctx)
	if err != nil {
		return err
	}
	found := false
	var keys []string
	for i := range all.Workers {
		e := &all.Workers[i]
		if e.Key.Worker != worker || e.State == Gone {
			continue
		}
		found = true
		if e.Announced && !force {
			return fmt.Errorf("registry: worker %d: %w", worker, ErrAlive)
		}
		if e.Lease > 0 {
			keys = append(keys, leaseKey(e.Key))
		}
		if e.HTTP {
			for _, rank := range e.Ranks {
				keys = append(keys, httpKey(e.Key, rank))
			}
		}
	}
	drained := slices.ContainsFunc(all.Drained, func(d Drained) bool { return d.Worker == worker })
	if !found && !drained {
		return fmt.Errorf("registry: worker %d: %w", worker, ErrUnknownWorker)
	}
	for _, key := range keys {
		if err := b.end(ctx, key); err != nil {
			return fmt.Errorf("registry: removing worker %d: %w", worker, unanswered(err))
		}
	}
	if drained {
		if err := b.kv.Delete(ctx, drainKey(worker)); err != nil {
			return fmt.Errorf("registry: removing worker %d: %w", worker, unanswered(err))
		}
	}
	return nil
}

// otherwise is the error of a rank that is registered as something else.
func otherwise(w *Worker) error {
	return fmt.Errorf("rank %d of worker %d is registered otherwise, unregister it first: %w", w.Ranks[0], w.ID, ErrAlready)
}

// addHTTP implements store.
func (b *Bucket) addHTTP(ctx context.Context, w Worker) (revision uint64, repeated bool, err error) {
	if err := w.normalise(); err != nil {
		return 0, false, err
	}
	key := httpKey(w.Key(), w.Ranks[0])
	value, err := json.Marshal(record{Version: recordVersion, Worker: w})
	if err != nil {
		return 0, false, fmt.Errorf("registering worker %d: %w", w.ID, err)
	}
	for range attempts {
		revision, err = b.kv.Create(ctx, key, value)
		if !stream.IsConflict(err) {
			break
		}
		var was []byte
		if was, revision, err = b.newest(ctx, key); err != nil {
			if errors.Is(err, jetstream.ErrKeyNotFound) {
				continue
			}
			break
		}
		old, bad := parseWorker(key, was)
		switch {
		case bad != nil || old.Gone == nil && !old.Worker.equal(&w):
			return 0, false, otherwise(&w)
		case old.Gone == nil:
			return revision, true, nil
		}
		if revision, err = b.kv.Update(ctx, key, value, revision); !stream.IsConflict(err) {
			break
		}
	}
	if err != nil {
		err = fmt.Errorf("registering worker %d: %w", w.ID, err)
	}
	return revision, false, err
}

// removals bounds the registrations that are ended at a time.
const removals = 16

// removeHTTP implements store.
func (b *Bucket) removeHTTP(ctx context.Context, targets []target) error {
	moments := make(map[Key]moment) // asked for once: an instance may have many ranks
	for _, t := range targets {
		if _, ok := moments[t.key]; !ok {
			moments[t.key] = b.moment(ctx, t.key)
		}
	}
	errs := make([]error, len(targets))
	slots := make(chan struct{}, removals)
	var working sync.WaitGroup
	for i, t := range targets {
		slots <- struct{}{}
		working.Go(func() {
			defer func() { <-slots }()
			key := httpKey(t.key, t.rank)
			_, err := b.bury(ctx, key, &record{Worker: t.worker}, moments[t.key], t.revision)
			if stream.IsConflict(err) {
				err = b.end(ctx, key)
			}
			if err != nil {
				errs[i] = fmt.Errorf("unregistering rank %d of worker %d: %w", t.rank, t.key.Worker, err)
			}
		})
	}
	working.Wait()
	return errors.Join(errs...)
}
