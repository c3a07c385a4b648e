package hugemem

import (
	"sync"
	"sync/atomic"
)

// Stock gives out blocks of one huge page, and has some ready ahead once it has given out many: the system clears a
// huge page when it is first used, which takes a tenth of a millisecond and, where a host must find the memory first,
// five and more. So who grows fast does not wait for that. The zero value is ready; all methods may be called from several goroutines.
//
// What is ahead is in proportion to what is out, so that it never is more than a small part of the memory. It is made by
// a goroutine that the Stock owns: there is one at most, only while something is to be made, so it ends by itself.
type Stock struct {
	mu struct {
		sync.Mutex
		out    int     // blocks given out
		ready  []Block // at most ahead(out)
		making bool    // the goroutine runs
		made   *sync.Cond
	}
	bytes atomic.Int64
}

const (
	aheadFirst = 16 // with so many blocks given out, the first is ahead
	aheadPart  = 64 // and one more for each so many more
	aheadMost  = 4
)

func ahead(out int) int { return min((out+aheadPart-aheadFirst)/aheadPart, aheadMost) }

// Get returns a zeroed block.
func (s *Stock) Get() Block {
	s.mu.Lock()
	if s.mu.made == nil {
		s.mu.made = sync.NewCond(&s.mu)
	}
	for len(s.mu.ready) == 0 && s.mu.making { // sooner there than one that is begun now
		s.mu.made.Wait()
	}
	var b Block
	if n := len(s.mu.ready); n > 0 {
		b, s.mu.ready = s.mu.ready[n-1], s.mu.ready[:n-1]
	}
	s.countLocked(1)
	if !s.mu.making && len(s.mu.ready) < ahead(s.mu.out) {
		s.mu.making = true
		go s.make()
	}
	s.mu.Unlock()
	if b.Words == nil {
		b = Alloc(Size)
	}
	return b
}

// Put gives back a block that Get returned.
func (s *Stock) Put(b Block) {
	b.Free()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.countLocked(-1)
	for n := len(s.mu.ready); n > ahead(s.mu.out); n-- {
		s.mu.ready[n-1].Free()
		s.mu.ready[n-1] = Block{}
		s.mu.ready = s.mu.ready[:n-1]
	}
}

func (s *Stock) countLocked(n int) {
	s.mu.out += n
	s.bytes.Store(int64(s.mu.out+ahead(s.mu.out)) * Size)
}

// make makes blocks until enough are ahead.
func (s *Stock) make() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.mu.ready) < ahead(s.mu.out) {
		s.mu.Unlock()
		b := Alloc(Size)
		if b.mapped {
			touch(b.Words)
		}
		s.mu.Lock()
		if len(s.mu.ready) < ahead(s.mu.out) {
			s.mu.ready = append(s.mu.ready, b)
		} else {
			b.Free() // many were given back meanwhile
		}
		s.mu.made.Broadcast()
	}
	s.mu.making = false
	s.mu.made.Broadcast()
}

// touch has the system make the pages of a block now, by a first use of each. Asked for in one call
// (MADV_POPULATE_WRITE) the system keeps the address space locked for as long as that takes, and whoever
// maps or unmaps memory meanwhile waits, and everybody behind them.
func touch(words []uint64) {
	for i := 0; i < len(words); i += pageWords {
		words[i] = 0
	}
}

const pageWords = 4096 / 8 // of the smallest page; where they are larger it is touched more often

// Bytes returns what is given out and, counted as if it were there, what is ahead: so it depends on Get and Put alone.
func (s *Stock) Bytes() int64 { return s.bytes.Load() }

// Ahead returns how many of the bytes are ahead.
func (s *Stock) Ahead() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(ahead(s.mu.out)) * Size
}

// More returns by how much that may grow when bytes more are given out.
func (s *Stock) More(bytes int64) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(ahead(s.mu.out+int((bytes+Size-1)/Size))-ahead(s.mu.out)) * Size
}
