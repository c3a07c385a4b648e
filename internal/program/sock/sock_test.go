package sock

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair returns the two ends of a connection.
func pair(t *testing.T) (a, b net.Conn) {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // it has done its work
	if a, err = new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if b, err = ln.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	return Wrap(a), Wrap(b)
}

// What is written arrives, also what is more than the kernel takes at once, in both
// directions at the same time.
func TestWhatIsWrittenArrives(t *testing.T) {
	a, b := pair(t)
	data := make([]byte, 32<<20)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	errs := make(chan error, 2)
	for _, c := range []net.Conn{a, b} {
		go func() { // ends when all is written, or the test
			_, err := c.Write(data)
			errs <- errors.Join(err, c.(interface{ CloseWrite() error }).CloseWrite())
		}()
	}
	got := make(chan []byte, 1)
	go func() { // ends with the connection
		text, _ := io.ReadAll(b)
		got <- text
	}()
	text, err := io.ReadAll(a)
	if err = errors.Join(err, <-errs, <-errs); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(text, data) || !bytes.Equal(<-got, data) {
		t.Error("it is not the same")
	}
}

// A wait ends as that of a net.Conn does, and errors can be told apart as its can.
func TestHowWaitsEnd(t *testing.T) {
	full := make([]byte, 64<<20)
	for name, c := range map[string]struct {
		do   func(a, b net.Conn) error
		want error
	}{
		"the other side ends": {func(a, b net.Conn) error { _ = b.Close(); return read(a) }, io.EOF},
		"a reset":             {func(a, b net.Conn) error { _ = a.SetReadDeadline(time.Time{}); reset(b); return read(a) }, syscall.ECONNRESET},
		"nobody reads": {func(a, b net.Conn) error {
			reset(b)
			_ = read(a)
			_, err := a.Write(full)
			return err
		}, syscall.EPIPE},
		"a deadline for reading": {func(a, _ net.Conn) error {
			time.AfterFunc(10*time.Millisecond, func() { _ = a.SetReadDeadline(time.Unix(1, 0)) })
			return read(a)
		}, os.ErrDeadlineExceeded},
		"a deadline for writing": {func(a, _ net.Conn) error {
			_ = a.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
			_, err := a.Write(full)
			return err
		}, os.ErrDeadlineExceeded},
		"its own end": {func(a, _ net.Conn) error {
			time.AfterFunc(10*time.Millisecond, func() { _ = a.Close() })
			return read(a)
		}, net.ErrClosed},
	} {
		a, b := pair(t)
		done := make(chan error, 1)
		go func() { done <- c.do(a, b) }() // ends with the connection, at the latest
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		select {
		case err := <-done:
			if !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		case <-ctx.Done():
			t.Errorf("%s: it waits on", name)
		}
		cancel()
	}
}

func read(c net.Conn) error {
	_, err := c.Read(make([]byte, 1))
	return err
}

// reset ends the connection without its last bytes.
func reset(c net.Conn) {
	if k, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = k.NetConn()
	}
	_ = c.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it is one
	_ = c.Close()
}

// What is done before a write is done before what is read then, to the race detector, too.
func TestOrder(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close() //nolint:errcheck // nothing is under way
	a, err := new(net.Dialer).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close() //nolint:errcheck // nothing is under way
	b, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // nothing is under way
	said := 0
	for _, pair := range [][2]net.Conn{{Wrap(a), b}, {b, Wrap(a)}, {Wrap(a), Wrap(b)}} {
		go func() { // ends with its write
			said++
			_, _ = pair[0].Write([]byte{1}) // else the read fails
		}()
		if _, err := pair[1].Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		said++
	}
	if said != 6 {
		t.Error(said)
	}
}

// asker is what Wrap returns where it does something.
type asker interface {
	net.Conn
	Ask(p, more []byte, silent bool) error
}

// heard calls do, and waits until the runtime has heard of what it does to the connection.
func heard(t *testing.T, c net.Conn, do func() error) {
	t.Helper()
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	done := false
	err = raw.Read(func(uintptr) bool {
		if done {
			return true
		}
		done, err = true, do()
		return err != nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Whatever the other side does with what is asked, Ask comes back, and the next Read says
// what there is.
func TestAsk(t *testing.T) {
	answers := func(b net.Conn, size int, answer []byte) {
		_, _ = io.ReadFull(b, make([]byte, size)) // else the asker sees it
		_, _ = b.Write(answer)
	}
	for name, c := range map[string]struct {
		size  int
		other func(a, b net.Conn)
		want  error
	}{
		"it answers":         {10, func(_, b net.Conn) { go answers(b, 10, []byte{1}) }, nil},
		"more than fits":     {16 << 20, func(_, b net.Conn) { go answers(b, 16<<20, []byte{1}) }, nil},
		"it answers halfway": {10, func(_, b net.Conn) { go answers(b, 5, []byte{1}) }, nil},
		"it has answered": {10, func(a, b net.Conn) {
			heard(t, a, func() error { _, err := b.Write([]byte{1}); return err })
		}, nil},
		"it says no more": {10, func(a, b net.Conn) { heard(t, a, b.(interface{ CloseWrite() error }).CloseWrite) }, io.EOF},
		"it has ended":    {10, func(_, b net.Conn) { _ = b.Close() }, io.EOF},
		"it ends": {10, func(_, b net.Conn) {
			go answers(b, 10, nil)
			time.AfterFunc(10*time.Millisecond, func() { _ = b.Close() })
		}, io.EOF},
		"it is silent": {10, func(a, _ net.Conn) {
			time.AfterFunc(10*time.Millisecond, func() { _ = a.SetDeadline(time.Unix(1, 0)) })
		}, os.ErrDeadlineExceeded},
		"a deadline is over": {10, func(a, _ net.Conn) { _ = a.SetDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
		"its own end":        {10, func(a, _ net.Conn) { time.AfterFunc(10*time.Millisecond, func() { _ = a.Close() }) }, net.ErrClosed},
	} {
		for range 20 {
			x, b := pair(t)
			a, ok := x.(asker)
			if !ok {
				t.Skip("nothing is wrapped here")
			}
			c.other(a, b)
			done := make(chan error, 1)
			go func() { // ends with the connection, at the latest
				asked := make([]byte, c.size)
				at := rand.IntN(c.size + 1)
				err := a.Ask(asked[:at], asked[at:], false)
				done <- errors.Join(err, read(a))
			}()
			late := time.NewTimer(30 * time.Second)
			select {
			case err := <-done:
				if c.want == nil && err != nil || !errors.Is(err, c.want) && !(c.want == io.EOF && errors.Is(err, syscall.ECONNRESET)) {
					t.Errorf("%s: %v, want %v", name, err, c.want)
				}
			case <-late.C:
				t.Fatalf("%s: it waits on", name)
			}
			late.Stop()
		}
	}
}

// What is asked arrives, in whichever two parts, also where it does not fit at once.
func TestAskWritesBoth(t *testing.T) {
	for range 50 {
		x, b := pair(t)
		a, ok := x.(asker)
		if !ok {
			t.Skip("nothing is wrapped here")
		}
		data := make([]byte, 1+rand.IntN([...]int{10, 1 << 16, 8 << 20}[rand.IntN(3)]))
		for i := range data {
			data[i] = byte(i % 251)
		}
		at := [...]int{0, rand.IntN(min(len(data), 1000)), rand.IntN(len(data) + 1), len(data)}[rand.IntN(4)]
		got := make(chan []byte, 1)
		go func() { // ends with the connection, at the latest
			all := make([]byte, len(data))
			n, _ := io.ReadFull(b, all)
			got <- all[:n]
			_, _ = b.Write([]byte{1})
		}()
		_ = a.SetDeadline(time.Now().Add(30 * time.Second))
		if err := errors.Join(a.Ask(data[:at], data[at:], false), read(a)); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(<-got, data) {
			t.Fatalf("of %d bytes, %d in front, others arrive", len(data), at)
		}
	}
}

// With silent, nothing is written to a connection on which something has come, or its end.
func TestAskOfTheSilent(t *testing.T) {
	for name, before := range map[string]func(a, b net.Conn) error{
		"it has spoken":   func(_, b net.Conn) error { _, err := b.Write([]byte{1}); return err },
		"it says no more": func(_, b net.Conn) error { return b.(interface{ CloseWrite() error }).CloseWrite() },
		"it is silent":    nil,
	} {
		x, b := pair(t)
		a, ok := x.(asker)
		if !ok {
			t.Skip("nothing is wrapped here")
		}
		want, left := ErrSpoke, 0
		if before == nil {
			want, left = nil, 3
			go func() { _, _ = b.Write([]byte{1}) }() // which ends the wait
			_ = a.SetDeadline(time.Now().Add(30 * time.Second))
		} else {
			heard(t, a, func() error { return before(a, b) })
		}
		err := a.Ask([]byte{1, 2}, []byte{3}, true)
		if before == nil && errors.Is(err, ErrSpoke) { // its byte came first
			continue
		}
		_ = a.Close()
		got, _ := io.ReadAll(b)
		if !errors.Is(err, want) || len(got) != left {
			t.Errorf("%s: %v and %d bytes, want %v and %d", name, err, len(got), want, left)
		}
	}
}
