package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// This file is what follows from messages that came and cannot be used. What they
// said is lost, so a hole after them is not waited for, and their ranks are brought
// up to date at once: the message names its ranks, or it may have been of any of
// its worker's.

// Messages that are refused although they can be read.
var (
	errOtherWorker = errors.New("message on another worker's subject")
	errOtherSpace  = errors.New("message in another space's stream")
	errMalformed   = errors.New("a message of the worker cannot be used")
	errNoIndex     = errors.New("the space has no index")
)

// unusableReason is the error's label in the metrics.
func unusableReason(err error) string {
	switch {
	case errors.Is(err, errOtherWorker):
		return "worker_mismatch"
	case errors.Is(err, errOtherSpace):
		return "space_mismatch"
	case errors.Is(err, errNoIndex):
		return "space_refused"
	}
	return event.Reason(err)
}

// refuses returns why the batch is not for this partition; nil if it is.
func (l *partition) refuses(w *work, b *event.Batch) error {
	switch {
	case b.Worker != w.worker:
		return fmt.Errorf("%w: of worker %d, on the subject of worker %d", errOtherWorker, b.Worker, w.worker)
	case b.Space != l.space:
		return fmt.Errorf("%w: of %+v, in the stream of %+v", errOtherSpace, b.Space, l.space)
	}
	return nil
}

// unusable handles a part of the message that cannot be used, or all of it.
func (l *partition) unusable(ctx context.Context, w *work, b *event.Bad) {
	var ranks []*rank
	if b.Named && b.Worker == w.worker {
		if r := l.rank(b.Worker, b.DPRank); r != nil {
			ranks = append(ranks, r)
		}
	} else if ranks = l.byWorker[w.worker]; len(l.malformed) < l.cfg.MaxRanks {
		l.malformed[w.worker] = struct{}{}
	}
	l.skipped(w.worker, ranks, unusableReason(b.Err), b.Err)
	// A message that is another's by its own word lacks nothing here, most likely.
	lost := !errors.Is(b.Err, errOtherWorker) && !errors.Is(b.Err, errOtherSpace)
	for _, r := range ranks {
		l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Unusable(s, b.ID, lost, b.Err) })
	}
}

// skipped counts and logs what is left out of the ranks, if it is known which.
func (l *partition) skipped(worker uint64, ranks []*rank, reason string, err error) {
	l.m.malformed(reason)
	if l.badLog.ok(time.Now()) {
		log := l.cfg.Log
		if len(ranks) == 1 {
			log = log.With("dp_rank", ranks[0].id.DPRank)
		}
		log.Warn("message skipped; further ones of this second are only counted",
			"worker", worker, "model", l.space.Model, "reason", reason, "error", err)
	}
	for _, r := range ranks {
		r.counts.Malformed++
		r.show()
	}
}
