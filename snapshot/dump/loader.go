package dump

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kvatlas/kvatlas/shard"
)

// Loader loads a dump that may come in several parts, each from a Cursor on,
// and shows nothing of it before all of it is there. Its ranks are those whose
// position the dump says: others are read from elsewhere, and left out. Commit
// or Abort ends it.
type Loader struct {
	open   func(h *Header) (*shard.Space, error)
	header *Header // of the first part
	ranks  []RankEnd
	hidden []*shard.Replacement
	cursor string
	ended  bool
	told   func(r *RankEnd)
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
// error Abort is due.
func (l *Loader) Read(ctx context.Context, in io.Reader) error {
	if l.ended {
		return errors.New("dump: it is complete already")
	}
	part := &load{open: l.begin, keep: l.keep}
	err := part.read(ctx, in)
	l.ended = err == nil
	return err
}

// begin checks a part's header against the first one's.
func (l *Loader) begin(h *Header) (*shard.Space, error) {
	switch f := l.header; {
	case h.Cursor != l.cursor:
		return nil, fmt.Errorf("%w: it goes on after %q, and %q was asked for", ErrDamaged, h.Cursor, l.cursor)
	case f == nil:
		l.header = h
	case h.Space() != f.Space() || h.HashScheme != f.HashScheme || (h.Stream == nil) != (f.Stream == nil) ||
		f.Stream != nil && (!h.Stream.Created.Equal(f.Stream.Created) || h.Stream.Seq < f.Stream.Seq):
		return nil, fmt.Errorf("%w: its parts are of different dumps", ErrDamaged)
	}
	return l.open(h)
}

func (l *Loader) keep(r *RankEnd, rank *shard.Replacement) error {
	l.cursor = r.Cursor
	switch {
	case r.Position == nil && rank != nil:
		return rank.Abort(context.Background())
	case r.Position == nil:
		return nil
	case rank != nil:
		l.hidden = append(l.hidden, rank)
	}
	l.ranks = append(l.ranks, *r)
	if l.told != nil {
		l.told(r)
	}
	return nil
}

// Commit shows the ranks to lookups.
func (l *Loader) Commit(ctx context.Context) error {
	if !l.ended {
		return ErrTruncated
	}
	for len(l.hidden) > 0 {
		if err := commit(ctx, l.hidden[0]); err != nil {
			return err
		}
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
