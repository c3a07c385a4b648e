package ingest

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// livePending bounds the live messages that wait for their partitions; the client
// drops what comes beyond, which shows as gaps.
const livePending = 1 << 16

// listen hands every live message of the namespace to its partition. One goroutine
// of the client calls it, so the order of each publisher is kept.
func (in *Ingest) listen(ctx context.Context) (*nats.Subscription, error) {
	sub, err := in.cfg.Conn.Subscribe(stream.LiveSubjects(in.cfg.Namespace), func(msg *nats.Msg) { in.live(ctx, msg) })
	if err != nil {
		return nil, fmt.Errorf("ingest: listening to live events: %w", err)
	}
	if err := sub.SetPendingLimits(livePending, in.cfg.MaxBytes); err != nil {
		return nil, fmt.Errorf("ingest: listening to live events: %w", err)
	}
	gauge := func(name string, f func() float64) {
		in.cfg.Metrics.UnregisterMetric(name) // of an earlier Ingest on the same Set
		in.cfg.Metrics.NewGauge(name, f)
	}
	gauge("kvatlas_ingest_live_dropped_messages", func() float64 {
		n, _ := sub.Dropped() // it fails for a closed connection: then nothing is dropped any more
		return float64(n)
	})
	gauge("kvatlas_ingest_live_pending_messages", func() float64 {
		n, _, _ := sub.Pending()
		return float64(n)
	})
	return sub, nil
}

func (in *Ingest) live(ctx context.Context, msg *nats.Msg) {
	in.m.liveMessages.Inc()
	in.contact.heard(time.Now(), &in.cfg)
	token, worker, err := stream.ParseLive(msg.Subject)
	if err == nil && !in.cfg.Share.Has(worker) {
		return // another replica's
	}
	var g *group
	reason := "subject"
	if err == nil {
		if g, err = in.liveGroup(ctx, token, msg.Data); err != nil {
			reason = unusableReason(err)
		}
	}
	if err != nil {
		in.m.malformed(reason)
		if in.badLog.ok(time.Now()) {
			in.cfg.Log.Warn("message skipped; further ones of this second are only counted", "subject", msg.Subject, "error", err)
		}
		return
	}
	l := g.partition(worker)
	w := l.works.Get().(*work)
	w.begin(worker, msg.Data)
	w.live = true
	select {
	case l.queue <- w:
	case <-ctx.Done():
	}
}

// liveGroup returns the group of the space that the token names. The first
// message of a space has to say which it is.
func (in *Ingest) liveGroup(ctx context.Context, token string, data []byte) (*group, error) {
	if g, ok := in.groups.Load(token); ok {
		return g, nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	batches, err := event.Decode(data)
	if err != nil {
		return nil, err
	}
	if len(batches) == 0 || batches[0].Space.Model == "" || stream.Token(batches[0].Space) != token {
		return nil, fmt.Errorf("%w: it does not say which %s is", errOtherSpace, token)
	}
	return in.groupLocked(ctx, batches[0].Space)
}
