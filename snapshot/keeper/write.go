package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// writeSnapshot writes, verifies and publishes a snapshot of the stream, and trims it.
// ctx ends with the lease.
func (k *Keeper) writeSnapshot(ctx context.Context, st *streamState, s ingest.StreamStatus, why string) error {
	begun := time.Now()
	sp := k.cfg.Set.Lookup(s.Space)
	if sp == nil {
		return fmt.Errorf("snapshots: stream %s has no index", s.Stream)
	}
	if err := k.cfg.step("claim"); err != nil {
		return err
	}
	fence, err := store.Claim(ctx, st.store, k.cfg.Replica, k.Readmit(st.store, s.Stream, s.Space))
	if err != nil {
		return err
	}
	w := snapshot.NewWriter(sp, k.cfg.Options)
	defer w.Close()
	start, err := k.in.Cut(ctx, s.Stream, func() error { return w.Begin(ctx) }, w.Begun)
	if err != nil {
		return err
	}
	meta := snapshot.Meta{
		Space: snapshot.Space(s.Space), Stream: s.Stream, Created: start.Created, Seq: start.Seq - 1, Stored: start.Stored,
		Written: begun.UTC(), Writer: k.cfg.Replica, Program: k.cfg.Program, Fence: fence, Ranks: ranksOf(start),
	}
	name := store.Name(meta.Seq, fence)
	if err := k.cfg.step("write"); err != nil {
		return err
	}
	var footer *snapshot.Footer
	err = st.store.Put(ctx, name, func(out io.Writer) (err error) {
		footer, err = w.Write(ctx, out, meta)
		return err
	})
	if err != nil {
		return err
	}
	written := time.Since(begun)
	if err := k.cfg.step("verify"); err != nil {
		return err
	}
	info, err := k.verify(ctx, st.store, name)
	if err == nil && (info.Footer != *footer || EntryOf(info).Name != name) {
		err = fmt.Errorf("%w: what was read back is another snapshot", snapshot.ErrDamaged)
	}
	if err != nil {
		return errors.Join(err, st.store.Delete(context.WithoutCancel(ctx), name))
	}
	e := EntryOf(info)
	e.TookMs = uint64(time.Since(begun).Milliseconds()) + 1
	if err := k.cfg.step("publish"); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	keep := k.cfg.Keep
	if why == noRoom {
		keep = 2 // what older ones need is in the way
	}
	m, err := store.Publish(ctx, st.store, e, keep)
	if err != nil {
		return err
	}
	st.note(e, time.Now())
	st.learned = begun
	st.roomy = false // as long as nobody has looked
	k.m.took(why, written, &e)
	k.cfg.Log.Info("snapshot taken", "stream", s.Stream, "because", why, "name", e.Name, "position", e.Seq, "blocks", e.Blocks, "bytes", e.Bytes,
		"seconds", time.Since(begun).Seconds())
	if err := k.cfg.step("trim"); err != nil {
		return err
	}
	if err := k.trim(ctx, m, s); err != nil {
		return err
	}
	if err := k.cfg.step("sweep"); err != nil {
		return err
	}
	return store.Sweep(ctx, st.store, fence)
}

func (k *Keeper) verify(ctx context.Context, s store.Store, name string) (*snapshot.Info, error) {
	f, err := s.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	info, err := snapshot.Verify(f)
	return info, errors.Join(err, f.Close())
}

// trim takes the messages off the stream that the oldest snapshot of the
// manifest has, if that is not the newest too. The message at its position stays,
// so that a start from it can see that the stream is the one that it was.
func (k *Keeper) trim(ctx context.Context, m store.Manifest, s ingest.StreamStatus) error {
	if len(m.Snapshots) < 2 {
		return nil
	}
	oldest := m.Snapshots[0].Seq
	for _, e := range m.Snapshots {
		switch err := k.streamContinues(ctx, s.Stream, e); {
		case errors.Is(err, errVoid):
			return nil // of an earlier stream, or of what it was before a rollback: the fallback still
		case err != nil:
			return fmt.Errorf("trimming: %w", err)
		}
		oldest = min(oldest, e.Seq)
	}
	str, info, err := stream.Open(ctx, k.js, s.Stream)
	if err != nil {
		return fmt.Errorf("trimming: %w", err)
	}
	if !info.Created.Equal(s.Created) || info.LastSeq < oldest || info.FirstSeq >= oldest {
		return nil // another stream, a rolled-back one, or nothing to do
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if err := str.Purge(ctx, jetstream.WithPurgeSequence(oldest)); err != nil {
		return fmt.Errorf("trimming stream %s: %w", s.Stream, err)
	}
	k.m.trimmed.Add(int(oldest - info.FirstSeq))
	return nil
}

func ranksOf(start ingest.Start) []snapshot.Publisher {
	ranks := make([]snapshot.Publisher, len(start.Ranks))
	for i, p := range start.Ranks {
		ranks[i] = snapshot.Publisher{Worker: p.Worker, DPRank: p.DPRank, Position: p.Position}
	}
	return ranks
}

// StartOf returns where reading goes on after a snapshot.
func StartOf(m *snapshot.Meta) ingest.Start {
	start := ingest.Start{Seq: m.Seq + 1, Created: m.Created, Stored: m.Stored}
	for _, list := range [][]snapshot.Publisher{m.Ranks, m.Idle} {
		for _, r := range list {
			if r.ID().Pool() {
				start.Pools = append(start.Pools, r.ID())
				continue
			}
			start.Ranks = append(start.Ranks, ingest.RankPosition{Worker: r.Worker, DPRank: r.DPRank, Position: r.Position})
		}
	}
	return start
}
