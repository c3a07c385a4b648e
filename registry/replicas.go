package registry

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Alive is a replica that wrote to the bucket.
type Alive struct {
	Replica string
	At      time.Time // of its last beat, by the server's clock
}

// Replicas returns the replicas whose last beat is in the bucket, sorted by
// name: those that live, and those that ended without taking it out.
func (b *Bucket) Replicas(ctx context.Context) ([]Alive, error) {
	w, err := b.kv.Watch(ctx, replicaKey("*"))
	if err != nil {
		return nil, fmt.Errorf("registry: reading the bucket: %w", unanswered(err))
	}
	defer w.Stop() //nolint:errcheck // it goes with the connection
	var list []Alive
	for {
		select {
		case e := <-w.Updates():
			if e == nil {
				slices.SortFunc(list, func(a, b Alive) int { return strings.Compare(a.Replica, b.Replica) })
				return list, nil
			}
			if c := changeOf(e); !c.deleted {
				list = append(list, Alive{strings.TrimPrefix(c.key, replicaKey("")), c.created})
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("registry: reading the bucket: %w", unanswered(ctx.Err()))
		}
	}
}

// Beat is when a replica was heard last.
type Beat struct {
	Replica string
	Ago     time.Duration // before this replica's own last beat, by the server's clock
}

// Beats returns those of this replica and of all others that the bucket has, sorted by name:
// of those that live, and those that ended without taking theirs out. There are none without
// a bucket. While nothing is heard of the bucket they are what they were.
func (r *Registry) Beats() []Beat {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.mu.ledger
	var list []Beat
	for key, m := range l.replicas {
		list = append(list, Beat{strings.TrimPrefix(key, replicaKey("")), max(0, l.serverAt.Sub(m.created))})
	}
	slices.SortFunc(list, func(a, b Beat) int { return strings.Compare(a.Replica, b.Replica) })
	return list
}
