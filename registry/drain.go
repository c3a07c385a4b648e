package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// byHTTP is who asked for what the routes do.
const byHTTP = "HTTP"

// ServeDrain answers POST /drain: the worker gets no new requests, in any space, until
// POST /resume. The same once more is fine.
func (r *Registry) ServeDrain(ctx context.Context, body []byte) (status int, answer []byte) {
	return r.serveDrained(ctx, body, true)
}

// ServeResume answers POST /resume.
func (r *Registry) ServeResume(ctx context.Context, body []byte) (status int, answer []byte) {
	return r.serveDrained(ctx, body, false)
}

func (r *Registry) serveDrained(ctx context.Context, body []byte, drained bool) (status int, answer []byte) {
	var q struct {
		WorkerID json.RawMessage `json:"worker_id"`
	}
	if err := json.Unmarshal(body, &q); err != nil {
		return refuse(http.StatusBadRequest, "not a worker: %v", err).answer()
	}
	worker, name, err := parseID(q.WorkerID)
	if err != nil {
		return refuse(http.StatusBadRequest, "worker_id: %v", err).answer()
	}
	ctx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	if err := r.catchUp(ctx); err != nil {
		return r.unavailable(err)
	}
	if !r.knows(worker) {
		return refuse(http.StatusNotFound, "no such worker is registered: %s", idText(worker, name)).answer()
	}
	if drained {
		err = r.store().Drain(ctx, worker, byHTTP)
	} else {
		err = r.store().Resume(ctx, worker)
	}
	if err != nil && !errors.Is(err, ErrAlready) {
		return r.unavailable(err)
	}
	r.await(ctx, func() bool { return (r.mu.ledger.drains[worker] != nil) == drained })
	return http.StatusOK, edge.JSON(map[string]string{"status": "ok"})
}

// knows reports whether the worker is registered anywhere, or drained.
func (r *Registry) knows(worker uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for k, m := range r.mu.ledger.members {
		if k.Worker == worker && m.state != Gone {
			return true
		}
	}
	return r.mu.ledger.drains[worker] != nil
}

// Drain implements store.
func (r local) Drain(_ context.Context, worker uint64, by string) error {
	value, err := json.Marshal(drainRecord{Version: recordVersion, Since: time.Now().UTC().Truncate(time.Second), By: by})
	if err != nil {
		return fmt.Errorf("registry: draining worker %d: %w", worker, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.mu.ledger
	if l.drains[worker] != nil {
		return ErrAlready
	}
	key := drainKey(worker)
	r.apply(change{key: key, value: value})
	if bad, is := l.corrupt[key]; is { // there is no room
		delete(l.corrupt, key)
		return fmt.Errorf("registry: draining worker %d: %s", worker, bad.Error)
	}
	return nil
}

// Resume implements store.
func (r local) Resume(_ context.Context, worker uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := drainKey(worker)
	r.apply(change{key: key, deleted: true})
	delete(r.mu.ledger.markers, key) // nobody publishes anything that it would be the end of
	return nil
}
