package zmtp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// pair returns two connected ends of types that fit.
func pair(t testing.TB, a, b Type, o Options) (*Conn, *Conn) {
	t.Helper()
	l, err := Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *Conn, 1)
	go func() {
		defer close(accepted)
		nc, err := l.Accept()
		if err != nil {
			return
		}
		if c, err := Handshake(nc, b, o); err == nil {
			accepted <- c
		}
	}()
	ca, err := Dial(t.Context(), "tcp://"+l.Addr().String(), a, o)
	if err != nil {
		t.Fatal(err)
	}
	cb := <-accepted
	if cb == nil {
		t.Fatal("the accepting side's handshake failed")
	}
	t.Cleanup(func() { ca.Close(); cb.Close() })
	return ca, cb
}

// say writes to a peer that may have hung up already.
func say(w io.Writer, b []byte) { _, _ = w.Write(b) }

// hear reads n bytes from a peer that may hang up before.
func hear(r io.Reader, n int) []byte {
	b := make([]byte, n)
	_, _ = io.ReadFull(r, b)
	return b
}

// tell sends a message to a peer that may have hung up already.
func tell(c *Conn, frames ...[]byte) { _ = c.WriteMessage(frames...) }

func read(t testing.TB, c *Conn) [][]byte {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	var m Message
	if err := c.ReadMessage(&m); err != nil {
		t.Fatal(err)
	}
	var frames [][]byte
	for i := range m.Len() {
		frames = append(frames, m.Frame(i))
	}
	return frames
}

// raw is a connection that has shaken hands with a peer of which the test
// writes every byte after its READY.
func raw(t testing.TB, mine Type, peer string, o Options) (*Conn, net.Conn) {
	t.Helper()
	a, b := net.Pipe()
	t.Cleanup(func() { a.Close(); b.Close() })
	go func() {
		hear(b, greetingSize)
		say(b, greeting())
		hear(b, len(ready(string(mine))))
		say(b, ready(peer))
	}()
	c, err := Handshake(a, mine, o)
	if err != nil {
		t.Fatal(err)
	}
	return c, b
}

func ready(peer string) []byte {
	body := appendProperty([]byte("\x05READY"), "Socket-Type", peer)
	return append(appendHeader(nil, flagCommand, len(body)), body...)
}

func TestBytesOfTheHandshake(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	go func() { _, _ = Handshake(b, Sub, Options{}) }()
	have := make([]byte, greetingSize)
	if _, err := io.ReadFull(a, have); err != nil {
		t.Fatal(err)
	}
	want := "ff00000000000000007f0300" + hex.EncodeToString([]byte("NULL")) + strings.Repeat("00", 48)
	if hex.EncodeToString(have) != want {
		t.Errorf("greeting %x\nwant     %s", have, want)
	}
	say(a, greeting())
	have = make([]byte, 27)
	if _, err := io.ReadFull(a, have); err != nil {
		t.Fatal(err)
	}
	if want := "04190552454144590b536f636b65742d5479706500000003535542"; hex.EncodeToString(have) != want {
		t.Errorf("READY %x\nwant  %s", have, want)
	}
}

func TestMessagesArriveAsSent(t *testing.T) {
	sub, pub := pair(t, Sub, Pub, Options{})
	if err := sub.Subscribe("kv@"); err != nil {
		t.Fatal(err)
	}
	if have := read(t, pub); len(have) != 1 || string(have[0]) != "\x01kv@" {
		t.Fatalf("subscription %q", have)
	}
	for _, n := range []int{0, 1, 255, 256, readAhead - 1, readAhead, readAhead + 1, 3 << 20} {
		want := [][]byte{nil, []byte("12345678"), bytes.Repeat([]byte{byte(n)}, n)}
		sent := make(chan error, 1)
		go func() { sent <- pub.WriteMessage(want...) }()
		have := read(t, sub)
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
		if len(have) != 3 || len(have[0]) != 0 || !bytes.Equal(have[1], want[1]) || !bytes.Equal(have[2], want[2]) {
			t.Fatalf("%d bytes: frames differ from what was sent", n)
		}
	}
}

func TestUnixSockets(t *testing.T) {
	endpoint := "ipc://" + filepath.Join(t.TempDir(), "s")
	l, err := Listen(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		if c, err := Handshake(nc, Router, Options{}); err == nil {
			tell(c, []byte("hello"))
		}
	}()
	c, err := Dial(t.Context(), endpoint, Dealer, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if have := read(t, c); string(have[0]) != "hello" {
		t.Errorf("have %q", have)
	}
}

func TestEndpointsRefused(t *testing.T) {
	for _, e := range []string{"", "127.0.0.1:1", "tcp://", "tcp://*:5557", "tcp://:5557", "udp://127.0.0.1:1", "inproc://x", "ipc://"} {
		if c, err := Dial(t.Context(), e, Sub, Options{}); err == nil {
			c.Close()
			t.Errorf("%q is connected to", e)
		}
	}
}

func TestPeersRefused(t *testing.T) {
	old := greeting()
	old[10] = 1
	curve := greeting()
	copy(curve[12:], "CURVE")
	signature := greeting()
	signature[9] = 0
	hello := func(after string) []byte { return append(greeting(), after...) }
	for name, sent := range map[string][]byte{
		"a web server":             []byte("HTTP/1.1 400 Bad Request\r\n"),
		"an older version":         old,
		"another mechanism":        curve,
		"a wrong signature":        signature,
		"a wrong socket":           hello(string(ready("ROUTER"))),
		"no socket":                hello("\x04\x06\x05READY"),
		"an error":                 hello("\x04\x09\x05ERROR\x02no"),
		"a message first":          hello("\x00\x01x"),
		"a giant command":          hello("\x06\x00\x00\x00\x00\x7f\xff\xff\xff"),
		"an empty command":         hello("\x04\x00"),
		"a property cut short":     hello("\x04\x09\x05READY\x0bSo"),
		"a property beyond limits": hello("\x04\x16\x05READY\x0bSocket-Type\xff\xff\xff\xff"),
	} {
		a, b := net.Pipe()
		go hear(b, 1<<20)
		go say(b, sent)
		if c, err := Handshake(a, Sub, Options{}); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: error %v", name, err)
			if c != nil {
				c.Close()
			}
		}
		b.Close()
	}
}

func TestPeersThatSayNothing(t *testing.T) {
	l, err := Listen("tcp://127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	endpoint := "tcp://" + l.Addr().String()
	if _, err := Dial(t.Context(), endpoint, Sub, Options{Handshake: 20 * time.Millisecond}); err == nil {
		t.Error("a silent peer was taken")
	}
	for _, part := range []int{0, 1, 11, greetingSize, greetingSize + 5} {
		a, b := net.Pipe()
		go hear(b, 1<<20)
		go func() {
			say(b, append(greeting(), ready("PUB")...)[:part])
			b.Close()
		}()
		if _, err := Handshake(a, Sub, Options{}); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("a peer that leaves after %d bytes: error %v", part, err)
		}
	}
}

func TestPingIsAnswered(t *testing.T) {
	c, peer := raw(t, Sub, "XPUB", Options{})
	go func() {
		say(peer, []byte("\x04\x0b\x04PING\x00\x0actxt"))
		have := hear(peer, 11)
		say(peer, []byte("\x04\x0a\x09SUBSCRIBE"))
		say(peer, append([]byte{0, 11}, have...))
	}()
	if have := read(t, c); string(have[0]) != "\x04\x09\x04PONGctxt" {
		t.Errorf("answer %q", have)
	}
}

func TestTooLargeMessagesArePassedOver(t *testing.T) {
	sub, pub := pair(t, Sub, Pub, Options{MaxMessage: 1000})
	go func() {
		tell(pub, []byte("t"), []byte("12345678"), make([]byte, 1<<20))
		tell(pub, []byte("t"), make([]byte, 1<<20), []byte("12345678"))
		tell(pub, []byte("t"), []byte("12345678"), make([]byte, 991))
	}()
	var m Message
	if err := sub.ReadMessage(&m); !errors.Is(err, ErrTooLarge) || m.Len() != 3 || string(m.Frame(1)) != "12345678" || len(m.Frame(2)) != 0 {
		t.Fatalf("error %v, %d frames", err, m.Len())
	}
	if err := sub.ReadMessage(&m); !errors.Is(err, ErrTooLarge) || m.Len() != 3 || m.Size() != 1 {
		t.Fatalf("error %v, %d frames of %d bytes", err, m.Len(), m.Size())
	}
	if err := sub.ReadMessage(&m); err != nil || m.Size() != 1000 {
		t.Fatalf("the message after: %v, %d bytes", err, m.Size())
	}
	if m.Cap() > 2*readAhead {
		t.Errorf("%d bytes were allocated for messages of 1,000", m.Cap())
	}
}

func TestDeclaredSizesAllocateNothing(t *testing.T) {
	c, peer := raw(t, Sub, "PUB", Options{})
	go func() {
		say(peer, []byte("\x02\x00\x00\x00\x00\x03\xff\xff\xff")) // 64 MiB - 1
		say(peer, make([]byte, 100))
		peer.Close()
	}()
	var m Message
	if err := c.ReadMessage(&m); !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("error %v", err)
	}
	if m.Cap() > readAhead {
		t.Errorf("%d bytes were allocated for 100", m.Cap())
	}
}

func TestFramesRefused(t *testing.T) {
	many := strings.Repeat("\x01\x00", 65)
	for name, sent := range map[string]string{
		"unknown flags":           "\x08\x00",
		"a command with more":     "\x05\x01\x00",
		"an absurd size":          "\x02\x7f\xff\xff\xff\xff\xff\xff\xff",
		"too many frames":         many,
		"a PING too short":        "\x04\x06\x04PING\x00",
		"a name beyond the frame": "\x04\x02\x09P",
		"an error":                "\x04\x09\x05ERROR\x02no",
	} {
		c, peer := raw(t, Sub, "PUB", Options{})
		go say(peer, []byte(sent))
		var m Message
		if err := c.ReadMessage(&m); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

func TestCloseEndsARead(t *testing.T) {
	sub, _ := pair(t, Sub, Pub, Options{})
	ended := make(chan error, 1)
	go func() {
		var m Message
		ended <- sub.ReadMessage(&m)
	}()
	go func() { _ = sub.Subscribe("x") }()
	sub.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("error %v", err)
	}
}

// tape plays bytes as if they came from a peer, and again from the start.
type tape struct {
	net.Conn
	data, left []byte
	again      bool
}

func (p *tape) Read(b []byte) (int, error) {
	if len(p.left) == 0 {
		if !p.again {
			return 0, io.EOF
		}
		p.left = p.data
	}
	n := copy(b, p.left)
	p.left = p.left[n:]
	return n, nil
}

func (*tape) Write(b []byte) (int, error)      { return len(b), nil }
func (*tape) SetDeadline(time.Time) error      { return nil }
func (*tape) SetReadDeadline(time.Time) error  { return nil }
func (*tape) SetWriteDeadline(time.Time) error { return nil }
func (*tape) Close() error                     { return nil }
func (*tape) RemoteAddr() net.Addr             { return &net.TCPAddr{} }

// recorded returns a connection that plays a publisher's messages for ever.
func recorded(t testing.TB, payload int) *Conn {
	p := &tape{left: append(greeting(), ready("PUB")...), again: true}
	for i := range 64 {
		p.data = append(p.data, "\x01\x02kv\x01\x081234567"...)
		p.data = append(appendHeader(append(p.data, byte(i)), 0, payload), make([]byte, payload)...)
	}
	c, err := Handshake(p, Sub, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestReadingDoesNotAllocate(t *testing.T) {
	c := recorded(t, 8<<10)
	var m Message
	if err := c.ReadMessage(&m); err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(200, func() {
		if err := c.ReadMessage(&m); err != nil || m.Len() != 3 || m.Size() != 2+8+8<<10 {
			t.Fatalf("%v: %d frames of %d bytes", err, m.Len(), m.Size())
		}
	}); n > 0 {
		t.Errorf("%v allocations a message", n)
	}
}

func BenchmarkReadMessage(b *testing.B) {
	for _, size := range []int{512, 8 << 10} {
		b.Run(map[int]string{512: "512B", 8 << 10: "8KiB"}[size], func(b *testing.B) {
			c := recorded(b, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			var m Message
			for b.Loop() {
				if err := c.ReadMessage(&m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func FuzzRead(f *testing.F) {
	hello := append(greeting(), ready("PUB")...)
	for _, s := range []string{
		"", "\x01\x02kv\x01\x0812345678\x00\x03abc", "\x04\x0b\x04PING\x00\x0actxt\x00\x00",
		"\x02\x00\x00\x00\x00\x00\x00\x01\x00" + strings.Repeat("x", 256), "\x02\xff\xff\xff\xff\xff\xff\xff\xff",
	} {
		f.Add(append(bytes.Clone(hello), s...))
	}
	f.Add([]byte("HTTP/1.1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		const most = 300
		c, err := Handshake(&tape{left: data}, Sub, Options{MaxMessage: most})
		if err != nil {
			return
		}
		var m Message
		for messages := 0; ; messages++ {
			err := c.ReadMessage(&m)
			if err != nil && !errors.Is(err, ErrTooLarge) {
				return
			}
			if m.Size() > most || m.Len() == 0 || m.Len() > 64 || messages > len(data) {
				t.Fatalf("message %d: %d frames of %d bytes", messages, m.Len(), m.Size())
			}
			n := 0
			for i := range m.Len() {
				n += len(m.Frame(i))
			}
			if n != m.Size() {
				t.Fatalf("frames of %d bytes in a message of %d", n, m.Size())
			}
		}
	})
}
