package ingest

import (
	"context"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// growEvery is how often a stream is tried to be enlarged that could not be.
const growEvery = time.Minute

// grow enlarges a stream that is half full, so that nobody who publishes has to
// wait for that. discover calls it.
func (r *reader) grow(ctx context.Context, info *stream.Info) {
	if info.Size <= 0 || info.Size >= info.MaxBytes || info.Bytes < uint64(info.Size)/2 || time.Now().Before(r.growAgain) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	ok, err := stream.Grow(ctx, r.js, r.name)
	if ok {
		r.cfg.Log.Info("stream enlarged: it was half full", "stream", r.name, "from_bytes", info.Size, "up_to_bytes", info.MaxBytes)
		return
	}
	r.growAgain = time.Now().Add(growEvery)
	if err != nil {
		r.cfg.Log.Warn("a stream that is half full is not enlarged", "stream", r.name, "error", err)
	}
}
