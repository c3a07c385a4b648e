package registry

import (
	"context"
	"encoding/json"
	"maps"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// This file is how registrations over HTTP outlive a bucket that the server has lost, or
// that is of an older backup: nobody but the replicas knows of them, since those clients
// send no heartbeats. What has ended since the backup was made is ended again.

// marker is when a key of the bucket was written last.
type marker struct {
	revision uint64
	created  time.Time
}

// after reports whether that was after the change: by its revision, which a bucket that
// was made anew begins again, and by its time, for which clocks may be set.
func (m marker) after(c change) bool { return m.revision > c.revision && m.created.After(c.created) }

// outdated is a registration that had ended, and that a load brought.
type outdated struct {
	record   *record
	revision uint64
	ended    marker
}

// noteEnded notes for the load that begins which keys are gone.
func (l *ledger) noteEnded() {
	if !l.loading { // else the last load was cut off
		l.ended = make(map[string]marker)
	}
	maps.Copy(l.ended, l.markers)
	for key, o := range l.outdated {
		l.ended[key] = o.ended
	}
	clear(l.outdated)
}

// again is a registration over HTTP that is to be stored again.
type again struct {
	worker   Worker
	revision uint64 // of what is in its place; 0: nothing
}

// lost returns the HTTP registrations that were known and that a load did not bring,
// limit at most. One that was ended has left a tombstone or a marker, for Config.Forget:
// after half of that without the bucket nothing can be told from its silence any more.
func (l *ledger) lost(limit int) (list []again) {
	for _, m := range l.members {
		for rank, h := range m.http {
			_, ended := l.markers[httpKey(m.key, rank)]
			if h.missing.IsZero() || ended || l.away > l.cfg.forget/2 || len(list) >= limit {
				continue
			}
			list = append(list, again{h.worker, h.outdated})
		}
	}
	return list
}

// awayFor returns for how long the bucket was not heard before this load.
func (l *ledger) awayFor(now time.Time) time.Duration {
	if l.beatAt.IsZero() {
		return l.cfg.forget // it was never heard
	}
	return now.Sub(l.beatAt)
}

// restore brings back what lost returns. Another replica may be faster; what fails is
// tried again, until it counts as gone.
func (r *Registry) restore(ctx context.Context, b *Bucket) {
	const atATime = 100
	r.mu.Lock()
	list := r.mu.ledger.lost(atATime)
	gone := make(map[string]outdated)
	for key, o := range r.mu.ledger.outdated {
		if len(gone) < atATime {
			gone[key] = o
		}
	}
	r.mu.Unlock()
	for key, o := range gone {
		request, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := b.bury(request, key, o.record, b.moment(request, o.record.Key()), o.revision)
		cancel()
		switch {
		case stream.IsConflict(err): // another replica was faster, or it is registered anew
		case err != nil:
			return
		default:
			r.cfg.Log.Warn("the server has brought back a registration that had ended, as from a backup: it is ended again", "worker", o.record.ID, "model", o.record.Model)
			r.m.endedAgain.Inc()
		}
	}
	for i := range list {
		w := &list[i].worker
		value, err := json.Marshal(record{Version: recordVersion, Worker: *w})
		if err != nil {
			return // it was read from such a value
		}
		request, cancel := context.WithTimeout(ctx, time.Second)
		key := httpKey(w.Key(), w.Ranks[0])
		if list[i].revision > 0 {
			_, err = b.kv.Update(request, key, value, list[i].revision)
		} else {
			_, err = b.kv.Create(request, key, value)
		}
		cancel()
		switch {
		case stream.IsConflict(err):
		case err != nil:
			return
		default:
			r.cfg.Log.Warn("the server has lost a registration over HTTP: it is stored again", "worker", w.ID, "model", w.Model, "dp_rank", w.Ranks[0])
			r.m.restored.Inc()
		}
	}
}
