package snapshot

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
)

// decoder reads a chunk's structure and words.
type decoder struct {
	meta  []byte
	words []uint64
	bad   bool

	// Memory of the runs, used again by the next chunk. room has words only if those of the chunk cannot be
	// read where they stand.
	room  []uint64
	names []uint64
	held  []core.PieceHeld
	runs  []core.Piece
}

// begin takes a chunk's parts. What was decoded before is void.
func (d *decoder) begin(c *chunk) {
	d.meta, d.words, d.bad = c.meta, d.toWords(c.words), len(c.words)%8 != 0
	d.names, d.held, d.runs = d.names[:0], d.held[:0], d.runs[:0]
}

// toWords returns the little-endian words of b: where they stand, if they are aligned there and the machine has
// its own so.
func (d *decoder) toWords(b []byte) []uint64 {
	n := len(b) / 8
	if at := unsafe.Pointer(unsafe.SliceData(b)); littleEndian && uintptr(at)%8 == 0 {
		return unsafe.Slice((*uint64)(at), n)
	}
	if cap(d.room) < n {
		d.room = make([]uint64, n)
	}
	words := d.room[:n]
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(b[8*i:])
	}
	return words
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

func (d *decoder) uint(most uint64) uint64 {
	v, n := binary.Uvarint(d.meta)
	if n <= 0 || v > most {
		d.bad = true
		d.meta = nil
		return 0
	}
	d.meta = d.meta[n:]
	return v
}

func (d *decoder) uint32() uint32 { return uint32(d.uint(1<<32 - 1)) }

// count reads how many elements follow, each of at least one byte.
func (d *decoder) count() int { return int(d.uint(uint64(len(d.meta)))) }

func (d *decoder) byte() byte {
	if len(d.meta) == 0 {
		d.bad = true
		return 0
	}
	b := d.meta[0]
	d.meta = d.meta[1:]
	return b
}

// nextWords returns the next n words.
func (d *decoder) nextWords(n int) []uint64 {
	if n < 0 || n > len(d.words) {
		d.bad = true
		return nil
	}
	out := d.words[:n:n]
	d.words = d.words[n:]
	return out
}

// decodeRuns returns the runs of a chunk, with the holders that it names
// exchanged by to, in which those that are left out have noHolder. Runs that
// nobody has and none leaves are left out, too. They live until the next call.
func (d *decoder) decodeRuns(c *chunk, to []core.Holder) ([]core.Piece, error) {
	d.begin(c)
	for last := uint32(0); len(d.meta) > 0 && !d.bad; {
		p := d.run(last, to)
		last = p.Number
		if len(p.Held)+len(p.Exceptions)+len(p.Children) > 0 {
			d.runs = append(d.runs, p)
		}
	}
	if d.bad || len(d.words) > 0 {
		return nil, fmt.Errorf("%w: runs that cannot be read", ErrDamaged)
	}
	return d.runs, nil
}

const noHolder = ^core.Holder(0)

func holderTo(to []core.Holder, h uint32) core.Holder {
	if uint64(h) >= uint64(len(to)) {
		return noHolder
	}
	return to[h]
}

func (d *decoder) run(last uint32, to []core.Holder) core.Piece {
	var p core.Piece
	step := d.uint32()
	p.Number = last + step
	if step == 0 || p.Number < last {
		d.bad = true
	}
	if up := d.uint32(); up != 0 {
		if up >= p.Number {
			d.bad = true
		}
		p.Parent, p.Offset = p.Number-up, d.uint32()
	}
	n := int(d.uint(uint64(len(d.words))))
	mode := d.byte()
	p.Local = d.nextWords(n)
	switch {
	case d.bad || n == 0 || mode > namesChain:
		d.bad = true
		return p
	case mode == namesChain:
		at := len(d.names)
		for _, e := range d.nextWords(1) {
			d.names = append(d.names, e)
			for _, l := range p.Local[1:] {
				e = blockhash.NextSequenceHash(e, l)
				d.names = append(d.names, e)
			}
		}
		p.Engine = d.names[at:len(d.names):len(d.names)]
	default:
		p.Engine = d.nextWords(n)
	}
	k := d.count()
	d.held = slices.Grow(d.held, k)
	at := len(d.held)
	d.held = d.held[:at+k]
	held := d.held[at : at+k : at+k]
	before := uint32(0)
	for i := range held {
		step := d.uint32()
		if i > 0 && step == 0 || before+step < before {
			d.bad = true
		}
		before += step
		held[i].Holder = holderTo(to, before)
	}
	p.Held = held[:0]
	for i := range held {
		held[i].Blocks = uint32(n) - uint32(d.uint(uint64(n)))
		if held[i].Holder != noHolder {
			p.Held = append(p.Held, held[i])
		}
	}
	for range d.count() {
		if s := d.exception(uint32(n), to); s.Holder != noHolder {
			p.Exceptions = append(p.Exceptions, s)
		}
	}
	if children := d.count(); children > 0 {
		p.Children = make([]uint32, children)
		for i := range p.Children {
			p.Children[i] = d.uint32()
		}
	}
	return p
}

func (d *decoder) exception(n uint32, to []core.Holder) core.PieceException {
	s := core.PieceException{Holder: holderTo(to, d.uint32())}
	left := int(d.uint(uint64(n) * maxLayers))
	pos, shared := uint32(0), uint32(0) // the next block, and the next that has no shared hash yet
	for left > 0 && !d.bad {
		flags := d.byte()
		pos += uint32(d.uint(uint64(n)))
		many := 1
		if flags&nameMany != 0 {
			many = int(d.uint(uint64(left)))
		}
		if many == 0 || many > left || uint64(pos)+uint64(many) > uint64(n) {
			d.bad = true
			break
		}
		e := core.PieceHash{Shared: flags&nameShared != 0}
		for t := range e.Copies {
			if flags&(nameTier<<t) != 0 {
				e.Copies[t] = 1
				if flags&nameCopies != 0 {
					e.Copies[t] += uint32(d.uint(1<<32 - 2))
				}
			}
		}
		e.Pos = pos
		if e.Shared {
			if e.More = uint32(many - 1); pos < shared || many > 1 && flags&nameCopies != 0 {
				d.bad = true
			}
			shared = pos + uint32(many)
			s.Hashes = append(s.Hashes, e)
		} else {
			for _, own := range d.nextWords(many) {
				e.Engine = own
				s.Hashes = append(s.Hashes, e)
				e.Pos++
			}
		}
		pos += uint32(many - 1)
		left -= many
	}
	return s
}

// maxLayers bounds the engine hashes that one holder has for a block.
const maxLayers = 1 << 20

// decodeInferred calls f for each holder that is not left out.
func decodeInferred(c *chunk, to []core.Holder, f func(h core.Holder, hashes []uint64) error) error {
	var d decoder
	d.begin(c)
	for len(d.meta) > 0 && !d.bad {
		h := holderTo(to, d.uint32())
		hashes := d.nextWords(int(d.uint(uint64(len(d.words)))))
		if h == noHolder || d.bad {
			continue
		}
		if err := f(h, hashes); err != nil {
			return err
		}
	}
	if d.bad || len(d.words) > 0 {
		return fmt.Errorf("%w: inferred names that cannot be read", ErrDamaged)
	}
	return nil
}

// decodeGroups calls f for each list of blocks of a cache group, of holders that are not left
// out.
func decodeGroups(c *chunk, to []core.Holder, f func(h core.Holder, ev *event.Event, copies []uint32) error) error {
	var d decoder
	d.begin(c)
	for len(d.meta) > 0 && !d.bad {
		h := holderTo(to, d.uint32())
		head := d.byte()
		ev := event.Event{Kind: event.Stored, Group: head >> 4, Tier: event.Tier(head & 0xf)}
		copies := make([]uint32, d.count())
		for i := range copies {
			if copies[i] = d.uint32(); copies[i] == 0 {
				d.bad = true
			}
		}
		ev.Engine = d.nextWords(len(copies))
		if ev.Tier >= event.NumTiers || ev.Group == 0 && len(copies) > 0 {
			d.bad = true
		}
		if h == noHolder || d.bad {
			continue
		}
		if err := f(h, &ev, copies); err != nil {
			return err
		}
	}
	if d.bad || len(d.words) > 0 {
		return fmt.Errorf("%w: cache groups that cannot be read", ErrDamaged)
	}
	return nil
}

// holders returns how numbers in the runs become places in m.Ranks.
func (m *Meta) holders() []core.Holder {
	n := 0
	if k := len(m.Ranks); k > 0 {
		n = int(m.Ranks[k-1].Holder) + 1
	}
	to := make([]core.Holder, n)
	for i := range to {
		to[i] = noHolder
	}
	for i := range m.Ranks {
		to[m.Ranks[i].Holder] = core.Holder(i)
	}
	return to
}
