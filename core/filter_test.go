package core

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestFilterLinesAreCacheLines: no line of a filter is in two cache lines, whatever its size, and
// it counts what the allocator takes.
func TestFilterLinesAreCacheLines(t *testing.T) {
	var kept []*filter // so that they do not get the same memory again
	for n := 0; n < 20000; n += 1 + n/10 {
		for range 3 {
			f := newFilter(n)
			kept = append(kept, f)
			if at := uintptr(unsafe.Pointer(&f.lines[0])); at%lineBytes != 0 {
				t.Fatalf("the lines for %d hashes are at %x", n, at)
			}
			taken := cap(append([]filterLine(nil), f.lines...))
			if got := f.bytes() - filterBytes; len(f.lines) != taken || got != int64(taken)*lineBytes {
				t.Fatalf("%d lines for %d hashes count %d bytes; the allocator gives %d lines", len(f.lines), n, got, taken)
			}
			if f.room() < n || f.room() != len(f.lines)*lineSlots*3/4 {
				t.Fatalf("%d lines for %d hashes have room for %d", len(f.lines), n, f.room())
			}
		}
	}
	_ = kept
}

// literalFilter is a filter that keeps the hashes themselves.
type literalFilter struct {
	*filter
	key *hasher
	of  map[uint64]int // how often each was entered
	in  []uint64       // all of them
}

func (f *literalFilter) take(i int) uint64 {
	e := f.in[i]
	f.in[i] = f.in[len(f.in)-1]
	f.in = f.in[:len(f.in)-1]
	if f.of[e]--; f.of[e] == 0 {
		delete(f.of, e)
	}
	return e
}

func (f *literalFilter) put(e uint64) {
	f.of[e]++
	f.in = append(f.in, e)
}

// like reports whether something that was entered has the tags of e, wherever its home is.
func (f *literalFilter) like(e uint64) bool {
	for o := range f.of {
		if f.place(f.key, e)<<40 == f.place(f.key, o)<<40 {
			return true
		}
	}
	return false
}

func (f *literalFilter) check(t *testing.T, what string) {
	t.Helper()
	for e := range f.of {
		if !f.has(f.key, e) {
			t.Fatalf("%s: hash %x was entered and is lacking", what, e)
		}
	}
	slots := 0
	for i := range f.lines {
		for s := range lineSlots {
			if f.lines[i].tags(s).low() != 0 {
				slots++
			}
		}
	}
	if f.n != len(f.in) || slots != len(f.in) {
		t.Fatalf("%s: %d entries in %d slots, not %d", what, f.n, slots, len(f.in))
	}
}

// TestFilterNeverLacks: whatever is added, forced and dropped, at any load, a filter has what was
// entered and not dropped, and adding ends at the first hash that it may have, and only there.
func TestFilterNeverLacks(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			key := Key{seed, 2}.hasher()
			lines := []int{1, 2, 3, 5, 8, 300}[seed%6]
			f := &literalFilter{&filter{lines: make([]filterLine, lines)}, &key, map[uint64]int{}, nil}
			slots := lines * lineSlots
			fresh := func() uint64 { return r.Uint64() }
			for step := range 600 {
				what := fmt.Sprintf("step %d", step)
				growing := step/60%2 == 0 || f.n == 0
				switch op := r.IntN(10); {
				case growing && op < 6:
					hashes := make([]uint64, min(1+r.IntN(100), slots-f.n))
					for i := range hashes {
						if hashes[i] = fresh(); len(f.in) > 0 && r.IntN(40) == 0 {
							hashes[i] = f.in[r.IntN(len(f.in))]
						} else if i > 0 && r.IntN(60) == 0 {
							hashes[i] = hashes[r.IntN(i)]
						}
					}
					if n := f.leadingAbsent(f.key, hashes); n < len(hashes) {
						if !f.like(hashes[n]) {
							t.Fatalf("%s: nothing is like hash %d", what, n)
						}
					}
					if len(hashes) > 0 && r.IntN(3) == 0 {
						hashes = hashes[:1]
					}
					n := f.add(f.key, hashes)
					for _, e := range hashes[:n] {
						if f.of[e] > 0 {
							t.Fatalf("%s: hash %x was added again", what, e)
						}
						f.put(e)
					}
					if n < len(hashes) {
						if !f.like(hashes[n]) {
							t.Fatalf("%s: %d of %d were added; nothing is like the next", what, n, len(hashes))
						}
					}
				case growing || op < 2:
					e := fresh()
					if len(f.in) > 0 && r.IntN(2) == 0 {
						e = f.in[r.IntN(len(f.in))]
					}
					had := f.n
					if f.force(f.key, e) != (had < slots) {
						t.Fatalf("%s: forcing with %d of %d slots in use", what, had, slots)
					}
					if had < slots {
						f.put(e)
					}
				default:
					var hashes []uint64
					for range min(r.IntN(100), len(f.in)) {
						hashes = append(hashes, f.take(r.IntN(len(f.in))))
					}
					f.drop(f.key, hashes)
				}
				f.check(t, what)
			}
			for len(f.in) > 0 {
				f.drop(f.key, []uint64{f.take(r.IntN(len(f.in)))})
			}
			f.check(t, "at the end")
		})
	}
}

// TestFilterEntriesThatAreAlike: hashes whose tags are alike, of one line or of some near to one
// another, in full lines, far from home and beyond the last line: who takes one out takes another's
// for it, and none of the others is lost by that.
func TestFilterEntriesThatAreAlike(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	full, far := 0, 0
	for seed := range uint64(48) {
		r := rand.New(rand.NewPCG(seed, 4))
		lines := []int{1, 2, 3, 6, 9, 20}[seed%6]
		homes, tags := 1+r.IntN(min(lines, 5)), 1+r.IntN(6)
		if seed%4 == 0 {
			homes, tags = lines, 1+r.IntN(20)
		}
		f := &filter{lines: make([]filterLine, lines)}
		var in []filterPlace
		drop := func(i int) {
			f.dropAt(in[i])
			in[i] = in[len(in)-1]
			in = in[:len(in)-1]
		}
		phase := 50 * lines
		for step := range 4 * phase {
			tag := filterPlace(1+r.IntN(tags)) << []int{0, 8, 15}[seed%3]
			p := filterPlace((lines-homes/2-1+r.IntN(homes))%lines)<<32 | tag | (1 - min(tag&0xFFFF, 1))
			growing, n := step/phase%2 == 0, len(in)
			switch had := f.hasAt(p); {
			case n > 0 && (!growing || r.IntN(4) == 0):
				drop(r.IntN(n))
			case n == lines*lineSlots:
				if full++; f.enterAt(p) || f.one(adding, p) {
					t.Fatalf("seed %d, step %d: entered where no slot is free", seed, step)
				}
			case r.IntN(8) == 0:
				if f.one(adding, p) == had {
					t.Fatalf("seed %d, step %d: had it %v, and added it", seed, step, had)
				} else if !had {
					in = append(in, p)
				}
			default:
				if in = append(in, p); !f.enterAt(p) {
					t.Fatalf("seed %d, step %d: not entered where a slot is free", seed, step)
				}
			}
			if f.n != len(in) {
				t.Fatalf("seed %d, step %d: %d entries, not %d", seed, step, f.n, len(in))
			}
			few := in
			if step%16 > 0 {
				few = in[max(0, len(in)-20):]
			}
			for _, p := range few {
				if f.reach(p.home()) > lines/2 {
					far++
				}
				if !f.hasAt(p) {
					t.Fatalf("seed %d, step %d: place %x was entered and is lacking", seed, step, p)
				}
			}
		}
		for len(in) > 0 {
			drop(len(in) - 1)
		}
		for i := range f.lines {
			for s := range lineSlots {
				if f.n != 0 || f.lines[i].tags(s).low() != 0 {
					t.Fatalf("seed %d: %d entries are left when all are dropped", seed, f.n)
				}
			}
		}
	}
	if full < 300 || far < 100000 {
		t.Errorf("%d steps were in full filters, %d looks went far", full, far)
	}
}

// TestFilterReachesAnywhere: entries that stand further than a reach can say are found, also where
// none of their home stood nearer.
func TestFilterReachesAnywhere(t *testing.T) {
	f := &filter{lines: make([]filterLine, 50)}
	var in []filterPlace
	enter := func(home, tag int) {
		in = append(in, filterPlace(home)<<32|filterPlace(tag))
		f.enterAt(in[len(in)-1])
	}
	for i := range 40 * lineSlots {
		enter(0, 1+i)
	}
	for home := range 40 {
		enter(home, 0xFFFF)
		enter(home, 0xFFFE)
	}
	for len(in) > 0 {
		for i := len(in) - 1; i >= 0 && len(in)%64 == 0; i -= 11 {
			if p := in[i]; !f.hasAt(p) {
				t.Fatalf("of %d entries place %x is lacking", len(in), p)
			}
		}
		if f.dropAt(in[len(in)-1]); f.n != len(in)-1 {
			t.Fatalf("%d entries are left of %d when one is dropped", f.n, len(in))
		}
		in = in[:len(in)-1]
	}
}

// TestFilterSpreads: hashes of one pattern crowd lines no more than random ones, of which there are 1.3 %
// more than their home has slots for, and tell each other apart as well, under any key.
func TestFilterSpreads(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	inverse := uint64(1) // of the first factor
	for range 6 {
		inverse *= 2 - spreading*inverse
	}
	patterns := map[string]func(i, from uint64) uint64{
		"two numbers":     func(i, _ uint64) uint64 { return i>>7<<32 | i&127 },
		"two high ones":   func(i, _ uint64) uint64 { return i>>7<<57 | i&127<<25 },
		"the same twice":  func(i, _ uint64) uint64 { return i<<32 | i },
		"odd multiples":   func(i, _ uint64) uint64 { return i * 1000003 },
		"of the factor's": func(i, _ uint64) uint64 { return i * spreading },
	}
	for k := 0; k <= 48; k += 8 {
		patterns[fmt.Sprintf("multiples of 2^%d", k)] = func(i, _ uint64) uint64 { return i << k }
		patterns[fmt.Sprintf("from anywhere by 2^%d", k)] = func(i, from uint64) uint64 { return from + i<<k }
		patterns[fmt.Sprintf("of the inverse by 2^%d", k)] = func(i, _ uint64) uint64 { return i << k * inverse }
	}
	const lines, n = 1024, 1024 * lineSlots * 3 / 4
	for name, hash := range patterns {
		same := 0
		for seed := range uint64(64) {
			r := rand.New(rand.NewPCG(seed, 3))
			key := Key{r.Uint64(), r.Uint64()}.hasher()
			if seed == 0 {
				key = Key{}.hasher()
			}
			f, from := &filter{lines: make([]filterLine, lines)}, r.Uint64()
			var at [lines][]filterPlace
			for i := range uint64(n) {
				p := f.place(&key, hash(i, from))
				at[p.home()] = append(at[p.home()], p)
			}
			over := 0
			for _, ps := range at {
				over += max(0, len(ps)-lineSlots)
				slices.Sort(ps)
				same += len(ps) - len(slices.Compact(ps))
			}
			if over > n/50 {
				t.Errorf("%s, seed %d: %d of %d find their home full", name, seed, over, n)
			}
		}
		if same > 8 { // 0.5 are expected
			t.Errorf("%s: %d have the place of another", name, same)
		}
	}
}

// TestFilterAllocatesNothing: nor does it where there are no vectors.
func TestFilterAllocatesNothing(t *testing.T) {
	key, f := Key{}.hasher(), newFilter(1000)
	hashes := make([]uint64, 300)
	for i := range hashes {
		hashes[i] = uint64(i)
	}
	do := func() {
		n := f.leadingAbsent(&key, hashes) + f.add(&key, hashes[1:]) + f.add(&key, hashes[:1])
		f.drop(&key, hashes[2:])
		f.drop(&key, hashes[:1])
		if f.drop(&key, hashes[1:2]); n != 2*len(hashes) || f.n != 0 || f.has(&key, 1) || !f.force(&key, 1) {
			t.Fatalf("%d hashes were lacking and added, %d are left", n, f.n)
		}
		f.drop(&key, hashes[1:2])
	}
	if n := testing.AllocsPerRun(20, do); n > 0 {
		t.Errorf("%v allocations", n)
	}
	n := testing.AllocsPerRun(20, func() {
		f.each(adding, &key, hashes)
		f.each(dropping, &key, hashes)
	})
	if n > 0 {
		t.Errorf("%v allocations without vectors", n)
	}
}

// TestFilterLinesAreFoundIn: the first slot with both tags is found, and the first free one, whatever stands in the others: of tags
// next to one another or with their top bits only, what is counted from one to the next is not taken for a tag.
func TestFilterLinesAreFoundIn(t *testing.T) {
	racetest.Without(t, "one goroutine does all")
	r := rand.New(rand.NewPCG(1, 48))
	lows := []uint64{0, 1, 2, 0x7FFF, 0x8000, 0x8001, 0xFFFF}
	found, none := 0, 0
	for range 200000 {
		var l filterLine
		few := lows[r.IntN(2):][:1+r.IntN(len(lows)-1)]
		for s := range lineSlots {
			l.set(s, filterPlace(few[r.IntN(len(few))]|r.Uint64N(3)<<16))
		}
		l[lineReach] = uint8(r.Uint32())
		p := filterPlace(lows[1+r.IntN(len(lows)-1)] | r.Uint64N(3)<<16)
		first := func(is func(s int) bool) int {
			for s := range lineSlots {
				if is(s) {
					return s
				}
			}
			return -1
		}
		like := first(func(s int) bool { return l.low(s) == p.low() })
		both := first(func(s int) bool { return l.tags(s) == p })
		free := first(func(s int) bool { return l.low(s) == 0 })
		got, marks := l.look(p.low())
		if got != (like >= 0) || marks != l.marks(0) || l.find(0) != free || l.find(p) != both || like >= 0 && firstSlot(l.marks(p.low())) != like {
			t.Fatalf("%x in %x: slot %d has the low tag: %v; %d both, found %d; %d is free, found %d; free are %x and %x",
				p, l, like, got, both, l.find(p), free, l.find(0), marks, l.marks(0))
		}
		if both >= 0 {
			found++
		} else {
			none++
		}
	}
	if found < 20000 || none < 20000 {
		t.Errorf("%d were found, %d not", found, none)
	}
}
