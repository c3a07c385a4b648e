package spool

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Client is who a body comes from: whom a token names, or an address.
type Client struct {
	Name    string
	Address netip.Addr
}

const (
	// begin is how much memory a body gets before its first byte, at most.
	begin = 16 << 10
	// step is by how much a file's account grows at once, at most, and chunk what is
	// read before it is written.
	step  = 1 << 20
	chunk = 16 << 10
)

// Body is one body. Fill is called once, and Release once by its owner and by
// each who has called Retain.
type Body struct {
	spool  *Spool
	client *client
	begun  time.Time
	end    func()       // ends the reading
	placed bool         // its end gives up what Oust is for
	come   atomic.Int64 // bytes that have arrived

	// Guarded by the Spool's lock.
	used       [places]int64
	out        bool // dropped
	noFile     bool // it stays in memory
	next, prev *Body
	reading    bool

	data   []byte
	buffer *[]byte // whose beginning data is, from the pool; nil if it is a file's
	unmap  func()
	owners atomic.Int32
}

// bodies are those that all have released.
var bodies = sync.Pool{New: func() any { return new(Body) }}

// Open returns an empty body of the client. drop must end the reading from what Fill
// is given; it is called on another goroutine, and never after Fill has returned. placed says
// that it gives up what others may want: Oust drops no other body.
func (s *Spool) Open(from Client, drop func(), placed bool) *Body {
	b := bodies.Get().(*Body) //nolint:forcetypeassert // the pool holds nothing else
	*b = Body{spool: s, end: drop, placed: placed, reading: true}
	b.owners.Store(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	b.begun = s.cfg.Now() // under the lock: the list is in that order
	c := s.clients[from]
	if c == nil {
		c = &client{name: from}
		s.clients[from] = c
	}
	b.client = c
	c.bodies++
	b.noFile = s.limit[files] == 0
	if b.next = s.first; b.next != nil {
		b.next.prev = b
	} else {
		s.last = b
	}
	s.first = b
	s.bodies++
	return b
}

// Bytes returns what was read. The slice is good, to be written to as well, until
// the last Release.
func (b *Body) Bytes() []byte { return b.data }

// Retain keeps the bytes until one more Release.
func (b *Body) Retain() { b.owners.Add(1) }

// InFile reports whether the body, which has arrived, is in a file.
func (b *Body) InFile() bool { return b.unmap != nil }

// Cool lets go of the memory that reading a body in a file has taken: its bytes stay
// there, and come again when somebody reads them. The caller must own the body.
func (b *Body) Cool() {
	if b.unmap != nil {
		unread(b.data)
	}
}

// Release gives the bytes up. Who does so has read them: until somebody else does, they
// take no memory if they are in a file.
func (b *Body) Release() {
	b.Cool()
	if b.owners.Add(-1) > 0 {
		return
	}
	if b.data = nil; b.unmap != nil {
		b.unmap()
	}
	b.swap(nil)
	s := b.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	b.leave()
	for place := range places {
		s.book(b, place, -b.used[place])
	}
	if b.client.bodies--; b.client.bodies == 0 {
		delete(s.clients, b.client.name)
	}
	*b = Body{}
	bodies.Put(b)
}

// leave takes the body out of the list of those that are being read. The Spool's
// lock is held.
func (b *Body) leave() {
	if !b.reading {
		return
	}
	b.reading = false
	b.spool.bodies--
	if b.prev != nil {
		b.prev.next = b.next
	} else {
		b.spool.first = b.next
	}
	if b.next != nil {
		b.next.prev = b.prev
	} else {
		b.spool.last = b.prev
	}
	b.next, b.prev = nil, nil
}

// Fill reads the body to its end. length is how long it says it is, below 0 if it
// does not; it may not be longer than limit.
func (b *Body) Fill(r io.Reader, length, limit int64) (err error) {
	if length > limit {
		err = ErrTooLarge
	} else {
		err = b.fill(r, length, limit)
	}
	s := b.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	b.leave()
	if b.out {
		return ErrSlow // whatever its end looks like to the reader
	}
	return err
}

func (b *Body) fill(r io.Reader, length, limit int64) error {
	for {
		if int64(len(b.data)) == length {
			return b.atEnd(r)
		}
		if len(b.data) == cap(b.data) {
			if err := b.grow(b.bufferSize(length, limit)); err != nil {
				f, ferr := b.file(err)
				switch {
				case ferr != nil:
					return ferr
				case f == nil:
					continue // in memory after all
				}
				return b.fillFile(f, r, length, limit)
			}
		}
		room := b.data[len(b.data):cap(b.data)]
		if length >= 0 {
			room = room[:min(int64(len(room)), length-int64(len(b.data)))]
		}
		n, err := b.read(r, room)
		b.data = b.data[:len(b.data)+n]
		if done, err := b.after(int64(len(b.data)), length, limit, err); done {
			return errors.Join(err, b.fit())
		}
	}
}

// read reads some of the body. What has arrived says how slow it is, not its room: that is
// taken in steps, and by what a body says of its length.
func (b *Body) read(r io.Reader, to []byte) (n int, err error) {
	n, err = r.Read(to)
	b.come.Add(int64(n))
	return n, err
}

// after says whether a read was the last one, of a body that has n bytes then.
func (b *Body) after(n, length, limit int64, err error) (done bool, _ error) {
	switch {
	case n > limit:
		return true, ErrTooLarge
	case err == io.EOF && n < length: //nolint:errorlint // readers return it bare
		return true, ErrLength
	case err == io.EOF: //nolint:errorlint // likewise
		return true, nil
	}
	return err != nil, err
}

// bufferSize returns how large a buffer is to be: twice as large each time, but not larger
// than the body says it is.
func (b *Body) bufferSize(length, limit int64) int64 {
	size := min(max(2*int64(cap(b.data)), begin), limit+1)
	if length >= 0 {
		size = min(size, length)
	}
	return size
}

// atEnd requires that nothing follows: a reader tells its end with no bytes only.
func (b *Body) atEnd(r io.Reader) error {
	var one [1]byte
	n, err := io.ReadFull(r, one[:])
	switch {
	case n > 0:
		return ErrLength
	case err == io.EOF: //nolint:errorlint // readers return it bare
		return nil
	}
	return err
}

// grow gets the body a larger buffer in memory.
func (b *Body) grow(size int64) error {
	if size > b.spool.cfg.Each && !b.noFile {
		return ErrNoRoom
	}
	size = bufferFor(size)
	if err := b.spool.take(b, memory, size-int64(cap(b.data))); err != nil {
		return err
	}
	b.move(size)
	return nil
}

// move moves the bytes into another buffer.
func (b *Body) move(size int64) {
	to := getBuffer(size)
	b.data = append((*to)[:0], b.data...)
	b.swap(to)
}

// swap takes another buffer and gives the old one back, which nobody reads any more.
func (b *Body) swap(to *[]byte) {
	if b.buffer != nil {
		putBuffer(b.buffer)
	}
	b.buffer = to
}

// fit gives back what of the buffer was not needed, if that is much.
func (b *Body) fit() error {
	size := bufferFor(int64(len(b.data)))
	spare := int64(cap(b.data)) - size
	if spare < begin {
		return nil
	}
	b.move(size)
	s := b.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	if !b.out {
		s.book(b, memory, -spare)
	}
	return nil
}

// file returns a file to go on in, why being the reason that it cannot be in memory;
// nil if it is to be tried there all the same.
func (b *Body) file(why error) (*os.File, error) {
	if b.noFile || errors.Is(why, ErrSlow) {
		return nil, why
	}
	f, err := createDeleted(b.spool.cfg.Dir)
	if err == nil {
		return f, nil
	}
	if b.spool.cfg.Unfiled != nil {
		b.spool.cfg.Unfiled(err)
	}
	b.spool.mu.Lock()
	defer b.spool.mu.Unlock()
	b.noFile = true
	return nil, nil
}

// fillFile goes on in a file, with what there is in memory.
func (b *Body) fillFile(f *os.File, r io.Reader, length, limit int64) error {
	n, err := b.writeAll(f, r, length, limit)
	if b.data = nil; err == nil {
		b.data, b.unmap, err = mapFile(f, n)
	}
	return errors.Join(err, f.Close()) // the mapping stays
}

func (b *Body) writeAll(f *os.File, r io.Reader, length, limit int64) (n int64, err error) {
	if n, err = b.write(f, 0, b.data); err != nil {
		return n, err
	}
	b.data = nil
	b.swap(nil)
	s := b.spool
	s.mu.Lock()
	s.book(b, memory, -b.used[memory])
	s.mu.Unlock()
	buf := make([]byte, chunk)
	for {
		got, err := b.read(r, buf)
		if n+int64(got) <= limit && got > 0 {
			var werr error
			if n, werr = b.write(f, n, buf[:got]); werr != nil {
				return n, werr
			}
			got = 0
		}
		if done, err := b.after(n+int64(got), length, limit, err); done {
			return n, err
		}
	}
}

// write adds to a file of n bytes and returns how many it has then.
func (b *Body) write(f *os.File, n int64, data []byte) (int64, error) {
	s := b.spool
	s.mu.Lock() // whoever drops the body takes its room meanwhile
	have := b.used[files]
	s.mu.Unlock()
	if need := n + int64(len(data)) - have; need > 0 {
		if err := s.take(b, files, max(need, min(step, n))); err != nil {
			if err = s.take(b, files, need); err != nil {
				return n, err
			}
		}
	}
	if _, err := f.Write(data); err != nil {
		return n, errors.Join(ErrNoRoom, err)
	}
	return n + int64(len(data)), nil
}
