package core

import (
	"encoding/binary"
	"math/bits"
	"runtime"
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
	anywhere    = 15 // a reach that says no more than that
	manyAway    = 15 // a count that says no more, and sticks
	filterBytes = 32 // of a filter, without its lines
	filterBatch = 32
	filterMost  = 1024               // hashes at once: some µs' work, in which the scheduler may have the goroutine wait
	spreading   = 0x9E3779B97F4A7C15 // in filter_amd64.h too
)

// A filterPlace is the home line of a hash in the upper half, and its tags in the lower.
type filterPlace uint64

func (p filterPlace) home() int   { return int(p >> 32) }
func (p filterPlace) low() uint16 { return uint16(p) }
func (p filterPlace) high() uint8 { return uint8(p >> 16) }

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

// each is all, batch by batch: the next batch's lines come while one is done.
func (f *filter) each(op filterOp, key *hasher, hashes []uint64) int {
	var places [2][filterBatch]filterPlace
	now, ahead := &places[0], &places[1]
	n := 0
	batch := f.aim(now, key, hashes)
	for len(batch) > 0 {
		next := f.aim(ahead, key, hashes[n+len(batch):])
		for _, p := range batch {
			if !f.one(op, p) {
				return n
			}
			n++
		}
		now, ahead, batch = ahead, now, next
	}
	return n
}

// aim finds the places of the first hashes, and asks for their lines.
func (f *filter) aim(places *[filterBatch]filterPlace, key *hasher, hashes []uint64) []filterPlace {
	hashes = hashes[:min(len(hashes), filterBatch)]
	for i, e := range hashes {
		places[i] = f.place(key, e)
	}
	asked := uint8(0)
	for _, p := range places[:len(hashes)] { // independent of one another
		asked |= f.lines[p.home()][lineReach]
	}
	runtime.KeepAlive(asked)
	return places[:len(hashes)]
}

func (f *filter) one(op filterOp, p filterPlace) bool {
	switch op {
	case adding:
		return f.addAt(p)
	case dropping:
		f.dropAt(p)
		return true
	default:
		return !f.hasAt(p)
	}
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

func (f *filter) addAt(p filterPlace) bool { return !f.hasAt(p) && f.enterAt(p) }

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
	binary.LittleEndian.PutUint16(f.lines[at][2*slot:], 0)
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
	const ones, tops = 0x0001000100010001, 0x8000800080008000
	low := ones * uint64(p.low())
	for _, w := range [...]int{0, 8, 16, 24, 32, lineHigh - 8} { // the last are in two words
		x := binary.LittleEndian.Uint64(l[w:]) ^ low
		for x = (x - ones) &^ x & tops; x != 0; x &= x - 1 { // a mark may be false above a true one
			s := w/2 + bits.TrailingZeros64(x)>>4
			if p == 0 || l.tags(s) == p&(1<<24-1) {
				return s
			}
		}
	}
	return -1
}

func (l *filterLine) tags(s int) filterPlace {
	return filterPlace(l[2*s]) | filterPlace(l[2*s+1])<<8 | filterPlace(l[lineHigh+s])<<16
}

func (l *filterLine) set(s int, p filterPlace) {
	binary.LittleEndian.PutUint16(l[2*s:], p.low())
	l[lineHigh+s] = p.high()
}
