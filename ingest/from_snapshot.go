package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
)

// This file is what a reader does whose stream was trimmed beyond where it is:
// it takes up a newer snapshot, rank by rank, while the index goes on. So does one that
// begins with a stream of a space of several: a snapshot is loaded into an empty index
// only, and another stream's may be there already.

// Trimmed says which part of a stream a reader has missed.
type Trimmed struct {
	Stream   string
	Space    event.Space
	Created  time.Time // of the stream
	Position uint64    // sequence up to which everything was read
	First    uint64    // first sequence that the stream still has
}

// Snapshot is the state of a stream's ranks at one moment.
type Snapshot interface {
	// Start says where the stream goes on, and how far each rank was applied.
	Start() Start
	// Rank returns the events that rebuild what the rank holds, with copies,
	// as shard.Space.DumpRank does.
	Rank(ctx context.Context, id shard.RankID) ([]shard.Dumped, error)
	// Close gives its memory back.
	Close()
}

// FindSnapshot returns a snapshot of the stream that reaches from its first sequence
// on, and not less far than the position; nil if there is none. An error counts
// as none.
type FindSnapshot func(ctx context.Context, at Trimmed) (Snapshot, error)

// errTrimmed ends a session whose next message the stream no longer has.
var errTrimmed = errors.New("the stream was trimmed beyond the position")

// errReloaded ends a session that took up a snapshot: the next goes on from it.
var errReloaded = errors.New("a snapshot was taken up")

// jumped says whether a delivery that leaves sequences out means that the stream
// was trimmed; single messages may be gone for other reasons, which event ids
// show.
func (r *reader) jumped(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	info, err := stream.Get(ctx, r.js, r.name)
	if err != nil {
		return err
	}
	if info.FirstSeq > r.next {
		return fmt.Errorf("%w: it begins at %d, after %d", errTrimmed, info.FirstSeq, r.next-1)
	}
	return nil
}

// beside reports whether the reader has read nothing yet of one of several streams.
func (r *reader) beside() bool { return r.next == 1 && r.cfg.Share.Of == 0 && r.of.Load() > 1 }

// recoverFromSnapshot takes up a snapshot in the place of what the stream no longer has. It
// reports false if there is none that fits: then ids show what is missing.
func (r *reader) recoverFromSnapshot(ctx context.Context, s jetstream.Stream, info *stream.Info) bool {
	if r.cfg.FindSnapshot == nil {
		return false
	}
	at := Trimmed{Stream: r.name, Space: r.space, Created: info.Created, Position: r.next - 1, First: info.FirstSeq}
	index, ok := r.index.(Replacer)
	if !ok {
		return false
	}
	r.takingUp.Lock() // one snapshot is in memory at a time
	defer r.takingUp.Unlock()
	snap, err := r.cfg.FindSnapshot(ctx, at)
	if err == nil && snap == nil && r.next >= info.FirstSeq {
		return false // there is all from the beginning
	}
	if err != nil || snap == nil {
		r.m.reloads("none")
		r.cfg.Log.Warn("the stream does not go on from the position, and no snapshot can be taken up: what is missing is asked for from the publishers",
			"stream", r.name, "after", at.Position, "first", at.First, "error", err)
		return false
	}
	defer snap.Close()
	start := snap.Start()
	if err := r.continuesAfter(ctx, s, at, start); err != nil {
		r.m.reloads("refused")
		r.cfg.Log.Error("a snapshot is not taken up", "stream", r.name, "after", at.Position, "first", at.First, "snapshot", start.Seq-1, "error", err)
		return false
	}
	taken, failed := 0, 0
	for _, pos := range start.Ranks {
		switch ok, err := r.recoverRankFromSnapshot(ctx, index, snap, pos); {
		case ctx.Err() != nil:
			return false
		case err != nil:
			failed++
			r.cfg.Log.Warn("what a snapshot has of a rank was not taken up: its publisher is asked for what is missing",
				"worker", pos.Worker, "dp_rank", pos.DPRank, "model", r.space.Model, "error", err)
		case ok:
			taken++
		}
	}
	r.departOthers(ctx, &start)
	for _, id := range start.Pools {
		if err := r.takePool(ctx, index, snap, id); err != nil && ctx.Err() == nil {
			failed++
			r.cfg.Log.Warn("what a snapshot has of a pool was not taken up: it has what was known before", "pool", id.Worker, "model", r.space.Model, "error", err)
		}
	}
	r.m.reloads("loaded")
	r.m.reloadedRanks.Add(taken)
	r.m.reloadFailed.Add(failed)
	log := r.cfg.Log.Info
	if at.Position+1 < at.First {
		log = r.cfg.Log.Warn
	}
	log("a snapshot was taken up in the place of what was not read", "stream", r.name, "after", at.Position,
		"first", at.First, "snapshot", start.Seq-1, "ranks", taken, "failed", failed)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passLocked(start.Seq-1, start.Stored)
	return true
}

// continuesAfter refuses a snapshot from which the stream does not go on: taken up, it
// would only be found to be void, and so for ever.
func (r *reader) continuesAfter(ctx context.Context, s jetstream.Stream, at Trimmed, start Start) error {
	ctx, cancel := context.WithTimeout(ctx, requestWait)
	defer cancel()
	if start.Seq < at.First || start.Seq <= at.Position {
		return fmt.Errorf("it ends at %d: %w", start.Seq-1, errTrimmed)
	}
	now, err := s.Info(ctx) // loading takes its time
	if err != nil {
		return fmt.Errorf("stream %s: %w", r.name, err)
	}
	why, err := stream.Void(ctx, s, &stream.Info{
		Name: r.name, Created: now.Created, FirstSeq: now.State.FirstSeq, LastSeq: now.State.LastSeq,
	}, stream.Position{Seq: start.Seq - 1, Created: start.Created, Stored: start.Stored})
	if err == nil && why != "" {
		err = fmt.Errorf("%w: %s", errVoid, why)
	}
	return err
}

// departOthers voids the ranks that the snapshot does not have: they left in what
// was missed, most likely. One that did not shows that by its next heartbeat, and
// is asked for what it holds.
func (r *reader) departOthers(ctx context.Context, start *Start) {
	have := make(map[workerRank]bool, len(start.Ranks))
	for _, pos := range start.Ranks {
		have[workerRank{pos.Worker, pos.DPRank}] = true
	}
	left := Departure{At: time.Now().UTC(), Seq: start.Seq - 1, Created: start.Created, Silent: true}
	for _, l := range r.partitions {
		l.do(func(l *partition) {
			for k, of := range l.mu.ranks {
				if pos, known := of.follow.Position(); !have[k] && l.source(k.worker) == r.source && known && !pos.Departed && of.recovery == nil {
					l.applyChange(ctx, change{worker: k.worker, ranks: []uint32{k.dpRank}, left: left})
				}
			}
		})
	}
}

// recoverRankFromSnapshot gives the rank the snapshot's state, in one step for lookups,
// unless the index knows as much of it or more.
func (r *reader) recoverRankFromSnapshot(ctx context.Context, index Replacer, snap Snapshot, pos RankPosition) (taken bool, err error) {
	l, seq := r.partition(pos.Worker), snap.Start().Seq-1
	wanted := false
	l.do(func(l *partition) {
		k := l.rank(pos.Worker, pos.DPRank)
		if k == nil {
			return
		}
		l.step(ctx, k, func(k *follow.Rank, s *follow.Step) { wanted = k.Lags(s, &pos.Position, seq) })
		if wanted && pos.Departed {
			wanted = false
			l.departFromSnapshot(ctx, k, pos, seq)
		}
	})
	if !wanted {
		return false, nil
	}
	id := shard.RankID{Worker: pos.Worker, DPRank: pos.DPRank}
	dumped, err := snap.Rank(ctx, id)
	if err != nil {
		return false, err
	}
	state, err := index.Replace(ctx, id)
	if err != nil {
		return false, err
	}
	state.FromSnapshot()
	if err = fill(ctx, state, dumped); err == nil {
		l.do(func(l *partition) { taken = l.commitSnapshot(ctx, l.rank(pos.Worker, pos.DPRank), &pos, seq, state) })
	}
	if !taken {
		err = errors.Join(err, state.Abort(context.WithoutCancel(ctx)))
	}
	return taken, err
}

// departFromSnapshot takes over from a snapshot that the rank has left.
func (l *partition) departFromSnapshot(ctx context.Context, r *rank, pos RankPosition, seq uint64) {
	d := Departure{At: pos.Left, Seq: seq, Created: l.source(pos.Worker).stream().created}
	l.m.departed.Inc()
	l.remove(ctx, change{worker: pos.Worker, ranks: []uint32{pos.DPRank}})
	_, gone := l.departure(r.id)
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.TakeDeparture(s, &pos.Position, d, !gone) })
}

// reloadBlocks is about how many blocks a replacement is given at a time, so
// that batches get in between.
const reloadBlocks = 4096

// fill gives the replacement all that was dumped.
func fill(ctx context.Context, state *shard.Replacement, dumped []shard.Dumped) error {
	refused, blocks := 0, 0
	var events []event.Event
	var copies [][]uint32
	for i := range dumped {
		events, copies = append(events, dumped[i].Event), append(copies, dumped[i].Copies)
		if blocks += len(dumped[i].Copies); blocks < reloadBlocks && i+1 < len(dumped) {
			continue
		}
		out, err := state.Add(ctx, events, copies)
		if err != nil {
			return err
		}
		refused += out.Refused
		events, copies, blocks = nil, nil, 0
	}
	out, err := state.Finish(ctx)
	if err == nil && refused+out.Refused > 0 {
		err = shard.ErrBudget
	}
	return err
}

// takePool gives a pool the snapshot's state. Of several streams it is one reader's, and what
// the others have told is not to be undone: the snapshot that was loaded has it.
func (r *reader) takePool(ctx context.Context, index Replacer, snap Snapshot, id shard.RankID) error {
	if r.of.Load() > 1 {
		return nil
	}
	dumped, err := snap.Rank(ctx, id)
	if err != nil {
		return err
	}
	state, err := index.Replace(ctx, id)
	if err != nil {
		return err
	}
	if err = fill(ctx, state, dumped); err == nil {
		err = state.Commit(ctx, nil)
	}
	if err != nil {
		return errors.Join(err, state.Abort(context.WithoutCancel(ctx)))
	}
	return nil
}

// commitSnapshot makes what the replacement has, of the position, the rank's state. It
// reports false if the rank has gone on meanwhile, or is gone; the caller then
// aborts the replacement.
func (l *partition) commitSnapshot(ctx context.Context, r *rank, pos *RankPosition, seq uint64, state *shard.Replacement) bool {
	if r == nil {
		return false
	}
	d := &dump{state: state}
	r.offered = d
	l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.TakeUp(s, &pos.Position, seq) })
	if r.offered = nil; d.err != nil { // the rank is not where it thinks
		l.step(ctx, r, func(k *follow.Rank, s *follow.Step) { k.Voided(s, math.MaxUint64) })
	}
	return d.committed
}
