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
	x        *Radix
	runs     map[uint32]*loaded // by number: those that runs are still to leave from
	expected int                // blocks
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
// the index. About as many blocks as expected will come, of all loaders together: an empty directory has room for
// them at once, if it comes to have them.
func (x *Radix) NewLoader(expected int) *Loader {
	return &Loader{x: x, runs: make(map[uint32]*loaded), expected: expected}
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
	x.expectHashes(r, n)
	x.putHashes(r, 0, p.Engine[:n])
	b := x.newBody(newContent(p.Local, int(n)), n)
	es := x.entries[:0]
	for _, held := range p.Held {
		es = append(es, entry(held.Holder, held.Blocks))
	}
	x.entries = es
	r.publish(b)
	for _, held := range p.Held {
		hs := x.holder(held.Holder)
		l.bound(held.Holder, hs, int(held.Blocks))
		l.reach(r, held.Holder)
		x.enterNewRun(r, held.Holder)
		hs.held[event.Device] += int(held.Blocks)
		x.total += int(held.Blocks)
	}
	x.cover(b, es)
	if x.enterLoaded {
		x.enterRange(r, 0, n)
	}
	for _, held := range p.Held {
		l.learn(r, held.Holder, 0, held.Blocks)
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
		r.awaited = min(slices.Max(p.Children), n)
		l.runs[p.Number] = &loaded{r, len(p.Children)}
	}
	return err
}

// Finish takes away the runs that nobody has anything in because the pieces that
// leave them were not added, and room that was made in vain. It is called after the last
// Add of all loaders; where a load was broken off, once the holders are cleared.
func (l *Loader) Finish() {
	for _, up := range l.runs {
		up.run.awaited = 0
		l.release(up.run)
	}
	for r := l.refused; r != nil && r != l.x.root; {
		up := r.parent
		l.release(r)
		r = up
	}
	clear(l.runs)
	l.refused = nil
	l.x.mergePending()
	l.x.dir.trim()
	l.x.enterLoaded = false
	l.x.unfilled = len(l.x.holders)
}

// release takes away what nobody has of the run, if it is still there.
func (l *Loader) release(r *run) {
	if l.x.run(r.id) != r {
		return
	}
	for _, ex := range slices.Clone(r.exceptions) {
		l.x.releasePresence(r, ex.holder, true)
		l.x.releaseHolder(ex.holder)
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
			parent.awaited = 0
			delete(l.runs, p.Parent)
		}
	} else if p.Offset != 0 {
		return nil, fmt.Errorf("%w: it leaves the root after block %d", ErrPiece, p.Offset)
	}
	b := parent.body.Load()
	if b.children.Load().find(p.Offset, p.Local[0]) != nil || p.Offset < b.len() && b.data.at(p.Offset) == p.Local[0] {
		return parent, fmt.Errorf("%w: its first block is there already", ErrPiece)
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
	l.bound(s.Holder, hs, len(s.Hashes))
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
	l.learn(ex.run, ex.holder, e.Pos, end)
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
	l.learnAbove(r, h)
	for _, p := range list {
		l.learnAbove(p, h)
		x.addDescendant(p.parent, p.off, h)
	}
}

// learnAbove notes that the holder comes to know the shared hashes of r's parent above r, unless an exception says what
// it knows there. Its presence in r is to be counted.
func (l *Loader) learnAbove(r *run, h Holder) {
	if p := r.parent; p != l.x.root && l.x.exceptionOf(p, h) == nil {
		if known, _ := l.x.ordinaryLens(p, h); known < r.off {
			l.learn(p, h, known, r.off)
		}
	}
}

// bound makes the holder dense before it has too many hashes for a sparse one, or for one that becomes dense later on. It is
// mostly not the only one, so all that was loaded is entered then, and what will be: whom that concerns needs nothing else.
func (l *Loader) bound(h Holder, hs *holderState, more int) {
	x := l.x
	for _, n := range hs.held {
		more += n
	}
	if hs.filter == nil || more <= x.maxSparse*3/2 {
		return
	}
	if !x.enterLoaded {
		x.enterLoaded = true
		x.dir.reserve(min(l.expected, maxSegs*segBlocks))
		for id := range uint32(x.runs.len()) {
			if r := x.made(id); r != nil {
				x.enterRange(r, 0, r.body.Load().len())
			}
		}
	}
	if x.dups.n > 0 { // it is to be noted of some hashes that it has them
		x.makeDense(h, hs)
	} else {
		x.dropFilter(hs)
	}
}

// learn notes that the holder comes to know the shared hashes at lo … hi-1 of r. What a sparse one has in
// its filter is found when it is asked for the first time.
func (l *Loader) learn(r *run, h Holder, lo, hi uint32) {
	x, hs := l.x, l.x.holders[h]
	if hs.filter != nil {
		hs.unfiltered = true
	} else {
		x.learn(h, hs, r, lo, hi)
	}
}
