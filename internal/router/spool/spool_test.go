package spool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"
)

var alice, bob = Client{Name: "alice"}, Client{Address: netip.MustParseAddr("10.0.0.1")}

func nobody() {}

// text returns n bytes that are not those of another seed.
func text(n int, seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// A body in a file is what it was, how often it is read and let go of.
func TestCoolBodies(t *testing.T) {
	s := New(Config{Memory: 1 << 10, Files: 1 << 24, Dir: t.TempDir()})
	b := s.Open(alice, nobody, true)
	if err := b.Fill(bytes.NewReader(text(1<<20, 7)), -1, 1<<21); err != nil || !b.InFile() {
		t.Fatal(err, b.InFile())
	}
	b.Bytes()[5] = 'x' // as who overwrites what engines must not see
	want := text(1<<20, 7)
	want[5] = 'x'
	for range 3 {
		b.Cool()
		if !bytes.Equal(b.Bytes(), want) {
			t.Fatal("other bytes")
		}
		b.Retain()
		b.Release()
	}
	b.Release()
}

// Whatever a body's length is and however it comes, it is what was sent, one slice
// of it; what it took is given back.
func TestBodiesAreWhatWasSent(t *testing.T) {
	for _, cfg := range []Config{
		{Memory: 1 << 20}, {Memory: 1 << 20, Files: 1 << 20, Dir: t.TempDir(), Each: 40 << 10}, {Memory: 10, Files: 1 << 20, Dir: t.TempDir()},
		{Memory: 1 << 20, Files: 1 << 20, Dir: "/nowhere", Each: 100},
	} {
		unfiled := 0
		cfg.Unfiled = func(error) { unfiled++ }
		s := New(cfg)
		for _, n := range []int{0, 1, begin - 1, begin, begin + 1, 40 << 10, 100_000, 300_000} {
			for _, length := range []int64{-1, int64(n)} {
				for name, r := range map[string]io.Reader{
					"at once": bytes.NewReader(text(n, 1)), "with its end": iotest.DataErrReader(bytes.NewReader(text(n, 1))), "by halves": iotest.HalfReader(bytes.NewReader(text(n, 1))),
				} {
					b := s.Open(alice, nobody, true)
					err := b.Fill(r, length, 300_000)
					if err != nil || !bytes.Equal(b.Bytes(), text(n, 1)) {
						t.Fatalf("%+v: %d bytes, said to be %d, %s: %d, %v", cfg, n, length, name, len(b.Bytes()), err)
					}
					if st := s.Stats(); st.Memory+st.Files < int64(n) || st.Memory > int64(n)+2*begin || st.Bodies != 0 {
						t.Fatalf("%d bytes: %+v", n, st)
					}
					b.Retain()
					b.Release()
					if !bytes.Equal(b.Bytes(), text(n, 1)) {
						t.Fatal("they are gone while somebody retains them")
					}
					b.Release()
				}
			}
		}
		if st := s.Stats(); st.Memory != 0 || st.Files != 0 || len(s.clients) != 0 || (cfg.Dir == "/nowhere") != (unfiled > 0) {
			t.Errorf("%+v: left %+v", cfg, st)
		}
		if cfg.Dir != "" && cfg.Dir != "/nowhere" {
			if left, err := os.ReadDir(cfg.Dir); err != nil || len(left) != 0 {
				t.Errorf("files are left: %v %v", left, err)
			}
		}
	}
}

func TestWhatBodiesAreRefusedFor(t *testing.T) {
	s := New(Config{Memory: 100_000, Files: 100_000, Dir: t.TempDir(), Each: 50_000, Share: 0.6})
	fill := func(from Client, r io.Reader, length, limit int64) (*Body, error) {
		b := s.Open(from, nobody, true)
		err := b.Fill(r, length, limit)
		return b, err
	}
	for name, c := range map[string]struct {
		r             io.Reader
		length, limit int64
		want          error
	}{
		"said to be too long":  {bytes.NewReader(nil), 11, 10, ErrTooLarge},
		"too long":             {bytes.NewReader(text(11, 1)), -1, 10, ErrTooLarge},
		"longer than it says":  {bytes.NewReader(text(11, 1)), 10, 20, ErrLength},
		"shorter than it says": {bytes.NewReader(text(9, 1)), 10, 20, ErrLength},
		"shorter, in a file":   {bytes.NewReader(text(55_000, 1)), 56_000, 90_000, ErrLength},
		"too long, in a file":  {bytes.NewReader(text(55_000, 1)), -1, 54_999, ErrTooLarge},
		"broken off":           {io.MultiReader(bytes.NewReader(text(9, 1)), iotest.ErrReader(io.ErrClosedPipe)), 10, 20, io.ErrClosedPipe},
		"more than its share":  {bytes.NewReader(text(60_001, 1)), -1, 90_000, ErrShare},
	} {
		b, err := fill(alice, c.r, c.length, c.limit)
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		b.Release()
	}
	var kept []*Body
	for from, n := range map[Client][]int{alice: {50_000, 55_000}, bob: {40_000, 45_000}} {
		for _, n := range n {
			b, err := fill(from, bytes.NewReader(text(n, 1)), int64(n), 90_000)
			if err != nil {
				t.Errorf("%v %d: %v", from, n, err)
			}
			kept = append(kept, b)
		}
	}
	if b, err := fill(Client{Name: "carol"}, bytes.NewReader(text(20_000, 1)), -1, 90_000); !errors.Is(err, ErrNoRoom) {
		t.Errorf("%v", err)
	} else {
		b.Release()
	}
	for _, b := range kept {
		b.Release()
	}
	if st := s.Stats(); st.Memory != 0 || st.Files != 0 {
		t.Errorf("left %+v", st)
	}
}

// slow is a reader that gives what there is and then waits until it is dropped.
type slow struct {
	r    io.Reader
	gone chan struct{}
}

func (r *slow) Read(p []byte) (int, error) {
	if n, err := r.r.Read(p); n > 0 || !errors.Is(err, io.EOF) {
		return n, err
	}
	<-r.gone
	return 0, os.ErrDeadlineExceeded
}

// What a body promises takes no room. Where room is short the slowest body of those
// that had time to come is dropped, and no other; of one client's share, its own.
func TestSlowBodiesMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Memory: 400_000})
		var ends sync.WaitGroup
		var dropped atomic.Int64
		errs := make(map[int]error)
		var mu sync.Mutex
		begin := func(i, n int) {
			gone := make(chan struct{})
			b := s.Open(Client{Name: fmt.Sprint(i)}, func() { close(gone); dropped.Add(1) }, true)
			ends.Go(func() {
				err := b.Fill(&slow{bytes.NewReader(text(n, uint64(i))), gone}, 8<<20, 8<<20)
				b.Release()
				mu.Lock()
				defer mu.Unlock()
				errs[i] = err
			})
			synctest.Wait()
		}
		for i := range 4 {
			begin(i, 1+i*40_000) // 16, 64, 128 and 128 KiB by now
		}
		// All are young: who comes late is refused.
		time.Sleep(900 * time.Millisecond)
		if s.Oust(Client{}, false) {
			t.Error("a young one is ousted")
		}
		b := s.Open(bob, nobody, true)
		if err := b.Fill(bytes.NewReader(text(150_000, 9)), 150_000, 1<<20); !errors.Is(err, ErrNoRoom) {
			t.Errorf("among young ones: %v", err)
		}
		b.Release()
		time.Sleep(3 * time.Second)
		b = s.Open(bob, nobody, true)
		if err := b.Fill(bytes.NewReader(text(60_000, 9)), 60_000, 1<<20); err != nil || !bytes.Equal(b.Bytes(), text(60_000, 9)) {
			t.Errorf("among slow ones: %v", err)
		}
		synctest.Wait()
		mu.Lock()
		if len(errs) != 1 || !errors.Is(errs[0], ErrSlow) || dropped.Load() != 1 {
			t.Errorf("ended %v, dropped %d, want the one that has sent least", errs, dropped.Load())
		}
		mu.Unlock()
		b.Release()
		if s.Oust(bob, true) {
			t.Error("another's is ousted for bob's share")
		}
		for _, want := range []int{3, 1} { // its own, then the slowest of all
			own := want == 3
			if !s.Oust(Client{Name: "3"}, own) {
				t.Error("none is slow")
			}
			synctest.Wait()
			mu.Lock()
			if !errors.Is(errs[want], ErrSlow) {
				t.Errorf("own %t: ended %v", own, errs)
			}
			mu.Unlock()
		}
		for s.first != nil {
			s.mu.Lock()
			s.drop(s.first)
			s.mu.Unlock()
			synctest.Wait()
		}
		ends.Wait()
		if st := s.Stats(); st.Memory != 0 || len(s.clients) != 0 {
			t.Errorf("left %+v", st)
		}
	})
}

// Who has sent less is slower, whatever length is announced and room taken. Oust leaves alone
// what comes fast, and what has no place to give up.
func TestOust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{Memory: 8 << 20, Files: 1 << 20, Dir: t.TempDir()})
		var ends sync.WaitGroup
		var order []string
		begin := func(name string, sent, length int, placed bool) {
			gone := make(chan struct{})
			b := s.Open(Client{Name: name}, func() { order = append(order, name); close(gone) }, placed)
			ends.Go(func() {
				if err := b.Fill(&slow{bytes.NewReader(text(sent, 1)), gone}, int64(length), 8<<20); !errors.Is(err, ErrSlow) {
					t.Errorf("%s: %v", name, err)
				}
				b.Release()
			})
			synctest.Wait()
		}
		begin("unplaced", 1, 8<<20, false)
		begin("large", 300_000, 8<<20, true)
		begin("mobile", 5_000, 6_000, true)
		time.Sleep(100 * time.Millisecond)
		begin("idle", 1, 8<<20, true)
		time.Sleep(2 * time.Second)
		for s.Oust(Client{}, false) {
			synctest.Wait()
		}
		if want := []string{"idle", "mobile"}; !slices.Equal(order, want) {
			t.Errorf("dropped %v, want %v", order, want)
		}
		time.Sleep(10 * time.Second) // nothing more came of it
		if !s.Oust(Client{}, false) || order[len(order)-1] != "large" {
			t.Errorf("dropped %v, want the large one that stopped", order)
		}
		synctest.Wait()
		s.mu.Lock()
		s.drop(s.first)
		s.mu.Unlock()
		ends.Wait()
	})
}

// Many bodies of all kinds at once: the accounts are never beyond their limits, and
// empty in the end.
func TestAccountsUnderLoad(t *testing.T) {
	s := New(Config{Memory: 256 << 10, Files: 256 << 10, Each: 20_000, Share: 0.5, Dir: t.TempDir()})
	clients := []Client{alice, bob, {Name: "carol"}, {Name: "dave"}}
	var all sync.WaitGroup
	outcomes := make([]atomic.Int64, 6)
	for worker := range 16 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 7))
			for range 40 {
				n := rng.IntN(60_000)
				want := text(n, uint64(n))
				var r io.Reader = bytes.NewReader(want)
				if rng.IntN(2) == 0 {
					r = iotest.HalfReader(r)
				}
				length := int64(n)
				if rng.IntN(2) == 0 {
					length = -1
				}
				b := s.Open(clients[rng.IntN(len(clients))], nobody, true)
				err := b.Fill(r, length, 56_000)
				i := slices.IndexFunc([]error{nil, ErrNoRoom, ErrShare, ErrTooLarge, ErrLength, ErrSlow}, func(e error) bool { return errors.Is(err, e) || err == nil && e == nil })
				if i < 0 || err == nil && !bytes.Equal(b.Bytes(), want) {
					t.Errorf("%d bytes: %v", n, err)
				} else {
					outcomes[i].Add(1)
				}
				st := s.Stats()
				if st.Memory > 256<<10 || st.Files > 256<<10 || st.Memory < 0 || st.Files < 0 {
					t.Errorf("%+v", st)
				}
				b.Release()
			}
		})
	}
	all.Wait()
	if st := s.Stats(); st.Memory != 0 || st.Files != 0 || st.Bodies != 0 || len(s.clients) != 0 {
		t.Errorf("left %+v", st)
	}
	if outcomes[0].Load() == 0 || outcomes[3].Load() == 0 {
		t.Errorf("outcomes %v, %v", outcomes[0].Load(), outcomes[3].Load())
	}
}
