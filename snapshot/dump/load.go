package dump

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// maxLine is the longest line that is read, in bytes: a header with the
// positions of half a million ranks.
const maxLine = 64 << 20

// Loaded is what a Load has shown.
type Loaded struct {
	Header Header
	Ranks  []RankEnd
	Cursor string // of the last of them; "" for none
}

// Load replaces what the dump's ranks hold in the space that open returns.
// Each rank is shown when it is complete, so after an error some are, up to
// Loaded.Cursor. The error wraps ErrTruncated if the dump ends early,
// ErrDamaged, ErrVersion, or shard.ErrBudget.
func Load(ctx context.Context, in io.Reader, open func(event.Space) (*shard.Space, error)) (*Loaded, error) {
	l := &load{}
	l.open = func(h *Header) (*shard.Space, error) { return open(h.Space()) }
	err := l.read(ctx, in)
	return &l.loaded, err
}

// read reads the lines of a dump, or of a part of one.
func (l *load) read(ctx context.Context, in io.Reader) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
	defer l.abort()
	for lines.Scan() {
		if l.ended {
			return fmt.Errorf("%w: something follows its end", ErrDamaged)
		}
		var x line
		if err := json.Unmarshal(lines.Bytes(), &x); err != nil {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
			if !lines.Scan() { // the last line: it may have been cut off
				err = fmt.Errorf("%w: %w", ErrTruncated, err)
			}
			return err
		}
		if err := l.line(ctx, &x); err != nil {
			return err
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%w: a line of more than %d bytes", ErrDamaged, maxLine)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrTruncated, err)
	case !l.ended:
		return ErrTruncated
	}
	return nil
}

// load is a Load under way.
type load struct {
	open   func(h *Header) (*shard.Space, error)
	keep   func(r *RankEnd, rank *shard.Replacement) error // instead of showing it; nil where it has no events
	loaded Loaded
	space  *shard.Space
	count  counter
	id     shard.RankID
	rank   *shard.Replacement // of id; nil between ranks
	out    core.Outcome
	ended  bool

	events []event.Event // of rank, not given to the space yet
	copies [][]uint32
	blocks int // in events
}

func (l *load) line(ctx context.Context, x *line) (err error) {
	if (l.space == nil) != (x.Dump != nil) {
		return fmt.Errorf("%w: it does not begin with its header, or has two", ErrDamaged)
	}
	switch {
	case x.Dump != nil:
		if v := x.Dump.Version; v < oldestVersion || v > Version {
			return fmt.Errorf("%w: %d; this program reads %d to %d", ErrVersion, v, oldestVersion, Version)
		}
		l.loaded.Header, l.count = *x.Dump, newCounter(x.Dump.Space())
		l.space, err = l.open(x.Dump)
		return err
	case x.Stored != nil:
		return l.stored(ctx, x.Stored)
	case x.Rank != nil:
		return l.show(ctx, x.Rank)
	case x.End != nil:
		if l.rank != nil || *x.End != l.count.all {
			return fmt.Errorf("%w: its end says %+v, its lines %+v", ErrDamaged, *x.End, l.count.all)
		}
		l.ended = true
	}
	return nil // a line that a later version may have
}

// begin begins a rank, unless it has begun.
func (l *load) begin(ctx context.Context, id shard.RankID) (err error) {
	if l.rank != nil {
		if l.id != id {
			return fmt.Errorf("%w: rank %v begins before rank %v is complete", ErrDamaged, id, l.id)
		}
		return nil
	}
	l.id, l.out = id, core.Outcome{}
	l.rank, err = l.space.Replace(ctx, id)
	return err
}

func (l *load) stored(ctx context.Context, s *stored) error {
	if err := l.begin(ctx, shard.RankID{Worker: s.Worker, DPRank: s.DPRank}); err != nil {
		return err
	}
	ev := event.Event{Kind: event.Stored, DPRank: s.DPRank, Engine: s.Engine, Local: s.Local}
	var ok bool
	if ev.Tier, ok = event.ParseTier([]byte(s.Tier)); !ok {
		return fmt.Errorf("%w: no tier is called %q", ErrDamaged, s.Tier)
	}
	if s.Parent != nil {
		ev.HasParent, ev.Parent = true, *s.Parent
	}
	if s.Copies == nil {
		s.Copies = make([]uint32, len(s.Engine))
		for i := range s.Copies {
			s.Copies[i] = 1
		}
	}
	if err := l.count.add(s.Worker, &ev, s.Copies); err != nil {
		return err
	}
	l.events, l.copies = append(l.events, ev), append(l.copies, s.Copies)
	if l.blocks += len(s.Engine); l.blocks < lineBlocks {
		return nil
	}
	return l.flush(ctx)
}

// flush gives the space what waits.
func (l *load) flush(ctx context.Context) error {
	out, err := l.rank.Add(ctx, l.events, l.copies)
	l.out.Add(out)
	l.events, l.copies, l.blocks = nil, nil, 0
	return err
}

// show ends a rank and lets lookups see it.
func (l *load) show(ctx context.Context, r *RankEnd) error {
	empty := l.rank == nil
	if !empty || l.keep == nil {
		if err := l.begin(ctx, r.ID()); err != nil { // of a rank without events
			return err
		}
	}
	if sum := l.count.end(); sum != r.Sum {
		return fmt.Errorf("%w: the line of rank %v says %+v, its events %+v", ErrDamaged, r.ID(), r.Sum, sum)
	}
	if empty && l.keep != nil {
		return l.done(r, l.keep(r, nil))
	}
	if err := l.flush(ctx); err != nil {
		return err
	}
	out, err := l.rank.Finish(ctx)
	if l.out.Add(out); err == nil && l.out.Refused > 0 {
		err = shard.ErrBudget
	}
	if err != nil {
		return err
	}
	if l.keep != nil {
		rank := l.rank
		l.rank = nil
		return l.done(r, l.keep(r, rank))
	}
	if err := commit(ctx, l.rank); err != nil {
		return err
	}
	l.rank = nil
	return l.done(r, nil)
}

// done notes that the rank is loaded, if err is nil.
func (l *load) done(r *RankEnd, err error) error {
	if err == nil {
		l.loaded.Ranks, l.loaded.Cursor = append(l.loaded.Ranks, *r), r.Cursor
	}
	return err
}

// commit lets lookups see the rank.
func commit(ctx context.Context, rank *shard.Replacement) error {
	shown := make(chan struct{})
	if err := rank.Commit(ctx, func() { close(shown) }); err != nil {
		return err
	}
	<-shown
	return nil
}

// abort drops what is not shown.
func (l *load) abort() {
	if l.rank != nil {
		_ = l.rank.Abort(context.Background()) // it fails for a closed space, which has nothing
	}
}
