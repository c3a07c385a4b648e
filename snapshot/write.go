package snapshot

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Options bound the memory and the steps of writing and reading. Zero in a
// field means the stated default.
type Options struct {
	// ChunkBytes is about the size of a chunk, raw; default 1 MiB.
	ChunkBytes int
	// MaxBuffered is how many bytes a writer keeps that are not written yet,
	// and how many of a file are kept that are not loaded yet; default 128 MiB.
	MaxBuffered int64
	// Slice is how much of the index is given out at a time, in blocks and
	// holders; lookups never wait for it, batches do; default 8192.
	Slice int
}

func (o Options) withDefaults() Options {
	o.ChunkBytes = cmp.Or(max(o.ChunkBytes, 0), 1<<20)
	o.MaxBuffered = cmp.Or(max(o.MaxBuffered, 0), 128<<20)
	o.Slice = cmp.Or(max(o.Slice, 0), 8192)
	return o
}

// ErrTooSlow is of a snapshot that was given up because the index changed
// faster than it could be written.
var ErrTooSlow = errors.New("the index changes faster than its snapshot can be written")

var errOnce = errors.New("snapshot: a Writer begins once, and then writes once")

// Writer writes one snapshot of a space: Begin, then Write or Close.
type Writer struct {
	sp      *shard.Space
	opts    Options
	cut     *shard.Cut // nil before Begin
	written bool
	parts   []*section

	buffered atomic.Int64 // bytes of chunks that are being filled or wait
	overflow atomic.Bool
	freed    chan struct{} // holds a token when buffered fell
}

// section is the chunks of one shard on their way to the file.
type section struct {
	number  int
	filling *chunk // the shard owner's
	last    uint32 // number of the last run in it

	mu struct {
		sync.Mutex
		full  []*chunk // waiting, oldest first
		spare []*chunk
		ended bool
	}
	wake chan struct{}
}

// NewWriter returns a Writer for the space.
func NewWriter(sp *shard.Space, opts Options) *Writer {
	w := &Writer{sp: sp, opts: opts.withDefaults(), freed: make(chan struct{}, 1)}
	for i := range sp.Shards() {
		w.parts = append(w.parts, &section{number: i, filling: new(chunk), wake: make(chan struct{}, 1)})
	}
	return w
}

// Begin fixes the moment that the snapshot is of: after all batches that were
// given to the space before the call. From it on the writer keeps what changes;
// Write is due soon, or Close.
func (w *Writer) Begin(ctx context.Context) error {
	if w.cut != nil {
		return errOnce
	}
	cut, err := w.sp.BeginCut(ctx, w.addRun)
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	w.cut = cut
	return nil
}

// Begun waits until everything before that moment is applied.
func (w *Writer) Begun() {
	if w.cut != nil {
		w.cut.Begun()
	}
}

// addRun is called by a shard's owner with a run that is given out.
func (w *Writer) addRun(shard int, p *core.Piece) {
	if w.overflow.Load() {
		return
	}
	s := w.parts[shard]
	before := s.filling.size()
	s.filling.appendRun(p, s.last)
	s.last = p.Number
	size := s.filling.size()
	if w.buffered.Add(int64(size-before)) > w.opts.MaxBuffered || size > maxPart/2 {
		w.overflow.Store(true)
	}
	if size >= w.opts.ChunkBytes {
		s.seal()
	}
}

// seal passes on the chunk that was being filled. Only the owner calls it while
// the cut goes on.
func (s *section) seal() {
	if s.filling.size() == 0 {
		return
	}
	s.mu.Lock()
	s.mu.full = append(s.mu.full, s.filling)
	s.filling = new(chunk)
	if n := len(s.mu.spare); n > 0 {
		s.filling = s.mu.spare[n-1]
		s.mu.spare = s.mu.spare[:n-1]
	}
	s.mu.Unlock()
	s.last = 0
	s.signal()
}

func (s *section) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns the next full chunk; nil when there are no more, or ctx ends.
func (s *section) next(ctx context.Context) *chunk {
	for {
		s.mu.Lock()
		if len(s.mu.full) > 0 {
			c := s.mu.full[0]
			s.mu.full[0] = nil
			s.mu.full = s.mu.full[1:]
			s.mu.Unlock()
			return c
		}
		ended := s.mu.ended
		s.mu.Unlock()
		if ended {
			return nil
		}
		select {
		case <-s.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// maxSpare is how many chunks' memory a section keeps for its next ones.
const maxSpare = 4

func (s *section) reuse(c *chunk) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.spare) < maxSpare {
		c.meta, c.words = c.meta[:0], c.words[:0]
		s.mu.spare = append(s.mu.spare, c)
	}
}

// Close ends the work on a snapshot, written or not.
func (w *Writer) Close() {
	if w.cut != nil {
		w.cut.End()
	}
}

// Write writes the snapshot to out and returns what it has. m.Ranks are the
// ranks that it is to have, with their ids as of Begin and without Holder;
// Write finds that. What was written is not a snapshot unless Write succeeds.
func (w *Writer) Write(ctx context.Context, out io.Writer, m Meta) (*Footer, error) {
	if w.cut == nil || w.written {
		return nil, errOnce
	}
	w.written = true
	defer w.Close()
	w.cut.Begun()
	m.Sections = len(w.parts)
	m.number(w.cut.Ranks())
	f := &file{to: m.holders(), meta: &m}
	var err error
	if f.out, err = newChunkWriter(out); err != nil {
		return nil, err
	}
	if f.packer, err = newPacker(); err != nil {
		return nil, err
	}
	text, err := json.Marshal(&m)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if err := f.put(f.packer, &chunk{kind: kindMeta, meta: text}); err != nil {
		return nil, err
	}

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var working sync.WaitGroup
	for _, s := range w.parts {
		working.Go(func() {
			if err := w.work(ctx, s, f); err != nil {
				cancel(err)
			}
		})
	}
	if err := w.giveOut(ctx); err != nil {
		cancel(err)
	}
	w.cut.End() // from here on the chunks being filled are nobody's but ours
	for _, s := range w.parts {
		s.seal()
		s.mu.Lock()
		s.mu.ended = true
		s.mu.Unlock()
		s.signal()
	}
	working.Wait()
	switch {
	case w.overflow.Load():
		return nil, fmt.Errorf("snapshot: %w: %d bytes wait; give it more memory, or faster storage", ErrTooSlow, w.opts.MaxBuffered)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("snapshot: %w", context.Cause(ctx))
	}
	return f.finish(w.cut.Inferred(), w.cut.Groups(), w.opts.ChunkBytes)
}

// lead is how many chunks of each section may be filled before they are written: the
// one that is being filled, and enough for the writer to go on. What is buffered beyond
// them only takes memory, and room that changes of the index need.
const lead = 4

// giveOut has the shards give out the cut, slice by slice.
func (w *Writer) giveOut(ctx context.Context) error {
	most := min(w.opts.MaxBuffered/2, int64(lead*w.opts.ChunkBytes*len(w.parts)))
	for {
		for w.buffered.Load() > most && !w.overflow.Load() {
			select {
			case <-w.freed:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if w.overflow.Load() {
			return ErrTooSlow
		}
		done, err := w.cut.Next(ctx, w.opts.Slice, func(int) {})
		if done || err != nil {
			return err
		}
	}
}

// yieldAfter is about half a millisecond's counting.
const yieldAfter = 1 << 15

// work counts, packs and writes a section's chunks.
func (w *Writer) work(ctx context.Context, s *section, f *file) error {
	p, err := newPacker()
	if err != nil {
		return err
	}
	count := newCounter(f.meta)
	var dec decoder
	work := 0
	for c := s.next(ctx); c != nil; c = s.next(ctx) {
		c.kind, c.section = kindRuns, s.number
		size := int64(c.size())
		runs, err := dec.decodeRuns(c, f.to)
		if err != nil {
			return err // a bug: it is what this program has just written
		}
		for i := range runs {
			if err := count.add(&runs[i]); err != nil {
				return err
			}
			// The index goes first: its owners are not to wait for a processor
			// until the scheduler takes it away from here.
			if work += len(runs[i].Local) * (1 + len(runs[i].Held)); work > yieldAfter {
				work = 0
				runtime.Gosched()
			}
		}
		if err := f.put(p, c); err != nil {
			return err
		}
		s.reuse(c)
		w.buffered.Add(-size)
		select {
		case w.freed <- struct{}{}:
		default:
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.footer.add(&count.sum)
	return nil
}

// file is what the sections write to.
type file struct {
	meta   *Meta
	to     []core.Holder
	packer *packer

	mu     sync.Mutex // guards out and footer
	out    *chunkWriter
	footer Footer
}

func (f *file) put(p *packer, c *chunk) error {
	packed := p.pack(c)
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.write(packed, c.size())
}

// finish writes what follows the runs.
func (f *file) finish(inferred []map[core.Holder][]uint64, groups [][]shard.CutGroups, chunkBytes int) (*Footer, error) {
	for s, ranks := range groups {
		if err := f.groups(s, ranks, chunkBytes); err != nil {
			return nil, err
		}
	}
	for s, byHolder := range inferred {
		c := &chunk{kind: kindInferred, section: s}
		for _, h := range slices.Sorted(maps.Keys(byHolder)) {
			if holderTo(f.to, h) != noHolder {
				c.appendInferred(h, byHolder[h])
			}
		}
		if c.size() == 0 {
			continue
		}
		if err := f.put(f.packer, c); err != nil {
			return nil, err
		}
	}
	f.footer.Chunks, f.footer.Raw = f.out.chunks, f.out.raw
	text, err := json.Marshal(&f.footer)
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	if err := f.put(f.packer, &chunk{kind: kindFooter, meta: text}); err != nil {
		return nil, err
	}
	return &f.footer, nil
}

// groups writes what ranks hold in their cache groups. Each is named first, as it may hold
// nothing there.
func (f *file) groups(section int, ranks []shard.CutGroups, chunkBytes int) error {
	c := &chunk{kind: kindGroups, section: section}
	count := newCounter(f.meta)
	put := func() error {
		err := f.put(f.packer, c)
		c.meta, c.words = c.meta[:0], c.words[:0]
		return err
	}
	for _, rank := range ranks {
		at := holderTo(f.to, rank.Holder)
		if at == noHolder {
			continue
		}
		c.appendGroups(rank.Holder, &event.Event{}, nil)
		for i := range rank.Blocks {
			d := &rank.Blocks[i]
			c.appendGroups(rank.Holder, &d.Event, d.Copies)
			count.addGroup(at, &d.Event, d.Copies)
			if c.size() >= chunkBytes {
				if err := put(); err != nil {
					return err
				}
			}
		}
	}
	f.footer.add(&count.sum)
	if c.size() == 0 {
		return nil
	}
	return put()
}

// number gives the ranks their holders' numbers. Ranks without blocks have
// none and become Idle.
func (m *Meta) number(present []shard.CutRank) {
	holder := make(map[shard.RankID]core.Holder, len(present))
	for _, r := range present {
		holder[r.RankID] = r.Holder
	}
	all := m.Ranks
	m.Ranks = nil
	for _, r := range all {
		h, ok := holder[r.ID()]
		if r.Holder = h; ok {
			m.Ranks = append(m.Ranks, r)
		} else {
			m.Idle = append(m.Idle, r)
		}
	}
	for _, r := range present {
		if r.Pool() { // of which no stream tells
			m.Ranks = append(m.Ranks, Publisher{Holder: r.Holder, Worker: r.Worker, DPRank: r.DPRank})
		}
	}
	slices.SortFunc(m.Ranks, func(a, b Publisher) int { return int(a.Holder) - int(b.Holder) })
}
