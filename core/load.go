package core

import (
	"errors"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// Loader rebuilds the runs of a [Cut] in an index. It belongs to the writer.
// What it adds is there for readers at once, chain by chain.
//
// A run of the cut becomes a run here, as the cut's index had it: nothing is compared,
// divided or merged, which is what makes a load faster than the stores that it stands
// for. It also means that Add believes little: a piece that no cut gives, such as one
// that begins with the same block as another run of its parent, would break what lookups
// rely on, so it is refused.
type Loader struct {
	x    *Radix
	runs map[uint32]*loaded // by number: those that runs are still to leave from
	// closed has the positions of runs whose shared hash leads to so many positions
	// that it must be told who knows it there (closedBlocks).
	closed map[*run][]uint32
	// refused is the lowest run that the last refused piece reached: what hangs on
	// the piece alone, there and above, nobody may have.
	refused *run
}

type loaded struct {
	run  *run
	left int // runs that may still leave from it
}

// ErrPiece is wrapped by the errors for pieces that are of no cut.
var ErrPiece = errors.New("not a piece of a cut")

// ErrFull is returned where a piece does not fit into the index.
var ErrFull = errors.New("the index is full")

// NewLoader returns a loader. The holders that it will add must have nothing in
// the index. About as many blocks as expected will come, of all loaders together:
// an empty index makes room for them at once.
func (x *Radix) NewLoader(expected int) *Loader {
	x.dir.reserve(min(expected, maxSegs*segBlocks))
	return &Loader{x: x, runs: make(map[uint32]*loaded), closed: make(map[*run][]uint32)}
}

// Add adds a piece, whose Parent was added before. After an error the index has
// a part of it: what the holders have must be cleared.
func (l *Loader) Add(p *Piece) error {
	x := l.x
	parent, err := l.check(p)
	if l.refused = parent; err != nil {
		return err
	}
	if x.arena.inUse+len(p.Engine)/segBlocks+1 >= maxSegs {
		return ErrFull
	}
	n := uint32(len(p.Local))
	r := x.newRun(parent, p.Offset, p.Local[0])
	l.enterHashes(r, p.Engine)
	b := x.newBody(newContent(p.Local), n)
	es := x.entries[:0]
	for _, held := range p.Held {
		es = append(es, entry(held.Holder, held.Blocks))
	}
	x.entries = es
	r.publish(b)
	for _, held := range p.Held {
		hs := x.holder(held.Holder)
		l.reach(r, held.Holder)
		x.enterNewRun(r, held.Holder)
		hs.held[event.Device] += int(held.Blocks)
		x.total += int(held.Blocks)
	}
	x.cover(b, es)
	for _, held := range p.Held {
		l.noteKnows(r, held.Holder, held.Blocks)
	}
	for i := range p.Exceptions {
		if err = l.addException(r, &p.Exceptions[i], len(p.Children) > 0); err != nil {
			break
		}
	}
	x.attach(r)
	if l.refused = nil; err != nil {
		l.refused = r
	}
	if len(p.Children) > 0 {
		l.runs[p.Number] = &loaded{r, len(p.Children)}
	}
	return err
}

// Finish takes away the runs that nobody has anything in because the pieces that
// leave them were not added, and room that was made in vain. It is called after the last
// Add of all loaders; where a load was broken off, once the holders are cleared.
func (l *Loader) Finish() {
	for _, up := range l.runs {
		l.release(up.run)
	}
	for r := l.refused; r != nil && r != l.x.root; {
		up := r.parent
		l.release(r)
		r = up
	}
	clear(l.runs)
	l.refused = nil
	clear(l.closed)
	l.x.mergePending()
	l.x.dir.trim()
}

// release takes away what nobody has of the run, if it is still there.
func (l *Loader) release(r *run) {
	if l.x.run(r.id) != r {
		return
	}
	for _, ex := range slices.Clone(r.exceptions) {
		l.x.releasePresence(r, ex.holder, true)
	}
	l.x.shrink(r)
}

// check returns the run that the piece leaves, or why it is a piece of no cut. A parent is
// forgotten with the last run that leaves it, so that memory goes with what is still to
// come, not with what was loaded.
func (l *Loader) check(p *Piece) (*run, error) {
	n := len(p.Local)
	if n == 0 || len(p.Engine) != n || n >= 1<<blockBits || len(p.Held)+len(p.Exceptions) == 0 && len(p.Children) == 0 {
		return nil, fmt.Errorf("%w: %d blocks, %d engine hashes, nobody has any", ErrPiece, n, len(p.Engine))
	}
	for i, held := range p.Held {
		if held.Blocks == 0 || int(held.Blocks) > n || i > 0 && held.Holder <= p.Held[i-1].Holder {
			return nil, fmt.Errorf("%w: %d of %d blocks held by holder %d", ErrPiece, held.Blocks, n, held.Holder)
		}
	}
	parent := l.x.root
	if p.Parent != 0 {
		up := l.runs[p.Parent]
		if up == nil || p.Offset == 0 || p.Offset > up.run.body.Load().len() {
			return nil, fmt.Errorf("%w: it leaves run %d after block %d", ErrPiece, p.Parent, p.Offset)
		}
		parent = up.run
		if up.left--; up.left == 0 {
			delete(l.runs, p.Parent)
		}
	} else if p.Offset != 0 {
		return nil, fmt.Errorf("%w: it leaves the root after block %d", ErrPiece, p.Offset)
	}
	if parent.body.Load().children.Load().find(p.Offset, p.Local[0]) != nil {
		return parent, fmt.Errorf("%w: another run begins with its first block", ErrPiece)
	}
	if l.runs[p.Number] != nil {
		return parent, fmt.Errorf("%w: run %d is there already", ErrPiece, p.Number)
	}
	return parent, nil
}

// addException adds what a holder has of a run beyond the ordinary, hash by hash. It is
// checked as a whole before anything of it is added.
func (l *Loader) addException(r *run, s *PieceException, above bool) error {
	x, b := l.x, r.body.Load()
	n := b.len()
	if x.exceptionOf(r, s.Holder) != nil || b.heldLen(0, s.Holder) > 0 {
		return fmt.Errorf("%w: holder %d is named twice", ErrPiece, s.Holder)
	}
	holds := above // hashes without copies hang on what is below
	last := uint32(0)
	for i := range s.Hashes {
		e := &s.Hashes[i]
		if e.Pos >= n || e.More >= n-e.Pos || e.Pos < last || e.More > 0 && (!e.Shared || slices.Max(e.Copies[:]) > 1) {
			return fmt.Errorf("%w: a hash of block %d of %d, and %d more", ErrPiece, e.Pos, n, e.More)
		}
		last = e.Pos + e.More
		holds = holds || e.Copies != [event.NumTiers]uint32{}
	}
	if !holds {
		return fmt.Errorf("%w: holder %d has nothing of it", ErrPiece, s.Holder)
	}
	hs := x.holder(s.Holder)
	l.reach(r, s.Holder)
	ex := x.makeException(r, s.Holder)
	for i := range s.Hashes {
		e := &s.Hashes[i]
		if e.Shared {
			l.addShared(ex, hs, e)
			continue
		}
		at := x.addOwnHash(ex, e.Pos, e.Engine)
		for t, copies := range e.Copies {
			if copies == 0 {
				continue
			}
			if ex.copiesOf(at, t, e.Pos) == 0 {
				hs.held[t]++
				x.total++
			}
			ex.setCopies(at, t, e.Pos, copies)
		}
	}
	x.recomputeBytes(ex)
	x.recomputeCoverage(ex, 0, n)
	return nil
}

// addShared adds shared hashes of a run to what a holder has of it.
func (l *Loader) addShared(ex *exception, hs *holderState, e *PieceHash) {
	x, shared, end := l.x, &ex.layers[0], e.Pos+e.More+1
	for pos := e.Pos; x.dups.n > 0 && pos < end; pos++ {
		b := ex.run.block(pos)
		x.noteKnows(ex.holder, x.arena.at(b), b)
	}
	shared.nKnown += shared.known.set(e.Pos, end)
	for t, copies := range e.Copies {
		if copies == 0 {
			continue
		}
		n := shared.hold(t, e.Pos, end, false)
		hs.held[t] += n
		x.total += n
		if copies > 1 {
			ex.setCopies(spot{}, t, e.Pos, copies)
		}
	}
}

// Infer marks the blocks that the holder holds on the device by these hashes as
// inferred; those that it does not hold are passed over. It is called after
// the last Add.
func (l *Loader) Infer(h Holder, hashes []uint64) {
	x := l.x
	hs := x.state(h)
	if hs == nil {
		return
	}
	s := store{Radix: x, h: h, hs: hs}
	x.mem.Holders -= hs.inferred.bytes(8)
	for _, e := range hashes {
		if p, ok := x.lookup(h, e); ok && s.holdsAt(p) {
			hs.inferred.set(e, struct{}{})
		}
	}
	x.mem.Holders += hs.inferred.bytes(8)
}

// reach makes the holder present in the ancestors of r that it has nothing in
// and nothing below yet: they are what its hashes of r's blocks hang on.
func (l *Loader) reach(r *run, h Holder) {
	x := l.x
	var absent [16]*run
	list := absent[:0]
	for p := r.parent; p != x.root && !x.present(p, h); p = p.parent {
		list = append(list, p)
	}
	l.noteKnows(r.parent, h, r.off)
	for _, p := range list {
		x.addDescendant(p.parent, p.off, h)
		l.noteKnows(p.parent, h, p.off)
	}
}

// noteKnows notes that the holder comes to know the first n shared hashes of the run,
// unless an exception says what it knows there.
func (l *Loader) noteKnows(r *run, h Holder, n uint32) {
	if len(l.closed) == 0 || l.x.exceptionOf(r, h) != nil {
		return
	}
	for _, pos := range l.closed[r] {
		if pos < n {
			b := r.block(pos)
			l.x.noteKnows(h, l.x.arena.at(b), b)
		}
	}
}

// enterHashes makes them the shared hashes of the new run r.
func (l *Loader) enterHashes(r *run, hashes []uint64) {
	x := l.x
	x.expectHashes(r, uint32(len(hashes)))
	now, ahead := x.spare[0], x.spare[1]
	batch := hashes[:min(probeHashes, len(hashes))]
	x.dir.locate(now, batch)
	for pos := uint32(0); len(batch) > 0; {
		// The next batch's cache misses pass while this one is entered.
		after := hashes[int(pos)+len(batch):]
		after = after[:min(probeHashes, len(after))]
		x.dir.locate(ahead, after)
		x.addHashes(r, pos, batch, &now.blocks)
		n := x.dir.insertAll(now, batch)
		for i, e := range batch[n:] {
			x.enter(nobody, e, now.blocks[n+i])
			if f, _ := x.dups.get(e); f.closed != nil {
				l.closed[r] = append(l.closed[r], pos+uint32(n+i))
			}
		}
		pos += uint32(len(batch))
		if ahead.gen != x.dir.gen {
			x.dir.locate(ahead, after)
		}
		now, ahead, batch = ahead, now, after
	}
}
