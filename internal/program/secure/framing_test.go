package secure

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// Of requests in any pieces, those that say two lengths and what follows them do not
// get through; all others do, bytes that look like heads in bodies too.
func TestFramer(t *testing.T) {
	const (
		trap  = "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
		get   = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
		long  = "POST / HTTP/1.1\r\nContent-Length: 53\r\n\r\n\r\n" + trap + "ab"
		parts = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n33;x=y\r\n" + trap + "ab\r\n2\r\n\r\n\r\n0\r\nContent-Length: 3\r\n\r\n"
		bare  = "POST / HTTP/1.1\nHost: x\ncontent-LENGTH:2\n\nab"
	)
	for name, c := range map[string]struct {
		text string
		bad  string // after the text
	}{
		"many":             {get + long + get + parts + bare + parts + long, ""},
		"both":             {get + long + parts, "POST / HTTP/1.1\r\n" + trap},
		"the other way":    {parts + bare, "POST / HTTP/1.1\r\ntransfer-encoding: Chunked\r\nX: " + strings.Repeat("y", 500) + "\r\ncontent-length: 0\r\n\r\n"},
		"bare lines":       {"", "POST / HTTP/1.1\nTransfer-Encoding:chunked\nContent-Length:3\n\n"},
		"a folded length":  {get, "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length:\r\n 6\r\n\r\n"},
		"HTTP/2":           {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + trap, ""},
		"no HTTP":          {"\x16\x03\x01\x00" + strings.Repeat("x", 1000), ""},
		"a length in vain": {"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n" + trap, ""},
	} {
		for seed := range uint64(20) {
			rng := rand.New(rand.NewPCG(seed, 0))
			var f framer
			all := c.text + c.bad + get
			passed := 0
			for passed < len(all) {
				n := min(1+rng.IntN([]int{1, 3, 100, 10_000}[seed%4]), len(all)-passed)
				got := f.feed([]byte(all[passed : passed+n]))
				if passed += got; got < n {
					break
				}
			}
			if c.bad == "" && passed < len(all) || c.bad != "" && (passed < len(c.text) || passed >= len(c.text)+len(c.bad)) {
				t.Errorf("%s, seed %d: %d of %d bytes pass, %d are good", name, seed, passed, len(all), len(c.text))
			}
		}
	}
}

// net/http's server answers 400 and closes, after it has answered what came before.
func TestTwoLengthsAreRefused(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var refused, served atomic.Int64
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		_, _ = io.Copy(w, r.Body)
	})}
	go s.Serve(Framed(ln, func() { refused.Add(1) })) //nolint:errcheck // ends with Close
	t.Cleanup(func() { _ = s.Close() })
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // all was read
	good := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"
	bad := "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nX"
	if _, err := fmt.Fprint(c, good, good, bad, good); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(c)
	for i, want := range []int{200, 200, 400} {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(i, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != want || resp.Close != (want == 400) {
			t.Errorf("answer %d: %s %v", i, resp.Status, err)
		}
	}
	if n, err := in.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("the connection goes on")
	}
	if refused.Load() != 1 || served.Load() != 2 {
		t.Errorf("%d refused, %d served", refused.Load(), served.Load())
	}
}
