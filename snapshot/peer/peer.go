package peer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/ingest/follow"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot/dump"
)

// Errors of Copy. All are wrapped with a reason.
var (
	// ErrUnusable is of a dump that is whole, and of no use here.
	ErrUnusable = errors.New("the peer's dump cannot be used")
	// ErrUnknown is of a space that the peer does not have.
	ErrUnknown = errors.New("the peer does not have the space")
	// ErrGone is of a peer that does not give its dump.
	ErrGone = errors.New("the peer does not give its dump")
)

// attempts is how often a peer is asked that does not get further.
const attempts = 5

// Copy loads what the peer knows of the stream's space, which must be empty, and
// returns where the stream is to be read on: all of it, or nothing.
func (s *Source) Copy(ctx context.Context, info stream.Info, sp *shard.Space) (start ingest.Start, err error) {
	l := dump.NewLoader(func(h *dump.Header) (*shard.Space, error) { return sp, usable(h, &info) },
		func(r *dump.RankEnd) { s.cfg.Progress.Loaded(r.Blocks) })
	blocks := func() (n uint64) {
		for _, r := range l.Ranks() {
			n += r.Blocks
		}
		return n
	}
	defer func() {
		if err != nil {
			l.Abort()
			s.cfg.Progress.Loaded(-blocks())
		}
	}()
	for failed := 0; ; {
		before := l.Cursor()
		err := s.part(ctx, info, l)
		switch {
		case err == nil:
			if start, err = startOf(l); err == nil {
				err = l.Commit(ctx)
			}
			if err != nil {
				return start, err
			}
			if l.Header().HashScheme == registry.EagleScheme(info.Space.BlockSize) {
				sp.MarkEagle()
			}
			s.cfg.Log.Info("a peer's dump was loaded", "peer", s.cfg.URL, "stream", info.Name, "position", l.Header().Stream.Seq,
				"ranks", len(l.Ranks()), "blocks", blocks())
			return start, nil
		case ctx.Err() != nil:
			return start, ctx.Err()
		case !errors.Is(err, errAgain):
			return start, err
		}
		if failed++; l.Cursor() != before {
			failed = 1 // it got further
		}
		if failed == attempts {
			return start, fmt.Errorf("%w: %d attempts: %w", ErrGone, attempts, err)
		}
		s.cfg.Log.Warn("a peer's dump broke off, taking it up again", "peer", s.cfg.URL, "stream", info.Name, "after", l.Cursor(), "error", err)
		select {
		case <-time.After(s.cfg.Wait << (failed - 1)):
		case <-ctx.Done():
			return start, ctx.Err()
		}
	}
}

// usable refuses a dump that the stream does not go on from.
func usable(h *dump.Header, info *stream.Info) error {
	switch scheme := registry.Scheme(info.Space.BlockSize); {
	case h.Space() != info.Space:
		return fmt.Errorf("%w: it is of model %q, block size %d, group %q", ErrUnusable, h.Model, h.BlockSize, h.Group)
	case h.HashScheme != scheme && h.HashScheme != registry.EagleScheme(info.Space.BlockSize):
		return fmt.Errorf("%w: its hashes are made as %q, here as %q", ErrUnusable, h.HashScheme, scheme)
	case h.Stream == nil:
		return fmt.Errorf("%w: the peer does not read the stream of it", ErrUnusable)
	case !h.Stream.Created.Equal(info.Created):
		return fmt.Errorf("%w: the peer read a stream of %v, this one is of %v", ErrUnusable, h.Stream.Created, info.Created)
	}
	return nil
}

// PositionOf returns what a dump says of where reading a stream goes on.
func PositionOf(start ingest.Start) (p dump.Position) {
	p.Stream = &dump.Stream{Seq: max(start.Seq, 1) - 1, Created: start.Created, Stored: start.Stored}
	for _, k := range start.Ranks {
		at := dump.Publisher{Worker: k.Worker, DPRank: k.DPRank, Incarnation: k.Incarnation, LastID: k.LastID, Incomplete: k.Incomplete, Ahead: k.Unconfirmed,
			Left: k.Left, Departed: k.Departed}
		for _, e := range k.Ended {
			at.Ended = append(at.Ended, strconv.FormatUint(e, 10))
		}
		p.Positions = append(p.Positions, at)
	}
	return p
}

// startOf returns where to read on after a dump.
func startOf(l *dump.Loader) (ingest.Start, error) {
	h := l.Header().Stream
	start := ingest.Start{Seq: h.Seq + 1, Created: h.Created, Stored: h.Stored}
	for _, r := range l.Ranks() {
		if r.ID().Pool() {
			continue // no stream tells of it
		}
		at := r.Position
		pos := ingest.RankPosition{
			Worker: r.Worker, DPRank: r.DPRank, Position: follow.Position{
				Incarnation: at.Incarnation, LastID: at.LastID, Incomplete: at.Incomplete, Unconfirmed: at.Ahead, Left: at.Left, Departed: at.Departed,
			}}
		for _, text := range at.Ended {
			e, err := strconv.ParseUint(text, 10, 64)
			if err != nil {
				return start, fmt.Errorf("%w: %q is no incarnation", dump.ErrDamaged, text)
			}
			pos.Ended = append(pos.Ended, e)
		}
		start.Ranks = append(start.Ranks, pos)
	}
	return start, nil
}

// CopyAll copies the spaces of the streams, one after the other, and returns
// where to read those on that the peer has given. What it has not is logged: those
// streams are read as without a peer. An error means that there is no point in
// going on.
func (s *Source) CopyAll(ctx context.Context, infos []stream.Info, set *shard.Set) (map[string]ingest.Start, error) {
	starts := make(map[string]ingest.Start)
	s.cfg.Progress.Begin(startup.Copying)
	for _, info := range infos {
		sp, err := set.Open(info.Space)
		if err != nil {
			return nil, fmt.Errorf("copying from a peer: %w", err)
		}
		start, err := s.Copy(ctx, info, sp)
		switch {
		case err == nil:
			starts[info.Name] = start
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, ErrUnknown):
			s.cfg.Log.Info("the peer does not know a space", "peer", s.cfg.URL, "stream", info.Name, "error", err)
		default:
			s.cfg.Log.Warn("nothing is taken from the peer: the stream is read, and what it no longer has is asked for from the publishers",
				"peer", s.cfg.URL, "stream", info.Name, "error", err)
			if errors.Is(err, ErrGone) {
				return starts, nil // nor will it give others
			}
		}
	}
	return starts, nil
}

// defaults fills in what is not set.
func (c *Config) defaults() {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Progress == nil {
		c.Progress = new(startup.Progress)
	}
	if c.Stall == 0 {
		c.Stall = 30 * time.Second
	}
	if c.Wait == 0 {
		c.Wait = 250 * time.Millisecond
	}
}
