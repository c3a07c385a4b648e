package keeper

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// ErrAlive is of a reset while other replicas live.
var ErrAlive = errors.New("other replicas live")

// aliveFor is how long a replica counts as living after its last beat.
const aliveFor = 15 * time.Second

// Reset purges every stream of the namespace and deletes their snapshots: the
// next start knows nothing but what publishers have. Unless forced it refuses
// while another replica lives, which would go on with what it has.
func (k *Keeper) Reset(ctx context.Context, force bool) error {
	if !force {
		b, err := registry.OpenBucket(ctx, k.cfg.Conn, k.cfg.Namespace, registry.BucketConfig{})
		if err != nil {
			return err
		}
		replicas, err := b.Replicas(ctx)
		if err != nil {
			return err
		}
		now, err := k.serverTime(ctx)
		if err != nil {
			return err
		}
		var alive []string
		for _, r := range replicas {
			if r.Replica != k.cfg.Replica && now.Sub(r.At) < aliveFor {
				alive = append(alive, r.Replica)
			}
		}
		if len(alive) > 0 {
			return fmt.Errorf("nothing is reset: %w: %s; stop them, or wait %v if they were killed", ErrAlive, strings.Join(alive, ", "), aliveFor)
		}
	}
	infos, err := stream.List(ctx, k.js, k.cfg.Namespace)
	if err != nil && !errors.Is(err, stream.ErrUnsafe) {
		return fmt.Errorf("reset: %w", err)
	}
	for _, info := range infos {
		s, err := k.Store(ctx, info.Name)
		if err != nil {
			return err
		}
		// The snapshots first: without them a stream from its beginning is
		// right, without the stream they would not be.
		if err := clearStore(ctx, s, k.cfg.Replica); err != nil {
			return err
		}
		str, err := k.js.Stream(ctx, info.Name)
		if err == nil {
			err = str.Purge(ctx)
		}
		if err != nil {
			return fmt.Errorf("reset: purging stream %s: %w", info.Name, err)
		}
		k.cfg.Log.Warn("reset: stream purged and its snapshots deleted", "stream", info.Name, "messages", info.Messages, "snapshots", s.String())
	}
	return nil
}

// serverTime asks the server what time it is: beats have its times, and the clock
// here may be another's.
func (k *Keeper) serverTime(ctx context.Context) (time.Time, error) {
	key := "time." + k.cfg.Replica
	k.mu.Lock()
	kv, err := k.bucketLocked(ctx)
	k.mu.Unlock()
	if err != nil {
		return time.Time{}, fmt.Errorf("reset: %w", err)
	}
	rev, err := kv.Put(ctx, key, nil)
	if err != nil {
		return time.Time{}, fmt.Errorf("reset: the server's time: %w", err)
	}
	e, err := kv.GetRevision(ctx, key, rev)
	if err = errors.Join(err, kv.Purge(ctx, key)); err != nil {
		return time.Time{}, fmt.Errorf("reset: the server's time: %w", err)
	}
	return e.Created(), nil
}

func clearStore(ctx context.Context, s store.Store, writer string) error {
	fence, err := store.Claim(ctx, s, writer, nil)
	if err != nil {
		return err
	}
	if err := store.Forget(ctx, s, fence, func(store.Entry) bool { return true }); err != nil {
		return err
	}
	return store.Sweep(ctx, s, fence)
}
