package core

import (
	"encoding/binary"
	"math/bits"
)

// A filter says of a hash that a holder certainly does not have it, for a few ns and without
// other memory. It is a multiset of 24 bits of each hash: it may seem to have what nobody entered
// (of hashes that it lacks some 15 in 2^24), but never lacks what it was given.
//
// An entry stands in its home line or, where that is full, in one of the next: a line has how many
// entries whose home it is are away, and how far at most. Which hash an entry is of cannot be told
// from it: who takes one out must leave the others something within their reach (dropAt).
type filter struct {
	lines []filterLine
	n     int // entries in use
}

// filterLine is a cache line: low tags of 16 bits, 0 if the slot is free, from 0 on; high tags of
// 8 bits from 42 on; at 63, four bits each, the line's reach and above it how many entries are away.
type filterLine [lineBytes]byte

const (
	lineBytes   = 64
	pageLines   = 4096 / lineBytes
	lineSlots   = 21
	lineHigh    = 2 * lineSlots
	lineReach   = lineBytes - 1
	anywhere    = 15                 // a reach that says no more than that
	manyAway    = 15                 // a count that says no more, and sticks
	filterBytes = 32                 // of a filter, without its lines
	filterBatch = 32                 // hashes whose lines are asked for before the first is done
	filterFew   = 8                  // and so many more where as many are done: processors drop what is asked for all at once
	filterMost  = 1024               // hashes at once: some µs' work, in which the scheduler may have the goroutine wait
	spreading   = 0x9E3779B97F4A7C15 // in filter_amd64.h too
)

// A filterPlace is the home line of a hash in the upper half, and its tags in the lower.
type filterPlace uint64

func (p filterPlace) home() int         { return int(p >> 32) }
func (p filterPlace) low() uint16       { return uint16(p) }
func (p filterPlace) high() uint8       { return uint8(p >> 16) }
func (p filterPlace) tags() filterPlace { return p & (1<<24 - 1) }

// newFilter returns a filter with room for n hashes. Its lines are cache lines: the allocator's size
// classes for multiples of 64 bytes without pointers are multiples of 64 themselves, in spans that
// begin with a page (TestFilterLinesAreCacheLines).
func newFilter(n int) *filter {
	f := &filter{lines: make([]filterLine, filterRoom(n)/lineBytes)}
	for i := 0; i < len(f.lines); i += pageLines {
		f.lines[i][lineReach] = 0 // a page that is read before it is written costs two faults, the second one the most
	}
	return f
}

// filterRoom returns the bytes of the lines of a filter for n hashes.
func filterRoom(n int) int64 {
	return sizeClass(int64(max(1, (4*n+3*lineSlots-1)/(3*lineSlots))) * lineBytes)
}

// room returns how many more hashes may be entered before three quarters of the slots are in use.
func (f *filter) room() int { return max(0, len(f.lines)*lineSlots*3/4-f.n) }

func (f *filter) bytes() int64 { return filterBytes + sizeClass(int64(len(f.lines))*lineBytes) }

// spread mixes a hash that somebody else chose as vectors can, eight at a time. Two hashes that were
// chosen without the key have the same home of n under some 4 in n keys at most: the last product
// alone sees to that, as b is independent of a (multiply-shift). What is before it breaks up patterns: under one
// product less, multiples of 2^48 crowd the lines under 7 keys in a hundred (TestFilterSpreads).
// Three hashes are promised nothing, which is less than mix's shape is trusted with; but who finds hashes
// that crowd some lines has them looked for further from home, and answered the same.
func (k *hasher) spread(hash uint64) uint64 {
	t := (hash ^ k.a) * spreading
	t = (t ^ t>>32) * spreading
	return (t ^ t>>32) * (k.b | 1)
}

// place takes the home from the upper half, and the tags from the upper bits of the lower one, as a product's
// lowest bits depend on few others.
func (f *filter) place(key *hasher, hash uint64) filterPlace {
	t := key.spread(hash)
	home := t >> 32 * uint64(len(f.lines)) >> 32
	return filterPlace(home<<32 | t>>8&0xFF0000 | max(t>>8&0xFFFF, 1))
}

// add enters the leading hashes that the filter certainly lacks, and returns how many; it ends too
// where no slot is left, of which the caller takes care.
func (f *filter) add(key *hasher, hashes []uint64) int {
	return f.all(adding, key, hashes)
}

// drop takes one entry of each of the hashes out. Each must have been entered, and not have been
// taken out since: of one that was not, another's may be taken for its own.
func (f *filter) drop(key *hasher, hashes []uint64) {
	f.all(dropping, key, hashes)
}

// leadingAbsent returns how many of the leading hashes the filter certainly lacks.
func (f *filter) leadingAbsent(key *hasher, hashes []uint64) int {
	if len(f.lines) == 0 {
		return len(hashes)
	}
	return f.all(asking, key, hashes)
}

// has reports whether the filter may have the hash.
func (f *filter) has(key *hasher, hash uint64) bool {
	if len(f.lines) == 0 {
		return false
	}
	if vectors != noVectors && absentVector(f, key, &hash, 1) == 1 {
		return false
	}
	return f.hasAt(f.place(key, hash))
}

// force enters a hash, once more if it is there. It reports whether a slot was left; where
// none was the filter lacks the hash.
func (f *filter) force(key *hasher, hash uint64) bool {
	return len(f.lines) > 0 && f.enterAt(f.place(key, hash))
}

// filterOp is what is done to hashes, one by one up to the first that it cannot be done to.
type filterOp int

const (
	adding   filterOp = iota // if it is lacking
	dropping                 // if it is there
	asking                   // whether it is lacking
)

// all returns to how many it was done.
func (f *filter) all(op filterOp, key *hasher, hashes []uint64) int {
	if len(f.lines) == 0 {
		return 0
	}
	n := 0
	for n < len(hashes) {
		if vectors != noVectors {
			n += f.eachVector(op, key, hashes[n:])
		} else if len(hashes) > 1 {
			n += f.each(op, key, hashes)
		}
		if n == len(hashes) || !f.one(op, f.place(key, hashes[n])) {
			break
		}
		n++
	}
	return n
}

// eachVector is all but what must be done in general: it ends before that too, and after filterMost.
func (f *filter) eachVector(op filterOp, key *hasher, hashes []uint64) int {
	n := min(len(hashes), filterMost)
	switch op {
	case adding:
		return addVector(f, key, &hashes[0], n)
	case dropping:
		return dropVector(f, key, &hashes[0], n)
	default:
		return absentVector(f, key, &hashes[0], n)
	}
}

// each is all, a few at a time: the next ones' lines come while they are done.
func (f *filter) each(op filterOp, key *hasher, hashes []uint64) int {
	var ring [filterBatch]filterPlace
	for i := 0; i < min(len(hashes), filterBatch); i += filterFew {
		f.aim(ring[i:i+filterFew], key, hashes[i:])
	}
	n := 0
	for n < len(hashes) {
		at := n & (filterBatch - filterFew)
		few := ring[at : at+min(filterFew, len(hashes)-n)]
		k := f.some(op, few)
		if n += k; k < len(few) {
			break
		}
		if ahead := n + filterBatch - filterFew; ahead < len(hashes) {
			f.aim(few, key, hashes[ahead:])
		}
	}
	return n
}

// aim finds the places of the first hashes, of which there is one at least, and asks for their lines.
func (f *filter) aim(places []filterPlace, key *hasher, hashes []uint64) {
	places = places[:min(len(places), len(hashes))]
	for i := range places {
		places[i] = f.place(key, hashes[i])
	}
	askLines(&places[0], len(places), &f.lines[0])
}

func (f *filter) one(op filterOp, p filterPlace) bool { return f.some(op, []filterPlace{p}) == 1 }

// some is all for places. Mostly their home lines are all that is to be looked at.
func (f *filter) some(op filterOp, places []filterPlace) int {
	switch op {
	case adding:
		return f.addSome(places)
	case dropping:
		f.dropSome(places)
		return len(places)
	default:
		return f.absentSome(places)
	}
}

func (f *filter) addSome(places []filterPlace) int {
	lines := f.lines
	for i, p := range places {
		l := &lines[p.home()]
		like, free := l.look(p.low())
		if (like || l[lineReach] != 0) && f.hasAt(p) {
			return i
		}
		if free != 0 {
			l.set(firstSlot(free), p)
			f.n++
		} else if !f.enterAt(p) {
			return i
		}
	}
	return len(places)
}

func (f *filter) dropSome(places []filterPlace) {
	lines := f.lines
	for _, p := range places {
		l := &lines[p.home()]
		if m := l.marks(p.low()); m != 0 && l[lineReach] == 0 {
			if s := firstSlot(m); l.high(s) == p.high() {
				l.free(s)
				f.n--
				continue
			}
		}
		f.dropAt(p)
	}
}

func (f *filter) absentSome(places []filterPlace) int {
	lines := f.lines
	for i, p := range places {
		l := &lines[p.home()]
		if (l[lineReach] != 0 || l.marks(p.low()) != 0) && f.hasAt(p) {
			return i
		}
	}
	return len(places)
}

// after returns the line after line i.
func (f *filter) after(i int) int {
	if i++; i < len(f.lines) {
		return i
	}
	return 0
}

// reach returns how many lines after line i entries may stand whose home it is.
func (f *filter) reach(i int) int {
	if r := int(f.lines[i][lineReach] & 15); r < anywhere {
		return min(r, len(f.lines)-1)
	}
	return len(f.lines) - 1
}

// away notes that one more entry whose home it is stands k lines away.
func (l *filterLine) away(k int) {
	r := l[lineReach]
	l[lineReach] = uint8(min(int(r>>4)+1, manyAway))<<4 | max(r&15, uint8(min(k, anywhere)))
}

// back notes that one does no more.
func (l *filterLine) back() {
	if r := l[lineReach]; r>>4 < manyAway {
		if r -= 1 << 4; r>>4 == 0 {
			r = 0
		}
		l[lineReach] = r
	}
}

func (f *filter) hasAt(p filterPlace) bool {
	i := p.home()
	for k := f.reach(i); f.lines[i].find(p) < 0; k-- {
		if k == 0 {
			return false
		}
		i = f.after(i)
	}
	return true
}

func (f *filter) enterAt(p filterPlace) bool {
	i := p.home()
	for k := range f.lines {
		if s := f.lines[i].find(0); s >= 0 {
			f.lines[i].set(s, p)
			if k > 0 {
				f.lines[p.home()].away(k)
			}
			f.n++
			return true
		}
		i = f.after(i)
	}
	return false
}

// dropAt takes the nearest entry like p out. It may be another hash's, whose home is another line,
// while p's own stands further on: then that is the other's from now on, and so
// whoever may reach the one must reach the other.
func (f *filter) dropAt(p filterPlace) {
	i, at, slot := p.home(), 0, 0
	first, last := -1, -1
	for k := range f.reach(i) + 1 {
		if s := f.lines[i].find(p); s >= 0 {
			if last = k; first < 0 {
				first, at, slot = k, i, s
			}
		}
		i = f.after(i)
	}
	if first < 0 {
		return
	}
	f.lines[at].free(slot)
	f.n--
	switch {
	case last > first:
		f.stretch(at, last-first)
	case first > 0: // there is one, so it is its own
		f.lines[p.home()].back()
	}
}

// stretch has whoever reaches line i reach k lines more. One entry less nearer is one more away for one
// of them; the others count one too many, and so reach too far.
func (f *filter) stretch(i, k int) {
	for d := range f.lines {
		if f.reach(i) >= d {
			f.lines[i].away(d + k)
		}
		if i--; i < 0 {
			i += len(f.lines)
		}
	}
}

// find returns the first slot with the tags of p; with 0, the first free one. It is -1 if there is
// none.
func (l *filterLine) find(p filterPlace) int {
	for m := l.marks(p.low()); m != 0; {
		s := firstSlot(m)
		if p == 0 || l.tags(s) == p.tags() {
			return s
		}
		m &^= 1 << (s>>2 | s&3<<4)
	}
	return -1
}

const ones, tops = 0x0001000100010001, 0x8000800080008000

// zeros has the top bits of the 16 bits that are 0 of each word's four. There may be false ones above a true one.
func zeros(x uint64) uint64 { return (x - ones) &^ x }

// marks returns which slots have the low tag: bit w of the l-th 16 bits is slot 4w+l. A mark may be false if there is
// a true one in the same word, below. The 21st slot is in a word with high tags.
func (l *filterLine) marks(low uint16) uint64 {
	t := ones * uint64(low)
	return zeros(l.word(0)^t)&tops>>15 | zeros(l.word(8)^t)&tops>>14 | zeros(l.word(16)^t)&tops>>13 |
		zeros(l.word(24)^t)&tops>>12 | zeros(l.word(32)^t)&tops>>11 | zeros(l.word(40)^t)&(1<<15)>>10
}

// look returns whether a slot has the low tag, and the marks of those that are free.
func (l *filterLine) look(low uint16) (like bool, free uint64) {
	t := ones * uint64(low)
	w := l.word(0)
	likes := zeros(w ^ t)
	free = zeros(w) & tops >> 15
	w = l.word(8)
	likes |= zeros(w ^ t)
	free |= zeros(w) & tops >> 14
	w = l.word(16)
	likes |= zeros(w ^ t)
	free |= zeros(w) & tops >> 13
	w = l.word(24)
	likes |= zeros(w ^ t)
	free |= zeros(w) & tops >> 12
	w = l.word(32)
	likes |= zeros(w ^ t)
	free |= zeros(w) & tops >> 11
	w = l.word(40)
	return likes&tops|zeros(w^t)&(1<<15) != 0, free | zeros(w)&(1<<15)>>10
}

func (l *filterLine) word(at int) uint64 { return binary.LittleEndian.Uint64(l[at:]) }

// firstSlot returns the slot of the first mark, of which there is one.
func firstSlot(marks uint64) int {
	w := marks | marks>>32
	w = uint64(bits.TrailingZeros64(w | w>>16))
	return int(w<<2) + bits.TrailingZeros64(marks>>(w&63)&ones)>>4
}

// Slots are below lineSlots: to say so in the index spares the check of it.

func (l *filterLine) low(s int) uint16 { return binary.LittleEndian.Uint16(l[2*s&62:]) }

func (l *filterLine) high(s int) uint8 { return l[(lineHigh+s)&63] }

func (l *filterLine) tags(s int) filterPlace {
	return filterPlace(l.low(s)) | filterPlace(l.high(s))<<16
}

func (l *filterLine) set(s int, p filterPlace) {
	binary.LittleEndian.PutUint16(l[2*s&62:], p.low())
	l[(lineHigh+s)&63] = p.high()
}

func (l *filterLine) free(s int) { binary.LittleEndian.PutUint16(l[2*s&62:], 0) }
