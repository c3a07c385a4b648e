package zmqfeed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// This file has an engine say all that it holds, where its replay does not reach back. The
// form is that of https://github.com/vllm-project/vllm/pull/50134 (open, as of its
// description of 28 July 2026 and its review of September): the word "snapshot" where a
// replay's request has its number; replies as a replay's, each with the number of the
// batch that comes next; first of all AllBlocksCleared, then what is stored, parents
// before children; the end as a replay's. Engines without it (vLLM up to 0.33, SGLang)
// read the word as a number beyond all others, and answer with the end alone.

// snapshotRequest is what is asked.
const snapshotRequest = "snapshot"

var (
	errUnusable = errors.New("the engine's snapshot is unusable")
	errLarge    = errors.New("the engine's snapshot is too large")
)

// snapshot is all that an engine holds before its batch next: a Content.
type snapshot struct {
	dec   *engine.Decoder
	max   int // bytes of its payloads
	next  uint64
	bytes int
	batch event.Batch
}

// part adds the next reply.
func (w *snapshot) part(number uint64, payload []byte) error {
	begun := w.bytes > 0
	if w.bytes += max(1, len(payload)); w.bytes > w.max {
		return fmt.Errorf("%w: more than %d bytes", errLarge, w.max)
	}
	if begun && number != w.next || number == 0 {
		return fmt.Errorf("%w: it is of before batch %d, and a part of before %d", errUnusable, w.next, number)
	}
	b, err := w.dec.Decode(payload)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnusable, err)
	}
	if !begun && (len(b.Events) == 0 || b.Events[0].Kind != event.Cleared || !b.Events[0].AllTiers) {
		return fmt.Errorf("%w: it does not begin with AllBlocksCleared", errUnusable)
	}
	w.next = number
	all := append(w.batch.Events, b.Events...)
	for i := len(w.batch.Events); i < len(all); i++ { // they live until the next is decoded
		all[i].Engine, all[i].Local = slices.Clone(all[i].Engine), slices.Clone(all[i].Local)
	}
	lost, filtered, eagle, hybrid, other := w.batch.Lost, w.batch.Filtered, w.batch.Eagle, w.batch.Hybrid, w.batch.OtherSize
	w.batch = *b
	w.batch.Events, w.batch.Lost, w.batch.Filtered = all, lost+b.Lost, filtered+b.Filtered
	w.batch.Eagle, w.batch.Hybrid, w.batch.OtherSize = eagle || b.Eagle, hybrid || b.Hybrid, max(other, b.OtherSize)
	return nil
}

// Read implements Content.
func (w *snapshot) Read() (*event.Batch, Reason, error) { return &w.batch, Undecodable, nil }

// Done implements Content.
func (w *snapshot) Done() {}

// snapshot asks the engine for all that it holds, and reports whether the rank has it. The
// rank's state is as it was until the whole of it is there.
func (s *session) snapshot(ctx context.Context) bool {
	f := s.f
	now := time.Now()
	sleep(ctx, f.snaps.Next().Sub(now))
	if now.Sub(f.snaps.Next()) > f.cfg.ReplayPause {
		f.snaps.Progress()
	}
	now = time.Now()
	f.snaps.Later(now, now, f.cfg.RetryMin, f.cfg.ReplayPause, f.seed)
	w := &snapshot{max: f.cfg.SnapshotBytes}
	w.dec, _ = engine.NewDecoder(f.cfg.Decoder) // New has made one
	err := s.request(ctx, []byte(snapshotRequest), func(it *item, number uint64, payload []byte) error {
		if it.oversize {
			return errLarge
		}
		return w.part(number, payload)
	})
	result := SnapshotTaken
	switch {
	case errors.Is(err, errLarge):
		result = SnapshotOversize
	case errors.Is(err, errUnusable):
		result = SnapshotUnusable
	case err != nil || s.broken.Load(): // what is asked next may be another process
		result = SnapshotFailed
	case w.bytes == 0:
		result = SnapshotNone
	}
	f.count(func(c *Stats) { c.Snapshots[result]++ })
	if result != SnapshotTaken {
		return false
	}
	f.fresh = w.dec
	f.Step(func(k *follow.Rank, st *follow.Step) {
		k.Snapshot(st, &follow.Batch{Number: w.next - 1, Ref: w})
	})
	f.fresh = nil
	f.countLeft()
	return true
}
