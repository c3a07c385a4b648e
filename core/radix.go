package core

import (
	"runtime"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/hugemem"
)

// Options are the settings of a Radix. The zero value is ready.
type Options struct {
	Key Key // of the tables; for who gets events from others, a random one
	// Budget is the number of bytes beyond which the index refuses new blocks
	// of holders that hold more than an equal share of all, and, a sixteenth
	// or at least 4 MiB further on, of every holder: new blocks never take more.
	// 0 or less means no limit.
	Budget int64
	// Share is for indexes that share a budget. The writer calls it before a step, with
	// the bytes that the index has, those that the step may take, and the most that all
	// may have. It returns how many all have, and whether the step's are granted: they
	// count as taken until it is called again. nil means that the index is alone.
	Share func(have, need, most int64) (all int64, granted bool)
}

// Radix is the Index for production: run-compressed chains, read without
// locks. doc.go has the picture; run.go, cover.go and children.go say in which
// order things are published.
type Radix struct {
	key     hasher
	root    *run
	runs    paged[*run]   // by id, 0 being the root's; nil where one is gone
	freeIDs paged[uint32] // of runs that are gone
	live    int           // runs besides the root

	arena *arena
	dir   directory
	dups  keyedMap[homonyms] // further blocks of hashes that the directory has

	exceptions  keyedMap[*exception]  // by runHolderKey
	descendants keyedMap[descendants] // by runHolderKey
	holders     []*holderState
	total       int         // held blocks of all holders and tiers
	tiered      atomic.Bool // some holder has had a lower tier; never taken back

	now, ahead *probe    // of the event to be applied and the one after, if Prefetch told
	spare      [4]*probe // of what an event needs beyond that; the last two are enterRange's

	opts          Options
	mem           Memory
	states        int               // holders that there is a state of
	active        int               // those that have blocks
	dupRoom       int64             // bytes of what is in dups
	entries       []uint64          // scratch of coverage changes
	loose         thinMap[struct{}] // ids of crowded runs that may have more than is of need (tighten)
	looseIDs      []uint32          // the same, by age
	credit        int               // holders that may be looked at (spend)
	pendingMerges []uint32          // runs that may be merged when the present write is done
	sweep         sweep             // under way
	marks         uint32
	looks         uint32                 // as marks, of eachPresent
	enterLoaded   bool                   // the hashes of what Loaders add are entered, and those of all that they have added are
	some          [32 * segBlocks]uint64 // scratch of someHashes
	entering      []Holder               // who become dense
	toEnter       int                    // how many hashes they have in all
	due           int                    // and how many are to be entered next
	enteredAtOnce int
	unfilled      int // holders from the first on, of whose filters some are to be filled (catchUp)
	typical       int // hashes that the last filters have room for
	maxSparse     int // hashes that a sparse holder knows, at most
	joinedBound   int // and that one who stores little but what others have does
	sparse        int // sparse holders
	asked         int // how many filters may be asked before holders are made dense for it (enterForAll)
	turn          int // whose turn that was last
	owed          int // since Owed was last asked
	steps         int // taken in what could take many for one event: tests count them

	cut   *Cut             // under way, or nil
	dumps []*Dump          // under way; nil: none
	era   uint32           // number of the last cut
	walks map[Holder]*Walk // under way
}

var _ Index = (*Radix)(nil)

// holderState is what the writer keeps of one holder.
type holderState struct {
	runs  paged[uint32] // ids of the runs it has blocks in; may be out of date (see sweep)
	live  int           // the number of those runs
	held  [event.NumTiers]int
	tails tails

	leaving bool // it is cleared, and counts no more; see ClearSome

	last, lastPos uint32 // run and position where the last removal ended

	inferred thinMap[struct{}] // hashes whose device copy is inferred

	filter     *filter // of the hashes that it knows; nil if it is dense (sparse.go)
	entering   entering
	unfiltered bool  // the filter lacks some, and is made anew before it is asked
	saved      int   // how many hashes it may have looked at in searches
	fresh      int64 // blocks that it was the first to store
	joins      bool  // it is dense as it stores little but what others have
	joined     int64 // those that others had
}

// NewRadix returns an empty index.
func NewRadix(opts Options) *Radix {
	key := opts.Key.hasher()
	opts.Budget = max(opts.Budget, 0)
	x := &Radix{
		opts:          opts,
		maxSparse:     maxSparse,
		enteredAtOnce: enteredAtOnce,
		joinedBound:   joinedBound,
		asked:         mostAsked,
		key:           key,
		dups:          keyedMap[homonyms]{entry: 40, key: key},
		exceptions:    keyedMap[*exception]{entry: 16, key: key},
		descendants:   keyedMap[descendants]{entry: descendantsBytes, key: key},
		arena:         &arena{stock: new(hugemem.Stock)},
		now:           &probe{},
		ahead:         &probe{},
		spare:         [4]*probe{{}, {}, {}, {}},
	}
	x.dir.key, x.dir.arena, x.dir.pages = key, x.arena, &pages{stock: x.arena.stock}
	// Readers have no part in these two; so when the index is out of reach,
	// so is what they mapped.
	runtime.AddCleanup(x, func(a *arena) { a.reset() }, x.arena)
	runtime.AddCleanup(x, func(p *pages) { p.reset() }, x.dir.pages)
	x.root = &run{}
	x.runs.add(x.root)
	x.root.body.Store(&body{})
	return x
}

// state returns what is kept of a holder; nil if it has nothing.
func (x *Radix) state(h Holder) *holderState {
	if int(h) >= len(x.holders) {
		return nil
	}
	return x.holders[h]
}

// Empty implements Index.
func (x *Radix) Empty(h Holder) bool {
	hs := x.state(h)
	return hs == nil || hs.leaving
}

// holder is state for a holder that is about to have something.
func (x *Radix) holder(h Holder) *holderState {
	if int(h) >= len(x.holders) {
		x.holders = append(x.holders, make([]*holderState, int(h)+1-len(x.holders))...)
	}
	if x.holders[h] == nil {
		x.holders[h] = &holderState{saved: firstSaved}
		if x.maxSparse > 0 && x.asked >= 0 {
			x.makeSparse(x.holders[h])
			x.holders[h].unfiltered = false
		}
		x.mem.Holders += holderBytes
		x.states++
	}
	return x.holders[h]
}

// releaseHolder forgets what is kept of a holder that has nothing any more.
func (x *Radix) releaseHolder(h Holder) {
	hs := x.state(h)
	if hs == nil || hs.live > 0 {
		return
	}
	x.dropFilter(hs)
	x.holders[h] = nil
	x.mem.Holders -= holderBytes + hs.inferred.bytes(8) + hs.tails.bytes()
	if x.states--; x.states == 0 {
		x.holders, x.entries, x.pendingMerges = nil, nil, nil
	}
}

// position is where a hash leads a holder.
type position struct {
	run *run
	pos uint32
	spot
}

// at returns the position of a block if its hash is known to h there.
func (x *Radix) at(h Holder, b uint32) (position, bool) {
	x.steps++
	s := b >> segBits
	hd := x.arena.head(s)
	r := x.runs.at(hd.run)
	p := position{run: r, pos: hd.base + b&(segBlocks-1)}
	switch hd.owner {
	case 0:
		if ex := x.exceptionOf(r, h); ex != nil {
			return p, ex.layers[0].known.has(p.pos)
		}
		bd := r.body.Load()
		if bd == nil {
			return p, false // a run that is being made
		}
		return p, p.pos < bd.heldLen(0, h) || p.pos < x.descendantLimit(r, h)
	case h + 1:
		ex := x.exceptionOf(r, h)
		if ex == nil {
			return p, false
		}
		if hd.base&pileBase != 0 {
			return position{r, hd.base &^ pileBase, spot{piled, b}}, ex.pile.has(b)
		}
		layer := ex.layerOf(s, p.pos)
		if layer < 0 {
			return p, false
		}
		p.layer = uint32(layer)
		return p, ex.layers[layer].known.has(p.pos)
	}
	return p, false
}

// lookup returns the position that the hash leads h to. There is at most one.
func (x *Radix) lookup(h Holder, hash uint64) (position, bool) {
	if x.Empty(h) {
		return position{}, false
	}
	hs := x.holders[h]
	if i := hs.tails.find(hash); i >= 0 {
		if b, ok := x.tailBlock(&hs.tails, i); ok {
			if p, ok := x.at(h, b); ok {
				return p, true
			}
		}
	}
	if hs.filter != nil {
		return x.lookupSparse(h, hs, hash)
	}
	b, ok := x.dir.find(hash)
	if !ok {
		return position{}, false
	}
	return x.leads(h, hash, b)
}

// leads is lookup for a hash that the directory has for block b.
func (x *Radix) leads(h Holder, hash uint64, b uint32) (position, bool) {
	if p, ok := x.at(h, b); ok {
		return p, true
	}
	return x.lookupHomonym(h, hash)
}

// Knows implements Index.
func (x *Radix) Knows(h Holder, hash uint64) bool {
	_, ok := x.lookup(h, hash)
	return ok
}

// KnowsAny implements Index.
func (x *Radix) KnowsAny(h Holder, hashes []uint64) bool {
	if x.Empty(h) {
		return false
	}
	for i := 0; i < len(hashes); i++ {
		if i += x.leadingUnknown(h, hashes[i:]); i < len(hashes) && x.Knows(h, hashes[i]) {
			return true
		}
	}
	return false
}

// Held implements Index.
func (x *Radix) Held(h Holder, t event.Tier) int {
	if x.Empty(h) || t >= event.NumTiers {
		return 0
	}
	return x.holders[h].held[t]
}

// unbind drops all copies of a hash and the hash itself.
func (x *Radix) unbind(h Holder, hs *holderState, p position) {
	x.preserve(p.run)
	ex := x.makeException(p.run, h)
	x.unmarkInferred(hs, x.hashAtSpot(ex, p.spot, p.pos))
	for t := range hs.held {
		if ex.copiesOf(p.spot, t, p.pos) > 0 {
			ex.setCopies(p.spot, t, p.pos, 0)
			hs.held[t]--
			x.total--
		}
	}
	x.forgetHash(ex, p.spot, p.pos)
	x.recomputeBytes(ex)
	x.recomputeCoverage(ex, p.pos, p.pos+1)
	x.releasePresence(p.run, h, true)
	x.shrink(p.run)
}

// Forget implements Index.
func (x *Radix) Forget(h Holder, hashes []uint64) int {
	if x.Empty(h) {
		return 0
	}
	n := x.forget(h, hashes)
	x.mergePending()
	x.releaseHolder(h)
	return n
}

func (x *Radix) forget(h Holder, hashes []uint64) int {
	n := 0
	for i := 0; i < len(hashes); i++ {
		if i += x.leadingUnknown(h, hashes[i:]); i == len(hashes) {
			break
		}
		if p, ok := x.lookup(h, hashes[i]); ok {
			x.unbind(h, x.holders[h], p)
			n++
		}
	}
	return n
}
