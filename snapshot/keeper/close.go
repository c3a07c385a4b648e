package keeper

import (
	"context"
	"errors"
	"time"
)

// Close ends the work and takes a last snapshot of each stream that has changed
// since its newest. The Ingest is closed before; the Set is still open. ctx
// bounds it, and so does the connection: no server, no snapshot.
func (k *Keeper) Close(ctx context.Context) {
	if k.cancel == nil {
		return
	}
	k.cancel()
	<-k.done
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go k.watchConnection(ctx, cancel) // ends with ctx
	for _, s := range k.in.Streams() {
		k.lookAt(ctx, s, true)
		if errors.Is(context.Cause(ctx), errAway) {
			return
		}
	}
}

// errAway is why there are no last snapshots of a replica whose server is gone.
var errAway = errors.New("NATS is away as the replica stops; the next one reads more of the stream")

// awayAtEnd is how long a connection may be away that last snapshots wait for: a cluster has another server.
const awayAtEnd = time.Second

// watchConnection calls end once the connection was away for longer, until ctx ends.
func (k *Keeper) watchConnection(ctx context.Context, end context.CancelCauseFunc) {
	ticker := time.NewTicker(awayAtEnd / 10)
	defer ticker.Stop()
	for heard := time.Now(); ; {
		switch {
		case k.cfg.Conn.IsConnected():
			heard = time.Now()
		case time.Since(heard) > awayAtEnd:
			end(errAway)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
