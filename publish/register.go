package publish

import (
	"cmp"
	"context"
	"time"

	"github.com/kvatlas/kvatlas/registry"
)

// Registration says how a Publisher announces its worker in the registry: that
// it is there, with a lease that heartbeats keep, so that routers send requests
// to it, and its blocks leave every index when it goes.
type Registration struct {
	// Worker is what the registry is to know of the worker beside its id, space,
	// transport and incarnation, which are the Publisher's. HashScheme is that of
	// the block size unless given.
	Worker registry.Worker
	// Lease is how long the worker counts as alive without a heartbeat; default
	// registry.DefaultLease, 15 s.
	Lease time.Duration
	// Keep has Close leave the worker registered until its lease ends, for a
	// publisher that is soon back while its engine lives on (see Config.Resume).
	// Otherwise Close unregisters it.
	Keep   bool
	Bucket registry.BucketConfig // used by whoever is first in the namespace
}

// register announces the worker, if it is to be.
func (p *Publisher) register(ctx context.Context) (err error) {
	r := p.cfg.Registration
	if r == nil {
		return nil
	}
	w := r.Worker
	w.ID, w.Model, w.BlockSize, w.Group = p.cfg.Worker, p.cfg.Space.Model, p.cfg.Space.BlockSize, p.cfg.Space.Group
	w.Transport, w.Incarnation = registry.JetStream, p.cfg.Incarnation
	if p.cfg.Transport == CoreNATS {
		w.Transport = registry.Core
	}
	if w.HashScheme == "" {
		w.HashScheme = registry.Scheme(w.BlockSize)
	}
	bucket := r.Bucket
	bucket.Replicas = cmp.Or(bucket.Replicas, p.cfg.Stream.Replicas)
	p.announced, err = registry.Register(ctx, w, registry.AnnounceConfig{
		Conn: p.cfg.Conn, Namespace: p.cfg.Namespace, Bucket: bucket, Lease: r.Lease, Positions: p.Positions, Log: p.cfg.Log,
	})
	return err
}

// unregister ends the announcement, if there is one. The sender has ended: an
// event that came later would show the worker as one that is back.
func (p *Publisher) unregister(ctx context.Context) error {
	if p.announced == nil {
		return nil
	}
	if p.cfg.Registration.Keep {
		p.announced.Stop()
		return nil
	}
	return p.announced.Close(ctx)
}

// Registered says why the worker is not registered: the last heartbeat was not
// written, or another process announces the same worker. It is nil if it is, or
// if Config.Registration does not ask for it.
func (p *Publisher) Registered() error {
	if p.announced == nil {
		return nil
	}
	return p.announced.Err()
}
