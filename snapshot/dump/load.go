package dump

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// maxLine is the longest line that is read, in bytes: a header with the
// positions of half a million ranks.
const maxLine = 64 << 20

// Loader loads a dump that may come in several parts, each from a Cursor on,
// and shows nothing of it before all of it is there. Its ranks are those whose
// position the dump says: others are read from elsewhere, and left out. Commit
// or Abort ends it.
type Loader struct {
	open   func(h *Header) (*shard.Space, error)
	told   func(r *RankEnd)
	header *Header // of the first part
	ranks  []RankEnd
	hidden []*shard.Replacement
	cursor string
	ended  bool
}

// NewLoader returns a Loader into the space that open returns for the header of
// each part; an error of it ends the load. told, if not nil, is called with each
// rank that is there.
func NewLoader(open func(h *Header) (*shard.Space, error), told func(r *RankEnd)) *Loader {
	return &Loader{open: open, told: told}
}

// Cursor returns after which rank the next part is to begin; "" for a first one.
func (l *Loader) Cursor() string { return l.cursor }

// Header returns the header of the first part: its position is that of the dump.
// It is nil before.
func (l *Loader) Header() *Header { return l.header }

// Ranks returns the ranks that are there.
func (l *Loader) Ranks() []RankEnd { return l.ranks }

// Read reads a part. After ErrTruncated, another part may follow; after any other
// error Abort is due. The error wraps ErrTruncated if the part ends early,
// ErrDamaged, ErrVersion, or shard.ErrBudget.
func (l *Loader) Read(ctx context.Context, in io.Reader) error {
	p := &part{Loader: l}
	defer p.abort()
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxLine)
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
		if err := p.line(ctx, &x); err != nil {
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

// Commit shows the ranks to lookups.
func (l *Loader) Commit(ctx context.Context) error {
	if !l.ended {
		return ErrTruncated
	}
	for len(l.hidden) > 0 {
		shown := make(chan struct{})
		if err := l.hidden[0].Commit(ctx, func() { close(shown) }); err != nil {
			return err
		}
		<-shown
		l.hidden = l.hidden[1:]
	}
	return nil
}

// Abort drops what is not shown.
func (l *Loader) Abort() {
	for _, rank := range l.hidden {
		_ = rank.Abort(context.Background()) // it fails for a closed space, which has nothing
	}
	l.hidden = nil
}

// part is a part that is being read.
type part struct {
	*Loader
	space *shard.Space
	count counter
	id    shard.RankID
	rank  *shard.Replacement // of id; nil between ranks

	refused int           // blocks of rank, for want of memory
	events  []event.Event // of rank, not given to the space yet
	copies  [][]uint32
	blocks  int // in events
}

func (p *part) line(ctx context.Context, x *line) (err error) {
	if (p.space == nil) != (x.Dump != nil) {
		return fmt.Errorf("%w: it does not begin with its header, or has two", ErrDamaged)
	}
	switch {
	case x.Dump != nil:
		return p.begin(x.Dump)
	case x.Stored != nil:
		return p.stored(ctx, x.Stored)
	case x.Grouped != nil:
		return p.grouped(ctx, x.Grouped)
	case x.Rank != nil:
		return p.endRank(ctx, x.Rank)
	case x.End != nil:
		if p.rank != nil || *x.End != p.count.all {
			return fmt.Errorf("%w: its end says %+v, its lines %+v", ErrDamaged, *x.End, p.count.all)
		}
		p.ended = true
	}
	return nil // a line that a later version may have
}

// begin checks the part's header, against the first one's if it is a later one.
func (p *part) begin(h *Header) (err error) {
	switch f := p.header; {
	case h.Version != Version:
		return fmt.Errorf("%w: %d; this program reads %d", ErrVersion, h.Version, Version)
	case h.Cursor != p.cursor:
		return fmt.Errorf("%w: it goes on after %q, and %q was asked for", ErrDamaged, h.Cursor, p.cursor)
	case f == nil:
		p.header = h
	case h.Space() != f.Space() || h.HashScheme != f.HashScheme || (h.Stream == nil) != (f.Stream == nil) ||
		f.Stream != nil && (!h.Stream.Created.Equal(f.Stream.Created) || h.Stream.Seq < f.Stream.Seq):
		return fmt.Errorf("%w: its parts are of different dumps", ErrDamaged)
	}
	p.count = newCounter(h.Space())
	p.space, err = p.open(h)
	return err
}

// of makes the rank the one that is read, if none is.
func (p *part) of(ctx context.Context, id shard.RankID) (err error) {
	if p.rank == nil {
		p.id, p.refused = id, 0
		if p.rank, err = p.space.Replace(ctx, id); err != nil {
			return err
		}
		p.rank.FromSnapshot()
	}
	if p.id != id {
		return fmt.Errorf("%w: rank %v begins before rank %v is complete", ErrDamaged, id, p.id)
	}
	return nil
}

func (p *part) stored(ctx context.Context, s *stored) error {
	ev := event.Event{Kind: event.Stored, DPRank: s.DPRank, Engine: s.Engine, Local: s.Local}
	if s.Parent != nil {
		ev.HasParent, ev.Parent = true, *s.Parent
	}
	return p.add(ctx, s.Worker, &ev, s.Tier, s.Copies)
}

// grouped is stored of a cache group. Those of a rank stand before its other lines.
func (p *part) grouped(ctx context.Context, g *grouped) error {
	if g.Group == 0 || g.Group >= event.MaxCacheGroups {
		return fmt.Errorf("%w: cache group %d", ErrDamaged, g.Group)
	}
	ev := event.Event{Kind: event.Stored, DPRank: g.DPRank, Group: g.Group, Engine: g.Engine, Incomplete: g.Incomplete}
	return p.add(ctx, g.Worker, &ev, g.Tier, g.Copies)
}

// add takes an event of a rank; without copies they are one of each.
func (p *part) add(ctx context.Context, worker uint64, ev *event.Event, tier string, copies []uint32) error {
	if err := p.of(ctx, shard.RankID{Worker: worker, DPRank: ev.DPRank}); err != nil {
		return err
	}
	var ok bool
	if ev.Tier, ok = event.ParseTier([]byte(tier)); !ok {
		return fmt.Errorf("%w: no tier is called %q", ErrDamaged, tier)
	}
	if copies == nil {
		copies = slices.Repeat([]uint32{1}, len(ev.Engine))
	}
	if err := p.count.add(worker, ev, copies); err != nil {
		return err
	}
	p.events, p.copies = append(p.events, *ev), append(p.copies, copies)
	if p.blocks += len(ev.Engine); p.blocks < lineBlocks {
		return nil
	}
	return p.flush(ctx)
}

// flush gives the space what waits.
func (p *part) flush(ctx context.Context) error {
	out, err := p.rank.Add(ctx, p.events, p.copies)
	p.refused += out.Refused
	p.events, p.copies, p.blocks = nil, nil, 0
	return err
}

// endRank checks a rank that is whole, and keeps it for Commit.
func (p *part) endRank(ctx context.Context, r *RankEnd) error {
	rank := p.rank
	if rank != nil && p.id != r.ID() {
		return fmt.Errorf("%w: rank %v ends before rank %v is complete", ErrDamaged, r.ID(), p.id)
	}
	if sum, groups := p.count.end(); sum != r.Sum || groups != r.Groups {
		return fmt.Errorf("%w: the line of rank %v says %+v and %+v, its events %+v and %+v", ErrDamaged, r.ID(), r.Sum, r.Groups, sum, groups)
	}
	if rank != nil {
		if err := p.flush(ctx); err != nil {
			return err
		}
		out, err := rank.Finish(ctx)
		if err == nil && p.refused+out.Refused > 0 {
			err = shard.ErrBudget
		}
		if err != nil {
			return err
		}
	}
	p.rank, p.cursor = nil, r.Cursor
	if r.Position == nil {
		if rank != nil {
			return rank.Abort(context.Background())
		}
		return nil
	}
	if rank != nil {
		p.hidden = append(p.hidden, rank)
	}
	p.ranks = append(p.ranks, *r)
	if p.told != nil {
		p.told(r)
	}
	return nil
}

// abort drops a rank that is not whole.
func (p *part) abort() {
	if p.rank != nil {
		_ = p.rank.Abort(context.Background()) // it fails for a closed space, which has nothing
	}
}
