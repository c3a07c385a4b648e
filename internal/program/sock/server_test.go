package sock

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// What is written arrives at a server's connection, by however much it reads at once.
func TestWhatIsWrittenArrivesAtAServer(t *testing.T) {
	a, b := pair(t)
	c := forServer(b)
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	go func() { // ends when all is written, or the test
		for rest := data; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(3*spareSize))
			if _, err := a.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		_ = a.(interface{ CloseWrite() error }).CloseWrite()
	}()
	var got []byte
	for p := make([]byte, 2*spareSize); ; {
		n, err := c.Read(p[:rand.IntN(len(p)+1)])
		got = append(got, p[:n]...)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(got, data) {
		t.Error("it is not the same")
	}
}

// waiting is a connection on which nothing comes but what is said in advance.
type waiting struct {
	net.Conn
	waits func()
	comes []byte
}

func (c *waiting) readBoth(p []byte, room func(wait bool) []byte) (int, error) {
	if len(room(false)) != spareSize || len(room(true)) > 0 {
		return 0, errors.New("another room")
	}
	c.waits()
	return copy(p, c.comes) + copy(room(false), c.comes[min(len(p), len(c.comes)):]), nil
}

// Who waits for a request has no room for what is beyond it: of a server's connections most wait.
func TestWhoWaitsHoldsNothing(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close() //nolint:errcheck // it has done its work
	defer b.Close() //nolint:errcheck // it has done its work
	below := &waiting{Conn: b}
	conn := forServer(below)
	below.waits = func() {
		if conn.spare != nil {
			t.Error("it holds some")
		}
	}
	for _, c := range []struct{ reads, comes string }{{"12345", "123"}, {"12345", "12345"}, {"12345", "12345678"}} {
		below.comes = []byte(c.comes)
		var got []byte
		for p := make([]byte, len(c.reads)); len(got) < len(c.comes); {
			n, err := conn.Read(p)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, p[:n]...)
		}
		if string(got) != c.comes || conn.spare != nil {
			t.Errorf("%q, want %q, and it holds some afterwards: %v", got, c.comes, conn.spare != nil)
		}
	}
}

// counting counts how often the connection is told deadlines.
type counting struct {
	net.Conn
	told atomic.Int64
}

func (c *counting) SetReadDeadline(t time.Time) error {
	c.told.Add(1)
	return c.Conn.SetReadDeadline(t)
}

// A server's deadlines hold as they were set last, whoever set them and when.
func TestDeadlinesOfAServer(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		at    []time.Duration // when one is set
		to    []time.Duration // 0: none any more; -1: past
		comes time.Duration   // a byte; 0: never
		want  time.Duration   // when the read ends
		told  int64
	}{
		"one":                             {at: []time.Duration{0}, to: []time.Duration{10 * s}, want: 10 * s, told: 1},
		"what comes before":               {at: []time.Duration{0}, to: []time.Duration{10 * s}, comes: 9 * s, want: 9 * s, told: 1},
		"put off":                         {at: []time.Duration{0, 1 * s, 2 * s, 5 * s}, to: []time.Duration{10 * s, 11 * s, 12 * s, 20 * s}, want: 20 * s, told: 2},
		"put off, and something comes":    {at: []time.Duration{0, 5 * s}, to: []time.Duration{10 * s, 20 * s}, comes: 15 * s, want: 15 * s, told: 2},
		"put off, and again after it":     {at: []time.Duration{0, 5 * s, 15 * s}, to: []time.Duration{10 * s, 20 * s, 30 * s}, want: 30 * s, told: 3},
		"earlier":                         {at: []time.Duration{0, 5 * s}, to: []time.Duration{10 * s, 7 * s}, want: 7 * s, told: 2},
		"put off, then earlier":           {at: []time.Duration{0, 1 * s, 2 * s}, to: []time.Duration{10 * s, 20 * s, 15 * s}, want: 15 * s, told: 2},
		"taken back":                      {at: []time.Duration{0, 5 * s}, to: []time.Duration{10 * s, 0}, comes: 60 * s, want: 60 * s, told: 2},
		"put off, then taken back":        {at: []time.Duration{0, 1 * s, 5 * s}, to: []time.Duration{10 * s, 20 * s, 0}, comes: 60 * s, want: 60 * s, told: 2},
		"set again after it was":          {at: []time.Duration{0, 1 * s, 2 * s}, to: []time.Duration{10 * s, 0, 12 * s}, want: 12 * s, told: 3},
		"past, which ends it":             {at: []time.Duration{0, 5 * s}, to: []time.Duration{10 * s, -1}, want: 5 * s, told: 2},
		"put off, then past":              {at: []time.Duration{0, 1 * s, 5 * s}, to: []time.Duration{10 * s, 20 * s, -1}, want: 5 * s, told: 2},
		"past, and put off before a read": {at: []time.Duration{0, 0}, to: []time.Duration{-1, 8 * s}, want: 8 * s, told: 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			defer a.Close() //nolint:errcheck // it has done its work
			defer b.Close() //nolint:errcheck // it has done its work
			begun := time.Now()
			below := &counting{Conn: b}
			conn := forServer(below)
			set := func(i int) {
				by := begun.Add(c.to[i])
				switch c.to[i] {
				case 0:
					by = time.Time{}
				case -1:
					by = time.Unix(1, 0)
				}
				if err := conn.SetReadDeadline(by); err != nil {
					t.Error(err)
				}
			}
			for i, at := range c.at {
				if at == 0 {
					set(i)
				} else {
					time.AfterFunc(at, func() { set(i) })
				}
			}
			if c.comes > 0 {
				time.AfterFunc(c.comes, func() { _, _ = a.Write([]byte{1}) })
			}
			n, err := conn.Read(make([]byte, 1))
			if took := time.Since(begun); took != c.want || (n == 1) != (c.comes > 0) || n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s: %d bytes and %v after %v, want it after %v", name, n, err, took, c.want)
			}
			if n := below.told.Load(); n != c.told {
				t.Errorf("%s: the connection was told %d deadlines, want %d", name, n, c.told)
			}
		})
	}
}

// A write whose deadline is put off goes on where it was.
func TestAWriteGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		defer a.Close() //nolint:errcheck // it has done its work
		defer b.Close() //nolint:errcheck // it has done its work
		conn, begun := forServer(b), time.Now()
		_ = conn.SetWriteDeadline(begun.Add(10 * time.Second))
		_ = conn.SetDeadline(begun.Add(30 * time.Second))
		got := make([]byte, 3)
		time.AfterFunc(5*time.Second, func() { _, _ = io.ReadFull(a, got[:1]) })
		time.AfterFunc(20*time.Second, func() { _, _ = io.ReadFull(a, got[1:]) })
		if n, err := conn.Write([]byte("abc")); n != 3 || err != nil {
			t.Fatalf("%d bytes written: %v", n, err)
		}
		synctest.Wait()
		if took := time.Since(begun); string(got) != "abc" || took != 20*time.Second {
			t.Errorf("%q after %v", got, took)
		}
		n, err := conn.Write([]byte("d"))
		if took := time.Since(begun); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took != 30*time.Second {
			t.Errorf("%d bytes and %v after %v, want none by 30s", n, err, took)
		}
	})
}
