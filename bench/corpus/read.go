package corpus

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/kvatlas/kvatlas/event"
)

// Totals are the counts that a corpus declares of itself.
type Totals struct {
	Requests, Stores, Removals, Clears         uint64 // operations
	RequestBlocks, StoredBlocks, RemovedBlocks uint64
}

// Corpus is one schedule, held in memory.
type Corpus struct {
	BlockSize uint32 // tokens per block
	Workers   uint64
	Trace     string // name of the trace that it was made from
	Totals    Totals
	Requests  [][]uint64 // local hashes of each request, in the order of arrival
	Events    []Event    // in the order in which they happened
}

// Event is one event of one worker.
type Event struct {
	Worker uint64
	event.Event
}

const (
	magic   = "SMGMCK01"
	version = 1

	kindQuery, kindStored, kindRemoved, kindCleared = 0, 1, 2, 3

	operationHead = 4 + 8 + 8 + 1 // id, deadline, worker, kind: the smallest operation has more
)

// ErrFormat is wrapped by every error about what a corpus contains.
var ErrFormat = errors.New("not a SMGMCK01 corpus of version 1")

// Open reads the corpus in a file.
func Open(name string) (*Corpus, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open the corpus: %w", err)
	}
	defer func() { _ = f.Close() }() // read only: nothing to lose
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("open the corpus: %w", err)
	}
	c, err := Read(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	return c, nil
}

// Read reads a corpus of size bytes. All integers are little-endian:
//
//	8 bytes magic "SMGMCK01"; u32 version, u32 block size; u64 reference window
//	in ns, 3 × u64 (informational), u64 workers
//	7 × u64 totals, in the order of Totals
//	u64 length and bytes of the trace's name
//	u64 count and u64 local hashes of all requests
//	u64 count and (u64 engine hash, u64 local hash) of all stored blocks
//	u64 count and u64 engine hashes of all removals
//	u64 count and operations: u32 id, u64 deadline in ns, u64 worker, u8 kind and
//	  0 query:   u64 start in the request hashes, u32 length
//	  1 stored:  u32 dp_rank, u64 event id, u8 has parent, u64 parent,
//	             u8 has start, u32 start, u64 start in the stored blocks, u32 length
//	  2 removed: u32 dp_rank, u64 event id, u64 start in the removals, u32 length
//	  3 cleared: u32 dp_rank, u64 event id
func Read(from io.Reader, size int64) (*Corpus, error) {
	r := &reader{from: bufio.NewReaderSize(from, int(min(size, 1<<20))), left: size}
	c := &Corpus{}
	if string(r.bytes(len(magic))) != magic || r.u32() != version {
		return nil, r.fail("magic or version")
	}
	c.BlockSize = r.u32()
	for range 4 {
		r.u64()
	}
	c.Workers = r.u64()
	t := &c.Totals
	for _, p := range []*uint64{&t.Requests, &t.Stores, &t.Removals, &t.Clears, &t.RequestBlocks, &t.StoredBlocks, &t.RemovedBlocks} {
		*p = r.u64()
	}
	c.Trace = string(r.bytes(r.count(1)))
	p := pools{requests: r.hashes(r.count(8))}
	p.engine, p.local = r.pairs(r.count(16))
	p.removed = r.hashes(r.count(8))
	n := r.count(operationHead)
	if r.err != nil {
		return nil, r.fail("a header or a table of hashes")
	}
	c.Requests = make([][]uint64, 0, min(t.Requests, uint64(n)))
	c.Events = make([]Event, 0, min(t.Stores+t.Removals+t.Clears, uint64(n)))
	for i := range n {
		if !c.operation(r, &p) {
			return nil, r.fail(fmt.Sprintf("operation %d of %d", i, n))
		}
	}
	if r.left != 0 {
		return nil, r.fail(fmt.Sprintf("%d bytes after the last operation", r.left))
	}
	if got := c.count(); got != c.Totals {
		return nil, r.fail(fmt.Sprintf("totals: declared %+v, counted %+v", c.Totals, got))
	}
	return c, nil
}

// pools are the tables that operations refer to.
type pools struct{ requests, engine, local, removed []uint64 }

// operation reads one operation; false if it is cut short or out of range.
func (c *Corpus) operation(r *reader, p *pools) bool {
	r.u32()
	r.u64()
	e := Event{Worker: r.u64()}
	kind := r.u8()
	if kind == kindQuery {
		lo, hi, ok := r.span(len(p.requests))
		if ok {
			c.Requests = append(c.Requests, p.requests[lo:hi:hi])
		}
		return ok
	}
	e.DPRank, e.ID = r.u32(), r.u64()
	switch kind {
	case kindStored:
		e.Kind = event.Stored
		e.HasParent, e.Parent = r.u8() != 0, r.u64()
		r.u8()
		r.u32()
		lo, hi, ok := r.span(len(p.engine))
		if !ok {
			return false
		}
		e.Engine, e.Local = p.engine[lo:hi:hi], p.local[lo:hi:hi]
	case kindRemoved:
		e.Kind = event.Removed
		lo, hi, ok := r.span(len(p.removed))
		if !ok {
			return false
		}
		e.Engine = p.removed[lo:hi:hi]
	case kindCleared:
		e.Kind, e.AllTiers = event.Cleared, true
	default:
		return false
	}
	c.Events = append(c.Events, e)
	return r.err == nil
}

// count recounts what the totals declare.
func (c *Corpus) count() Totals {
	t := Totals{Requests: uint64(len(c.Requests))}
	for _, q := range c.Requests {
		t.RequestBlocks += uint64(len(q))
	}
	for i := range c.Events {
		n := uint64(len(c.Events[i].Engine))
		switch c.Events[i].Kind {
		case event.Stored:
			t.Stores++
			t.StoredBlocks += n
		case event.Removed:
			t.Removals++
			t.RemovedBlocks += n
		case event.Cleared:
			t.Clears++
		}
	}
	return t
}

// reader reads fields and knows how many bytes remain. After the first error
// every read gives zero.
type reader struct {
	from *bufio.Reader
	left int64
	buf  [1 << 12]byte
	err  error
}

// fail is the error about what was being read.
func (r *reader) fail(what string) error {
	if r.err != nil && !errors.Is(r.err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s: %w", ErrFormat, what, r.err)
	}
	return fmt.Errorf("%w: %s", ErrFormat, what)
}

// fill reads all of b.
func (r *reader) fill(b []byte) bool {
	if r.err == nil && int64(len(b)) > r.left {
		r.err = io.ErrUnexpectedEOF
	}
	if r.err == nil {
		_, r.err = io.ReadFull(r.from, b)
		r.left -= int64(len(b))
	}
	if r.err != nil {
		clear(b)
		return false
	}
	return true
}

func (r *reader) u8() uint8 {
	r.fill(r.buf[:1])
	return r.buf[0]
}

func (r *reader) u32() uint32 {
	r.fill(r.buf[:4])
	return binary.LittleEndian.Uint32(r.buf[:])
}

func (r *reader) u64() uint64 {
	r.fill(r.buf[:8])
	return binary.LittleEndian.Uint64(r.buf[:])
}

// count reads how many items of at least size bytes follow: no more than the
// bytes that remain can hold.
func (r *reader) count(size int64) int {
	n := r.u64()
	if n > uint64(r.left/size) {
		r.err = cmp.Or(r.err, io.ErrUnexpectedEOF)
		return 0
	}
	return int(n)
}

// span reads the place of an operation's hashes in a table of n.
func (r *reader) span(n int) (lo, hi int, ok bool) {
	start, length := r.u64(), uint64(r.u32())
	if r.err != nil || start > uint64(n) || length > uint64(n)-start {
		return 0, 0, false
	}
	return int(start), int(start + length), true
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil {
		return nil
	}
	b := make([]byte, n)
	r.fill(b)
	return b
}

func (r *reader) hashes(n int) []uint64 {
	out := make([]uint64, n)
	for at := 0; at < n && r.err == nil; {
		k := min(n-at, len(r.buf)/8)
		r.fill(r.buf[:8*k])
		for i := range k {
			out[at+i] = binary.LittleEndian.Uint64(r.buf[8*i:])
		}
		at += k
	}
	return out
}

func (r *reader) pairs(n int) (a, b []uint64) {
	a, b = make([]uint64, n), make([]uint64, n)
	for at := 0; at < n && r.err == nil; {
		k := min(n-at, len(r.buf)/16)
		r.fill(r.buf[:16*k])
		for i := range k {
			a[at+i] = binary.LittleEndian.Uint64(r.buf[16*i:])
			b[at+i] = binary.LittleEndian.Uint64(r.buf[16*i+8:])
		}
		at += k
	}
	return a, b
}
