package hugemem

import (
	"sync"
	"testing"
	"testing/synctest"
)

// What is ahead is in proportion to what is given out, and goes with it.
func TestStockIsAheadInProportion(t *testing.T) {
	if ahead(aheadFirst-1) != 0 || ahead(aheadFirst) != 1 || ahead(aheadFirst+2*aheadPart) != 3 || ahead(1<<20) != aheadMost {
		t.Errorf("%d, %d, %d and %d ahead", ahead(aheadFirst-1), ahead(aheadFirst), ahead(aheadFirst+2*aheadPart), ahead(1<<20))
	}
	synctest.Test(t, func(t *testing.T) {
		var s Stock
		var out []Block
		check := func() {
			t.Helper()
			synctest.Wait()
			want := ahead(len(out))
			s.mu.Lock()
			ready, making := len(s.mu.ready), s.mu.making
			s.mu.Unlock()
			if ready != want || making {
				t.Fatalf("%d blocks ahead of %d given out (being made: %v), want %d", ready, len(out), making, want)
			}
			if got := s.Bytes(); got != int64(len(out)+want)*Size || s.Ahead() != int64(want)*Size {
				t.Fatalf("%d bytes with %d blocks out, %d of them ahead", got, len(out), s.Ahead())
			}
		}
		for len(out) < aheadFirst+2 { // not more: what is ahead is cleared memory, which takes time
			bytes := s.Bytes()
			more := s.More(Size)
			out = append(out, s.Get())
			if got := s.Bytes() - bytes; got != Size+more {
				t.Fatalf("the %d-th block took %d bytes, announced %d", len(out), got, Size+more)
			}
			check()
		}
		for len(out) > 0 {
			s.Put(out[len(out)-1])
			out = out[:len(out)-1]
			check()
		}
	})
}

// No block is given to two, and each is zeroed, whoever asks for them at once.
func TestStockGivesEachBlockOnce(t *testing.T) {
	var s Stock
	var many []Block // never used: so there are some ahead, without the time that clearing these would take
	for range aheadFirst {
		many = append(many, s.Get())
	}
	var wg sync.WaitGroup
	for who := range uint64(4) {
		wg.Go(func() {
			var mine []Block
			for i := range uint64(4) {
				b := s.Get()
				if b.Words[i] != 0 {
					t.Errorf("word %d of a block is %d", i, b.Words[i])
				}
				b.Words[i] = who<<32 | i + 1
				mine = append(mine, b)
			}
			for i, b := range mine {
				if got := b.Words[i]; got != who<<32|uint64(i)+1 {
					t.Errorf("a block of %d has become %x", who, got)
				}
				s.Put(b)
			}
		})
	}
	wg.Wait()
	for _, b := range many {
		s.Put(b)
	}
	if s.Bytes() != 0 {
		t.Errorf("%d bytes are out", s.Bytes())
	}
}
