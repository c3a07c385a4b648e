package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// ErrLeaseLost ends the work of a replica whose lease was not renewed in time.
var ErrLeaseLost = errors.New("the lease for writing snapshots was lost")

// lease lets one replica at a time write the snapshots of a stream. Clocks of
// different machines are not compared: a lease is over when its entry has not
// changed for its whole period while this replica looked.
type lease struct {
	kv     jetstream.KeyValue
	key    string
	holder string
	period time.Duration

	// What was seen last of another's lease.
	seen   uint64
	seenAt time.Time
}

type leaseRecord struct {
	Holder string    `json:"holder"`
	Since  time.Time `json:"since"` // for people
}

// acquire takes the lease if it is free, and reports whether that was so. The
// lease is to be renewed within its period.
func (l *lease) acquire(ctx context.Context) (rev uint64, ok bool, err error) {
	value, err := json.Marshal(leaseRecord{l.holder, time.Now().UTC()})
	if err != nil {
		return 0, false, fmt.Errorf("snapshot lease: %w", err)
	}
	e, err := l.kv.Get(ctx, l.key)
	switch {
	case errors.Is(err, jetstream.ErrKeyNotFound):
		rev, err = l.kv.Create(ctx, l.key, value)
	case err != nil:
		return 0, false, fmt.Errorf("snapshot lease: %w", err)
	default:
		if e.Revision() != l.seen {
			l.seen, l.seenAt = e.Revision(), time.Now()
		}
		if time.Since(l.seenAt) < l.period {
			return 0, false, nil
		}
		rev, err = l.kv.Update(ctx, l.key, value, e.Revision())
	}
	if stream.IsConflict(err) {
		return 0, false, nil // another was faster
	}
	if err != nil {
		return 0, false, fmt.Errorf("snapshot lease: %w", err)
	}
	return rev, true, nil
}

// hold renews the lease until release, and ends the context when it is lost.
func (l *lease) hold(ctx context.Context, rev uint64) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(ctx)
	ended := make(chan uint64, 1)
	begun := time.Now()
	go func() {
		defer func() { ended <- rev }()
		ticker := time.NewTicker(l.period / 3)
		defer ticker.Stop()
		last := begun
		for {
			select {
			case <-ticker.C:
			case <-held.Done():
				return
			}
			asked := time.Now()
			// What was asked for late may have been granted to another before.
			if asked.Sub(last) >= l.period {
				cancel(ErrLeaseLost)
				return
			}
			rctx, stop := context.WithDeadline(held, last.Add(l.period))
			value, err := json.Marshal(leaseRecord{l.holder, begun.UTC()})
			if err == nil {
				var next uint64
				if next, err = l.kv.Update(rctx, l.key, value, rev); err == nil {
					rev, last = next, asked
				}
			}
			stop()
			if stream.IsConflict(err) || err != nil && time.Since(last) >= l.period {
				cancel(ErrLeaseLost)
				return
			}
		}
	}()
	return held, func() {
		cancel(nil)
		rev := <-ended
		dctx, stop := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer stop()
		// If it fails another has it already, or waits until it is over.
		_ = l.kv.Delete(dctx, l.key, jetstream.LastRevision(rev))
	}
}
