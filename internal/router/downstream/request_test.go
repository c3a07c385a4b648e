package downstream

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripted is a connection on which a text comes in pieces, and then its end.
type scripted struct {
	text  []byte
	piece func() int
	out   bytes.Buffer
}

func (c *scripted) Read(p []byte) (int, error) {
	if len(c.text) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(max(c.piece(), 1), len(p))], c.text)
	c.text = c.text[n:]
	return n, nil
}
func (c *scripted) Write(p []byte) (int, error)      { return c.out.Write(p) }
func (c *scripted) Close() error                     { return nil }
func (c *scripted) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *scripted) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }
func (c *scripted) SetDeadline(time.Time) error      { return nil }
func (c *scripted) SetReadDeadline(time.Time) error  { return nil }
func (c *scripted) SetWriteDeadline(time.Time) error { return nil }

// seen is what a handler sees of a request.
type seen struct {
	Method, URI, Path, RawPath, Query, Proto, Host string
	Header                                         http.Header
	Length                                         int64
	Encoding                                       []string
	Body, Err                                      string
}

func see(r *http.Request) seen {
	body, err := io.ReadAll(r.Body)
	s := seen{Method: r.Method, URI: r.RequestURI, Path: r.URL.Path, RawPath: r.URL.RawPath, Query: r.URL.RawQuery, Proto: r.Proto, Host: r.Host,
		Header: r.Header.Clone(), Length: r.ContentLength, Encoding: r.TransferEncoding, Body: string(body)}
	if err != nil {
		s.Err = "broken" // how, servers say in their own words
	}
	delete(s.Header, "Trailer")
	return s
}

// byUs returns what a Server makes of a text, and what it answers to refusals.
func byUs(text []byte, piece func() int) (all []seen, answers string) {
	var mu sync.Mutex
	s := New(Config{MaxHeader: 8 << 10, ReadTimeout: time.Hour, WriteTimeout: time.Hour, IdleTimeout: time.Hour, Refused: func(string) {},
		Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, see(r))
		})})
	c := &scripted{text: bytes.Clone(text), piece: piece}
	newConn(s, c).serve()
	return all, c.out.String()
}

// byNetHTTP returns what net/http's parser makes of it, up to what it refuses.
func byNetHTTP(text []byte) (all []seen) {
	in := bufio.NewReaderSize(bytes.NewReader(text), 64<<10)
	for {
		r, err := http.ReadRequest(in)
		if err != nil {
			return all
		}
		all = append(all, see(r))
		if r.Close || all[len(all)-1].Err != "" {
			return all
		}
	}
}

// agree requires that what we take net/http takes, and as the same.
func agree(t *testing.T, text []byte, piece func() int) {
	t.Helper()
	ours, _ := byUs(text, piece)
	theirs := byNetHTTP(text)
	if len(ours) > len(theirs) {
		t.Fatalf("%.2000q: %d requests, net/http finds %d: %+v", text, len(ours), len(theirs), ours[len(theirs):])
	}
	for i := range ours {
		if ours[i].Err != "" { // we may be stricter in the middle of a body
			theirs[i].Err, theirs[i].Body = ours[i].Err, ours[i].Body
		}
		if !reflect.DeepEqual(ours[i], theirs[i]) {
			t.Fatalf("%.2000q: request %d is\n%+v, for net/http\n%+v", text, i, ours[i], theirs[i])
		}
	}
}

func corpus() []string {
	trap := "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
	return []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST /v1/a%2Fb/c?d=e%20f HTTP/1.1\r\nhost: x:80\r\ncontent-length: 5\r\nX-A: 1\r\nx-a:  2 \t\r\n\r\nhello",
		"POST / HTTP/1.1\nHost: x\ncontent-LENGTH:2\n\nab",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 53\r\n\r\n\r\n" + trap + "ab",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n33;x=y\r\n" + trap + "ab\r\n2\r\n\r\n\r\n0\r\nContent-Length: 3\r\n\r\n",
		"GET http://y/z?q HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET //a/../b HTTP/1.1\r\nHost: x\r\nConnection: x, keep-alive\r\nAccept: a\r\nAccept: b\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /" + strings.Repeat("long", 1500) + " HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
		"POST /n HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
	}
}

// Any requests one after the other, in any pieces, are read as net/http reads them.
func TestRequestsAreAsNetHTTPReadsThem(t *testing.T) {
	list := corpus()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var text []byte
		n := 1 + rng.IntN(6)
		for range n {
			text = append(text, list[rng.IntN(len(list))]...)
		}
		most := []int{1, 7, 100, 100_000}[seed%4]
		piece := func() int { return 1 + rng.IntN(most) }
		agree(t, text, piece)
		if ours, answers := byUs(text, piece); len(ours) != n {
			t.Fatalf("seed %d: %d of %d requests, %q", seed, len(ours), n, answers)
		}
	}
}

// What servers disagree about is refused, and what follows it is not looked at.
func TestWhatIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": "400 two_lengths",
		"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\nX: " + strings.Repeat("y", 500) +
			"\r\ncontent-length: 0\r\n\r\n": "400 two_lengths",
		"POST / HTTP/1.1\nHost: x\nTransfer-Encoding:chunked\nContent-Length:3\n\n":                 "400 two_lengths",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length:\r\n 6\r\n\r\n": "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: identity\r\n\r\n":                         "501 transfer_encoding",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n":  "501 transfer_encoding",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n":  "501 transfer_encoding",
		"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":                 "501 transfer_encoding",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na":                                 "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na":                               "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\na":                                "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab":            "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\nab":              "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n":                                    "400 malformed_head",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\na":                                 "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n":                                           "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\x00\r\n\r\n":                                             "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n":                                           "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\n: b\r\n\r\n":                                                  "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n":                                             "400 malformed_head",
		"GET / HTTP/1.1\r\n\r\n":                                                                     "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n":                                               "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x/y@z\r\n\r\n":                                                      "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nExpect: 200-maybe\r\n\r\n":                                     "417 expectation",
		"GET / HTTP/1.2\r\nHost: x\r\n\r\n":                                                          "505 http_version",
		"GET / HTTP/2.0\r\nHost: x\r\n\r\n":                                                          "505 http_version",
		"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n":                                                       "400 malformed_head",
		"GET  / HTTP/1.1\r\nHost: x\r\n\r\n":                                                         "400 malformed_head",
		"G(T / HTTP/1.1\r\nHost: x\r\n\r\n":                                                          "400 malformed_head",
		"GET / http/1.1\r\nHost: x\r\n\r\n":                                                          "400 malformed_head",
		"GET /\r\n\r\n":                                                                              "400 malformed_head",
		"\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n":                                                  "400 malformed_head",
		"\x16\x03\x01\x00" + strings.Repeat("x", 1000) + "\n\n":                                      "400 malformed_head",
		"GET / HTTP/1.1\r\nHost: x\r\nLong: " + strings.Repeat("x", 16<<10) + "\r\n\r\n":             "431 head_too_large",
		"GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("A: b\r\n", 4<<10) + "\r\n":                 "431 head_too_large",
		"GET / HTTP/1.1\r\nHost: x\r\nLong: " + strings.Repeat("x", 17<<10) + " (and never its end)": "431 head_too_large",
	} {
		served := make(chan string, 10)
		l := newLab(t, func(_ http.ResponseWriter, r *http.Request) { served <- r.RequestURI }, nil)
		k := l.dial("GET /before HTTP/1.1\r\nHost: x\r\n\r\n" + text + "GET /behind HTTP/1.1\r\nHost: x\r\n\r\n")
		k.hear("GET")
		resp, _ := k.hear("GET")
		k.ends()
		l.mu.Lock()
		if got := fmt.Sprint(resp.StatusCode, " ", strings.Join(l.refused, " ")); got != want || !resp.Close {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		l.mu.Unlock()
		if first := <-served; first != "/before" || len(served) > 0 {
			t.Errorf("%q: %s and %d more were served", text, first, len(served))
		}
	}
}

// Chunks that are none break the body off, and nothing behind them is a request.
func TestBrokenChunks(t *testing.T) {
	for _, chunks := range []string{"zz\r\n", "-1\r\n", "+1\r\na\r\n", "\r\n", "1\r\nab\r\n", "1\na\r\n", "1\r\na\n", "8000000000000000\r\n", "1" + strings.Repeat(" ", 5<<10) + "\r\na\r\n", "0\r\n" + strings.Repeat("X: y\r\n", 4<<10),
		strings.Repeat("1;"+strings.Repeat("x", 3<<10)+"\r\na\r\n", 8)} {
		all, _ := byUs([]byte("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"+chunks+"0\r\n\r\nGET /behind HTTP/1.1\r\nHost: x\r\n\r\n"), func() int { return 1 << 20 })
		if len(all) != 1 || all[0].Err == "" {
			t.Errorf("%.20q: %+v", chunks, all)
		}
	}
}

func FuzzRequests(f *testing.F) {
	for _, text := range corpus() {
		f.Add([]byte(text), uint16(1000))
	}
	f.Add([]byte(strings.Join(corpus(), "")), uint16(3))
	f.Fuzz(func(t *testing.T, text []byte, most uint16) {
		agree(t, text, func() int { return int(most) })
	})
}
