package registry

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// This file is how registrations end in the bucket: a tombstone takes the place
// of each, in one write that fails if the registration has changed meanwhile. So
// the revisions of a key order registrations and departures, and whoever reads
// the bucket later knows who left, and when.

// attempts is how often a key is written that changes meanwhile.
const attempts = 4

var errChanging = errors.New("its key keeps changing")

// end ends the registration under a key, if there is one: its tombstone takes
// its place, unless the key changes again and again.
func (b *Bucket) end(ctx context.Context, key string) error {
	for range attempts {
		value, revision, err := b.newest(ctx, key)
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		r, err := parseWorker(key, value)
		switch {
		case err != nil: // nobody understands it
			err = b.kv.Delete(ctx, key, jetstream.LastRevision(revision))
		case r.Gone != nil:
			return nil
		default:
			_, err = b.bury(ctx, key, r, b.moment(ctx, r.Worker.Key()), revision)
		}
		if !stream.IsConflict(err) {
			return err
		}
	}
	return errChanging
}

// bury puts the tombstone of a registration in its place, if that is of the
// revision.
func (b *Bucket) bury(ctx context.Context, key string, r *record, at moment, revision uint64) (uint64, error) {
	value, err := json.Marshal(r.tombstone(at))
	if err != nil {
		return 0, err
	}
	return b.kv.Update(ctx, key, value, revision)
}

// momentWait bounds the wait for the state of a stream.
const momentWait = time.Second

// moment returns where the worker's stream is. If the server does not say, who reads that
// has to look, see Departure.Silent.
func (b *Bucket) moment(ctx context.Context, k Key) moment {
	ctx, cancel := context.WithTimeout(ctx, momentWait)
	defer cancel()
	at := moment{At: time.Now().UTC()}
	info, err := stream.GetFor(ctx, b.js, b.namespace, k.Space, k.Worker)
	if at.Silent = err != nil && !errors.Is(err, jetstream.ErrStreamNotFound); err == nil {
		at.Stream, at.Seq = info.Created, info.LastSeq
	}
	return at
}

// former returns the ranks that a worker no longer has if w takes the place of
// the old record, which was stored at that time.
func (b *Bucket) former(ctx context.Context, old *record, stored time.Time, w *Worker) []formerRanks {
	return old.former(stored, w, func() moment { return b.moment(ctx, w.Key()) })
}

func (r *record) former(stored time.Time, w *Worker, now func() moment) []formerRanks {
	list := slices.Clone(r.Former)
	gone := slices.DeleteFunc(slices.Clone(r.Ranks), func(rank uint32) bool { return slices.Contains(w.Ranks, rank) })
	switch {
	case len(gone) == 0:
	case r.Gone != nil:
		at := *r.Gone
		at.At = stored
		list = append(list, formerRanks{gone, at})
	default:
		list = append(list, formerRanks{gone, now()})
	}
	return without(list, w.Ranks)
}
