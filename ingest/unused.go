package ingest

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// This file is what becomes of streams that nobody publishes into any more. A reader whose
// stream is gone looks for it on and on, and goes on if it is made again; meanwhile it is
// not shown, and nobody waits for it.

// lookForAbsent notes which readers' streams are not among those that there are. unsafe is
// the error of stream.List: what it does not list may be there.
func (in *Ingest) lookForAbsent(infos []stream.Info, unsafe error) {
	there := make(map[string]bool, len(infos))
	for i := range infos {
		there[infos[i].Name] = true
	}
	now := time.Now()
	for _, r := range in.readers() {
		r.mu.Lock()
		switch {
		case there[r.name] || unsafe != nil:
			r.mu.absent = time.Time{}
		case r.mu.absent.IsZero():
			r.mu.absent = now
		}
		r.mu.Unlock()
		if gone := r.forgotten(now); gone != r.hidden {
			r.hidden = gone
			in.gauges(r)
			in.cfg.Log.Info("a stream is gone, or back", "stream", r.name, "model", r.space.Model, "gone", gone)
		}
	}
}

// forgotten reports whether the stream has not been there for long enough.
func (r *reader) forgotten(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.mu.absent.IsZero() && now.Sub(r.mu.absent) >= r.cfg.ForgetStream
}

// counts reports whether the reader is shown and waited for: also one without its stream,
// if that is because the space is divided otherwise now.
func (r *reader) counts(now time.Time) bool {
	return r.otherwise() != nil || !r.forgotten(now)
}

// leastDeleteStream is far above the time between a publisher's heartbeats: each of them is
// a message of its stream, though the stream may be trimmed to nothing.
const leastDeleteStream = time.Minute

// unused is for how long a stream was seen empty and without a new message. Of another
// stream of the name, and while nobody looked, that says nothing.
type unused struct {
	created time.Time
	seq     uint64
	looked  time.Time // last
	idle    time.Duration
}

// look returns for how long, with what there is now; looks are usually every apart.
func (u *unused) look(info *stream.Info, now time.Time, every time.Duration) time.Duration {
	if !info.Created.Equal(u.created) || info.LastSeq != u.seq || info.Messages > 0 {
		*u = unused{created: info.Created, seq: info.LastSeq, looked: now}
		return 0
	}
	u.idle += min(now.Sub(u.looked), 2*every)
	u.looked = now
	return u.idle
}

// deleteUnused deletes the stream if nothing has come into it for Config.DeleteStream, and
// it is empty: one that is full takes nothing either. What a publisher that is back at this
// very moment stored in it shows as a gap, and is got from it.
func (r *reader) deleteUnused(ctx context.Context, info *stream.Info) {
	if idle := r.unused.look(info, time.Now(), r.cfg.Discover); r.cfg.DeleteStream == 0 || idle < r.cfg.DeleteStream {
		return
	}
	r.unused = unused{} // if it fails, it is tried after the same time again
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	if err := r.js.DeleteStream(ctx, r.name); err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
		r.cfg.Log.Warn("a stream that nobody publishes into is not deleted", "stream", r.name, "error", err)
		return
	}
	r.cfg.Log.Info("stream deleted: nobody publishes into it any more", "stream", r.name, "model", r.space.Model)
}
