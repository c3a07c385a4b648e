package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/shard"
)

// Info is what a snapshot says of itself.
type Info struct {
	Meta   Meta   `json:"meta"`
	Footer Footer `json:"footer"`
	Bytes  uint64 `json:"bytes"` // of the file
}

// scan reads a file to its end, checks every chunk and calls each with those of
// runs, inferred hashes and cache groups. The memory of the chunk as it stands is each's until it
// returns, and longer if it gives the reader other.
//
// Nothing of a file is believed before it is checked: each chunk's checksum goes on from
// the one before, the first one says what the file is, and only the footer, which counts
// the others, says that none is missing. What each did until then may have been done for a damaged file, so it
// must be undone on an error.
func scan(r io.Reader, begin func(m *Meta) error, each func(s stored, u *chunkReader) error) (*Info, error) {
	cr, err := newChunkReader(r)
	if err != nil {
		return nil, err
	}
	info := new(Info)
	var meta *Meta
	for raw := uint64(0); ; info.Footer.Chunks++ {
		s, err := cr.next()
		if err != nil {
			return nil, err
		}
		first := info.Footer.Chunks == 0
		if first != (s.kind == kindMeta) {
			return nil, fmt.Errorf("%w: its description is not where it belongs", ErrDamaged)
		}
		switch s.kind {
		case kindMeta:
			var c chunk
			if err := cr.unpack(&s, &c); err != nil {
				return nil, err
			}
			if meta, err = decodeMeta(c.meta); err != nil {
				return nil, err
			}
			info.Meta = *meta
			if err := begin(meta); err != nil {
				return nil, err
			}
		case kindRuns, kindInferred, kindGroups:
			if s.section >= meta.Sections {
				return nil, fmt.Errorf("%w: section %d of %d", ErrDamaged, s.section, meta.Sections)
			}
			if err := each(s, cr); err != nil {
				return nil, err
			}
		case kindFooter:
			var c chunk
			if err := cr.unpack(&s, &c); err != nil {
				return nil, err
			}
			chunks := info.Footer.Chunks
			if err := json.Unmarshal(c.meta, &info.Footer); err != nil {
				return nil, fmt.Errorf("%w: its footer: %w", ErrDamaged, err)
			}
			if info.Footer.Chunks != chunks || info.Footer.Raw != raw {
				return nil, fmt.Errorf("%w: %d chunks of %d bytes, the footer says %d of %d", ErrDamaged, chunks, raw, info.Footer.Chunks, info.Footer.Raw)
			}
			if err := cr.end(); err != nil {
				return nil, err
			}
			info.Bytes = cr.read
			return info, nil
		default:
			return nil, fmt.Errorf("%w: it has chunks of kind %d", ErrVersion, s.kind)
		}
		raw += uint64(s.raw[0] + s.raw[1])
	}
}

// Check reads a snapshot to its end and checks that it is whole and unchanged,
// without looking into its runs.
func Check(r io.Reader) (*Info, error) {
	return scan(r, func(*Meta) error { return nil }, func(stored, *chunkReader) error { return nil })
}

// Unpack does as Check, and unpacks every chunk: the least that a restore does.
func Unpack(r io.Reader) (*Info, error) {
	var c chunk
	return scan(r, func(*Meta) error { return nil }, func(s stored, cr *chunkReader) error { return cr.unpack(&s, &c) })
}

// Verify does as Check, and counts the runs: the digest is that of what the
// file has.
func Verify(r io.Reader) (*Info, error) {
	var count []*counter
	var to []core.Holder
	var m memory
	info, err := scan(r, func(m *Meta) error {
		to = m.holders()
		for range m.Sections {
			count = append(count, newCounter(m))
		}
		return nil
	}, func(s stored, cr *chunkReader) error {
		if err := cr.unpack(&s, &m.unpacked); err != nil {
			return err
		}
		switch s.kind {
		case kindInferred:
			return decodeInferred(&m.unpacked, to, func(core.Holder, []uint64) error { return nil })
		case kindGroups:
			return decodeGroups(&m.unpacked, to, func(h core.Holder, ev *event.Event, copies []uint32) error {
				count[s.section].addGroup(h, ev, copies)
				return nil
			})
		}
		runs, err := m.runs.decodeRuns(&m.unpacked, to)
		for i := range runs {
			if err == nil {
				err = count[s.section].add(&runs[i])
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var sum Footer
	for _, c := range count {
		sum.add(&c.sum)
	}
	sum.Chunks, sum.Raw = info.Footer.Chunks, info.Footer.Raw
	if sum != info.Footer {
		return nil, fmt.Errorf("%w: it has %+v, its footer says %+v", ErrDamaged, sum, info.Footer)
	}
	return info, nil
}

// Restore checks the snapshot and then loads it into the space, which must be
// new: all of it, or nothing. accept, if not nil, is asked before anything is
// loaded whether it is the one that is meant; its error ends it. progress, if not nil,
// is called with how many of the file's bytes are read of how many, and how many blocks
// were in them; its calls follow each other.
//
// The file is read twice, as to load a whole index from a damaged one only to drop it
// again would cost more than to read a file that is in the page cache by then.
func Restore(ctx context.Context, f io.ReadSeeker, sp *shard.Space, opts Options,
	accept func(*Info) error, progress func(done, total, blocks uint64),
) (*Info, error) {
	checked, err := Check(f)
	if err != nil {
		return nil, err
	}
	if accept != nil {
		if err := accept(checked); err != nil {
			return nil, err
		}
	}
	if event.Space(checked.Meta.Space) != sp.Key() {
		return nil, fmt.Errorf("restoring a snapshot of model %q, block size %d, group %q into another space", checked.Meta.Space.Model,
			checked.Meta.Space.BlockSize, checked.Meta.Space.Group)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, fmt.Errorf("reading a snapshot: %w", err)
	}
	ids := make([]shard.RankID, len(checked.Meta.Ranks))
	for i := range ids {
		ids[i] = checked.Meta.Ranks[i].ID()
	}
	// Each block is at least the eight bytes of its hash, so what is not there takes no memory.
	l, err := sp.BeginLoad(ids, checked.Meta.Sections, int(min(checked.Footer.Blocks, checked.Bytes/8)))
	if err != nil {
		return nil, fmt.Errorf("restoring a snapshot: %w", err)
	}
	info, err := load(ctx, f, l, opts.withDefaults(), func(done, blocks uint64) {
		if progress != nil {
			progress(done, checked.Bytes, blocks)
		}
	})
	if err == nil && (info.Footer != checked.Footer || info.Bytes != checked.Bytes) {
		err = fmt.Errorf("%w: it changed while it was read", ErrDamaged)
	}
	if err == nil {
		err = l.Finish(ctx)
	}
	if err == nil {
		err = l.Commit(ctx)
	}
	if err != nil {
		l.Abort()
		if errors.Is(err, core.ErrPiece) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil, err
	}
	return info, nil
}

// memory is what a chunk takes on its way: as it stands, what of it is unpacked, and runs, whose
// words are in these. It is used again, as a load leaves little else for the garbage collector.
type memory struct {
	file     []byte
	unpacked chunk
	runs     decoder
}

// ahead is how many chunks of each section are on their way at most: one that is read, one
// that is decoded, one that is loaded, and one for who is first. More only take memory.
const ahead = 4

// load decodes the file's chunks, each section beside the others, and has the
// shards load them.
//
// One goroutine reads, one for each section decodes: a run's parent is in its section
// before it, so a section stays in order, and no two depend on each other. room bounds
// what is read and not loaded yet: a chunk's share is taken by the reader and given back
// once the shards are done with it, or by whoever drops it. The first error cancels the
// rest, which is then drained.
func load(ctx context.Context, r io.Reader, l *shard.Load, opts Options, progress func(done, blocks uint64)) (info *Info, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var to []core.Holder
	var working, loading sync.WaitGroup
	type owned struct {
		stored
		in *memory
	}
	var queues []chan owned
	var spare sync.Pool // of *memory
	var blocks atomic.Uint64
	var free room
	info, err = scan(r, func(m *Meta) error {
		to = m.holders()
		queues = make([]chan owned, m.Sections)
		free = newRoom(min(opts.MaxBuffered, int64(ahead*m.Sections)*2*int64(opts.ChunkBytes)))
		return nil
	}, func(s stored, cr *chunkReader) error {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if !free.acquire(ctx, s.size()) {
			return context.Cause(ctx)
		}
		if queues[s.section] == nil {
			q := make(chan owned, 1+1<<10/len(queues))
			queues[s.section] = q
			working.Go(func() {
				for c := range q {
					give := func() {
						free.release(c.size())
						spare.Put(c.in)
					}
					if context.Cause(ctx) != nil {
						give()
						continue
					}
					if err := loadChunk(ctx, cr, &c.stored, c.in, to, l, &blocks, &loading, give); err != nil {
						give()
						cancel(err)
					}
				}
			})
		}
		m, _ := spare.Get().(*memory)
		if m == nil {
			m = new(memory)
		}
		m.file, cr.buf = cr.buf, m.file // it is the section's now
		queues[s.section] <- owned{s, m}
		progress(cr.read, blocks.Load())
		return nil
	})
	for _, q := range queues {
		if q != nil {
			close(q)
		}
	}
	working.Wait()
	loading.Wait()
	if err == nil {
		progress(info.Bytes, blocks.Load())
	}
	if cause := context.Cause(ctx); cause != nil && err == nil {
		err = cause
	}
	return info, err
}

// loadChunk hands one chunk to the shards. If it succeeds, give is called once
// they are done with it.
func loadChunk(ctx context.Context, cr *chunkReader, s *stored, m *memory, to []core.Holder, l *shard.Load, blocks *atomic.Uint64, loading *sync.WaitGroup, give func()) error {
	if err := cr.unpack(s, &m.unpacked); err != nil {
		return err
	}
	if s.kind == kindGroups {
		err := decodeGroups(&m.unpacked, to, l.Groups)
		if err == nil {
			give()
		}
		return err
	}
	if s.kind == kindInferred {
		err := decodeInferred(&m.unpacked, to, func(h core.Holder, hashes []uint64) error { return l.Infer(ctx, h, hashes) })
		if err == nil {
			give()
		}
		return err
	}
	runs, err := m.runs.decodeRuns(&m.unpacked, to)
	if err != nil {
		return err
	}
	for i := range runs {
		blocks.Add(uint64(len(runs[i].Local)))
	}
	loading.Add(1)
	if err := l.Add(ctx, s.section, runs, func() { give(); loading.Done() }); err != nil {
		loading.Done()
		return err
	}
	return nil
}

// room bounds bytes in use, by a token for each roomUnit that is taken. Only the reader
// takes any, so that what it has taken in part is never what another waits for.
type room chan struct{}

const roomUnit = 1 << 20

func newRoom(n int64) room { return make(room, max(1, n/roomUnit)) }

// tokens is how many stand for n bytes: for more than there can be, all.
func (r room) tokens(n int64) int { return min(int((n+roomUnit-1)/roomUnit), cap(r)) }

// acquire waits for n bytes.
func (r room) acquire(ctx context.Context, n int64) bool {
	for range r.tokens(n) {
		select {
		case r <- struct{}{}:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

func (r room) release(n int64) {
	for range r.tokens(n) {
		<-r
	}
}
