package replica

import (
	"context"
	"net/http"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/query"
	"github.com/kvatlas/kvatlas/registry"
)

// registered is the query.Registry of a replica that may not have read its
// registry yet.
type registered struct {
	atomic.Pointer[registry.Registry]
}

var _ query.Registry = (*registered)(nil)

// Snapshot implements query.Registry.
func (r *registered) Snapshot(departed bool) []registry.Entry {
	if reg := r.Load(); reg != nil {
		return reg.Snapshot(departed)
	}
	return nil
}

// Name implements query.Registry.
func (r *registered) Name(k registry.Key) string {
	if reg := r.Load(); reg != nil {
		return reg.Name(k)
	}
	return ""
}

// engineScheme returns the worker's; "" if that is not known.
func (r *registered) engineScheme(space event.Space, worker uint64) string {
	if reg := r.Load(); reg != nil {
		if e, ok := reg.Lookup(registry.Key{Space: space, Worker: worker}); ok {
			return e.EngineScheme
		}
	}
	return ""
}

// IsDrained implements query.Registry.
func (r *registered) IsDrained(worker uint64) bool {
	reg := r.Load()
	return reg != nil && reg.IsDrained(worker)
}

func notYet() (int, []byte) {
	return http.StatusServiceUnavailable, []byte(`{"error":"not connected to NATS yet; try again"}` + "\n")
}

// ServeRegister implements query.Registry.
func (r *registered) ServeRegister(ctx context.Context, body []byte) (int, []byte) {
	if reg := r.Load(); reg != nil {
		return reg.ServeRegister(ctx, body)
	}
	return notYet()
}

// ServeUnregister implements query.Registry.
func (r *registered) ServeUnregister(ctx context.Context, body []byte) (int, []byte) {
	if reg := r.Load(); reg != nil {
		return reg.ServeUnregister(ctx, body)
	}
	return notYet()
}

// ServeWorkers implements query.Registry.
func (r *registered) ServeWorkers(model, group string) []byte {
	if reg := r.Load(); reg != nil {
		return reg.ServeWorkers(model, group)
	}
	return []byte("[]\n")
}
