package replica

import (
	"context"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/snapshot/dump"
	"github.com/kvatlas/kvatlas/snapshot/peer"
)

// at says how far the events of a space's stream are read when queue is called.
// It does not know that of ranks that are read from engines' own sockets, nor of
// spaces without a stream, or of several.
func (r *Replica) at(ctx context.Context, sp event.Space, queue func() error, wait func()) (p dump.Position, err error) {
	if in := r.ingest.Load(); in != nil {
		for _, s := range in.Streams() {
			if s.Space == sp && (s.Partitions == 1 || r.share.Of > 0) {
				start, err := in.Cut(ctx, s.Stream, queue, wait)
				return peer.PositionOf(start), err
			}
		}
	}
	if err := queue(); err != nil {
		return p, err
	}
	wait()
	return p, nil
}
