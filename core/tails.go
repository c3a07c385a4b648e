package core

import "github.com/kvatlas/kvatlas/event"

// Where a holder's chains end is what its engine mostly goes on with: it appends where one of its last stores ended, the next
// turn of a conversation follows the prompt or the answer before it, and removals begin at an end, or where
// others before them stopped. So such ends are kept: to be found there costs none of the directory's cache misses, and
// those of what an engine generates need not be in the directory for a sparse holder.
//
// An end may be out of date, its block even another's by now: it counts only if the block has the hash and the holder
// knows it there, which is all that lookup promises.
type tails struct {
	hashes []uint64 // a number of them that vectors take at once
	ends   []end
	turn   int // whose place is the next one's
}

// end is the block with a tail's hash.
type end struct {
	run uint32 // 0: there is none
	pos uint32 // and notEntered
}

const (
	fewTails   = 8
	mostTails  = 128
	blocksEach = 16 // held for each tail that there is a place for

	notEntered = 1 << 31 // of an end's pos: a sparse holder has it here alone. Positions are below 1<<blockBits

	// A sparse holder has more in the directory: the last hashes of an event, as prompts that have most of one in common leave
	// it near its end, endHashes or, of fewer, tailHashes; and so many of what came one by one when there is no place for
	// its tail any more.
	tailHashes = 4
	endHashes  = 32
)

// find returns the number of the tail with the hash, or -1.
func (t *tails) find(hash uint64) int {
	if i := indexWord(t.hashes, hash); i >= 0 && t.ends[i].run != 0 {
		return i
	}
	return -1
}

func (t *tails) bytes() int64 { return 2 * sizeClass(int64(len(t.hashes))*8) }

// tailBlock returns the block of a tail, if that is not out of date.
func (x *Radix) tailBlock(t *tails, i int) (b uint32, ok bool) {
	e := t.ends[i]
	r, pos := x.made(e.run), e.pos&^notEntered
	if r == nil || pos >= r.body.Load().len() {
		return 0, false
	}
	b = r.block(pos)
	return b, x.arena.at(b) == t.hashes[i]
}

// putTail keeps an end, in the place of the oldest. What that led to is made findable without it, where an event of more
// blocks has not done so (ended).
func (x *Radix) putTail(hs *holderState, hash uint64, e end) {
	t := &hs.tails
	if n := len(t.hashes); t.turn == n {
		if n < mostTails && (n == 0 || hs.held[event.Device] >= n*blocksEach) {
			x.moreTails(t)
		} else {
			t.turn = 0
		}
	}
	i := t.turn
	t.turn++
	if old := t.ends[i]; old.pos&notEntered != 0 && hs.filter != nil {
		if _, ok := x.tailBlock(t, i); ok {
			end := old.pos&^notEntered + 1
			x.enterRange(x.run(old.run), end-min(end, tailHashes), end)
		}
	}
	t.hashes[i], t.ends[i] = hash, e
}

// moveTail has the tail of that hash, if there is one, lead to where the block is now.
func (x *Radix) moveTail(hs *holderState, hash uint64, r *run, pos uint32) bool {
	i := hs.tails.find(hash)
	if i >= 0 {
		hs.tails.ends[i] = end{r.id, pos | hs.tails.ends[i].pos&notEntered}
	}
	return i >= 0
}

// moreTails makes room for twice as many.
func (x *Radix) moreTails(t *tails) {
	old := *t
	n := max(2*len(old.hashes), fewTails)
	t.hashes, t.ends = make([]uint64, n), make([]end, n)
	copy(t.hashes, old.hashes)
	copy(t.ends, old.ends)
	x.mem.Holders += t.bytes() - old.bytes()
}

// ended notes that a store ended after o blocks of r: where its parent's chain did, if that goes on block by block.
func (s *store) ended(ev *event.Event, r *run, o uint32) {
	hash, e := s.arena.at(r.block(o-1)), end{r.id, o - 1}
	if n := uint32(len(ev.Engine)); n == 1 && ev.HasParent {
		e.pos |= notEntered
		if i := s.hs.tails.find(ev.Parent); i >= 0 {
			s.hs.tails.hashes[i], s.hs.tails.ends[i] = hash, e
			return
		}
	} else if s.hs.filter != nil {
		near := uint32(tailHashes)
		if n >= endHashes {
			near = endHashes
		}
		s.enterRange(r, o-min(o, near), o)
	}
	s.putTail(s.hs, hash, e)
}
