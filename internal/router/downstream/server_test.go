package downstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const get = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"

// What a client gets is an answer of HTTP, whatever the handler does, and the connection
// goes on where it can.
func TestAnswers(t *testing.T) {
	long := strings.Repeat("long ", 10_000)
	parts := func(w http.ResponseWriter, list ...string) {
		for _, part := range list {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	}
	for name, c := range map[string]struct {
		handler func(w http.ResponseWriter, r *http.Request)
		method  string
		old     bool
		want    string // status, length, body
		ends    bool
	}{
		"nothing": {handler: func(http.ResponseWriter, *http.Request) {}, want: "200 0 "},
		"a text": {handler: func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hi")
			_, _ = io.WriteString(w, " you")
		}, want: "200 6 hi you"},
		"a long text": {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, long) }, want: "200 -1 " + long},
		"much by little": {handler: func(w http.ResponseWriter, _ *http.Request) {
			for range 10_000 {
				_, _ = io.WriteString(w, "long ")
			}
		}, want: "200 -1 " + long},
		"parts":            {handler: func(w http.ResponseWriter, _ *http.Request) { parts(w, "a", "", long, "c") }, want: "200 -1 a" + long + "c"},
		"parts, HTTP/1.0":  {handler: func(w http.ResponseWriter, _ *http.Request) { parts(w, "a", long, "c") }, old: true, want: "200 -1 a" + long + "c", ends: true},
		"a text, HTTP/1.0": {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }, old: true, want: "200 2 hi"},
		"of a length": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "50000")
			parts(w, long[:7], long[7:])
		}, want: "200 50000 " + long},
		"HEAD":          {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hi") }, method: "HEAD", want: "200 2 "},
		"HEAD, nothing": {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(202) }, method: "HEAD", want: "202 -1 "},
		"HEAD, parts":   {handler: func(w http.ResponseWriter, _ *http.Request) { parts(w, "a", long) }, method: "HEAD", want: "200 -1 "},
		"HEAD, of a length": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			w.WriteHeader(201)
		}, method: "HEAD", want: "201 7 "},
		"no content":           {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, want: "204 0 "},
		"no content with some": {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204); _, _ = io.WriteString(w, "hi") }, want: "204 0 "},
		"the end": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Connection", "close")
			_, _ = io.WriteString(w, "hi")
		}, want: "200 2 hi", ends: true},
		"bytes that break lines": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["X-A"], w.Header()["b: c\r\nd"] = []string{"b\r\nContent-Length: 9\r\n\r\nc"}, []string{"e"}
			_, _ = io.WriteString(w, "hi")
		}, want: "200 2 hi"},
		"a length that is none": {handler: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "many")
			_, _ = io.WriteString(w, "hi")
		}, want: "200 2 hi"},
	} {
		l := newLab(t, c.handler, nil)
		method := c.method
		if method == "" {
			method = "GET"
		}
		text := method + " / HTTP/1.1\r\nHost: x\r\n\r\n"
		if c.old {
			text = method + " / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
		}
		k := l.dial(text)
		for range 3 {
			asked := time.Now()
			resp, body := k.hear(method)
			if got := fmt.Sprint(resp.StatusCode, " ", resp.ContentLength, " ", body); got != c.want {
				t.Errorf("%s: %.100q, want %.100q", name, got, c.want)
			}
			if at, err := http.ParseTime(resp.Header.Get("Date")); err != nil || at.Before(asked.Add(-time.Minute)) {
				t.Errorf("%s: Date %q", name, resp.Header.Get("Date"))
			}
			if c.ends {
				k.ends()
				break
			}
			k.say(text)
		}
	}
}

// An answer whose handler panics, or says less than it has said it would, is not whole;
// what is more than that is not said.
func TestHalfAnswers(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"less": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			_, _ = io.WriteString(w, "hi")
		},
		"more": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1")
			_, _ = io.WriteString(w, "h")
			_, _ = io.WriteString(w, "i")
		},
		"no deadline": func(w http.ResponseWriter, _ *http.Request) {
			_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
			_, _ = io.WriteString(w, "hi")
			_ = http.NewResponseController(w).Flush()
		},
		"a panic": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hi")
			_ = http.NewResponseController(w).Flush()
			panic("test")
		},
		"an abort": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a timeout": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "hi")
			_ = http.NewResponseController(w).Flush()
			_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0))
		},
	} {
		for _, secured := range []bool{false, true} {
			l, client := newLab(t, h, nil), (*tls.Config)(nil)
			if secured {
				l, client = newLabOf(t, h)
			}
			for _, version := range []string{"1.1", "1.0"} { // whose answers may end with their connection
				k := l.dial("")
				if secured {
					k.Conn = tls.Client(k.Conn, client)
					k.in.Reset(k.Conn)
				}
				k.say(strings.Replace(get, "1.1", version, 1))
				resp, err := http.ReadResponse(k.in, nil)
				if err == nil {
					_, err = io.ReadAll(resp.Body)
				}
				if (err == nil) != (name == "more" || name == "no deadline") {
					t.Errorf("%s, HTTP/%s, TLS %v: %v", name, version, secured, err)
				}
			}
		}
	}
}

// tlsOf has a lab's connections in TLS.
func tlsOf(t *testing.T) (wrap func(ln net.Listener) net.Listener, client *tls.Config) {
	h := httptest.NewUnstartedServer(nil)
	h.StartTLS()
	t.Cleanup(h.Close)
	client = h.Client().Transport.(*http.Transport).TLSClientConfig //nolint:forcetypeassert // it is one
	return func(ln net.Listener) net.Listener {
		return tls.NewListener(ln, &tls.Config{Certificates: h.TLS.Certificates})
	}, client
}

// The context of a request ends soon after its client is gone, however that goes, and
// whatever else it has sent; a client that stays is not taken for gone.
func TestClientsThatGo(t *testing.T) {
	for _, secured := range []bool{false, true} {
		for name, leave := range map[string]func(c *net.TCPConn){
			"closes":      func(c *net.TCPConn) { _ = c.Close() },
			"resets":      func(c *net.TCPConn) { _ = c.SetLinger(0); _ = c.Close() },
			"half-closes": func(c *net.TCPConn) { _ = c.CloseWrite() },
		} {
			for _, more := range []string{"", get} {
				asked, gone := make(chan struct{}, 2), make(chan error, 2)
				l := new(lab)
				l.server = New(Config{ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeader: 1 << 10, Refused: func(string) {},
					Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						asked <- struct{}{}
						select {
						case <-r.Context().Done():
							gone <- nil
						case <-time.After(patience):
							gone <- errors.New("the client is gone, and nobody knows")
						}
					})})
				ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's own
				if err != nil {
					t.Fatal(err)
				}
				address, client := ln.Addr().String(), (*tls.Config)(nil)
				if secured {
					var wrap func(net.Listener) net.Listener
					wrap, client = tlsOf(t)
					ln = wrap(ln)
				}
				go l.server.Serve(ln)                //nolint:errcheck // ends with Close
				raw, err := net.Dial("tcp", address) //nolint:noctx // a test's own
				if err != nil {
					t.Fatal(err)
				}
				c := raw
				if secured {
					client.ServerName = "example.com"
					c = tls.Client(raw, client)
				}
				if _, err := io.WriteString(c, get+more); err != nil {
					t.Fatal(err)
				}
				<-asked
				select {
				case <-gone: //nolint:errcheck // nothing is to come
					t.Errorf("%s: it was taken for gone", name)
				case <-time.After(lookEvery * 5 / 4):
				}
				leave(raw.(*net.TCPConn)) //nolint:forcetypeassert // it is one
				if err := <-gone; err != nil {
					t.Errorf("%s, TLS %v: %v", name, secured, err)
				}
				_ = raw.Close()
				_ = l.server.Close()
			}
		}
	}
}

// A handler that looks sees at once that its client is gone.
func TestGone(t *testing.T) {
	asked, left, seen := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	l := new(lab)
	l.server = New(Config{ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeader: 1 << 10, Refused: func(string) {},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := w.(interface{ Gone() bool }) //nolint:forcetypeassert // it is one
			if c.Gone() || r.Context().Err() != nil {
				seen <- errors.New("it was taken for gone")
				return
			}
			close(asked)
			<-left
			if !c.Gone() || r.Context().Err() == nil {
				seen <- errors.New("it is gone, and not seen to be")
			}
			close(seen)
		})})
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's own
	if err != nil {
		t.Fatal(err)
	}
	go l.server.Serve(ln)                         //nolint:errcheck // ends with Close
	c, err := net.Dial("tcp", ln.Addr().String()) //nolint:noctx // a test's own
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, get); err != nil {
		t.Fatal(err)
	}
	<-asked
	_ = c.Close()
	close(left)
	if err := <-seen; err != nil {
		t.Error(err)
	}
	_ = l.server.Close()
}

// A body whose client waits to be asked for it is asked for when it is read.
func TestExpectations(t *testing.T) {
	l := newLab(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/not" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	}, nil)
	const head = " HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
	k := l.dial("POST /" + head)
	if resp, _ := k.hear("POST"); resp.StatusCode != http.StatusContinue {
		t.Fatal(resp.Status)
	}
	k.say("ab")
	if resp, body := k.hear("POST"); resp.StatusCode != 200 || body != "ab" {
		t.Fatal(resp.Status, body)
	}
	k.say("POST /not" + head)
	if resp, _ := k.hear("POST"); resp.StatusCode != http.StatusForbidden || !resp.Close {
		t.Fatal(resp.Status)
	}
	k.ends()
}

// What a handler does not read of a body is no request; where it is long the connection
// ends, and the client reads its answer all the same.
func TestBodiesThatNobodyReads(t *testing.T) {
	l := newLab(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "no") }, nil)
	k := l.dial("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1e\r\nGET /bad HTTP/1.1\r\nHost: x\r\n\r\n\r\n0\r\n\r\nPOST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nGET /" + get)
	for range 3 {
		k.hear("POST")
	}
	k.say(fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", 100<<20))
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		_, _ = io.Copy(k.Conn, io.LimitReader(zeros{}, 4<<20)) // it is not read
	}()
	if resp, body := k.hear("POST"); resp.StatusCode != 200 || body != "no" || !resp.Close {
		t.Error(resp.Status, body)
	}
	_ = k.Close()
	<-sent
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// A request has its time, an idle connection another one, and a body that is dropped none.
func TestTimes(t *testing.T) {
	const short = 300 * time.Millisecond
	read := make(chan error, 1)
	handler := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/drop" {
			time.AfterFunc(10*time.Millisecond, func() { _ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) })
		}
		_, err := io.Copy(io.Discard, r.Body)
		read <- err
	}
	for name, c := range map[string]struct {
		text   string
		served bool
		change func(c *Config)
	}{
		"nothing comes":        {"", false, func(c *Config) { c.ReadTimeout = short }},
		"half a head":          {"GET / HT", false, func(c *Config) { c.ReadTimeout = short }},
		"half a body":          {"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab", true, func(c *Config) { c.ReadTimeout = short }},
		"half a body, dropped": {"POST /drop HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nab", true, nil},
		"no other request":     {get, true, func(c *Config) { c.IdleTimeout = short }},
	} {
		l := newLab(t, handler, c.change)
		k := l.dial(c.text)
		if c.served {
			if err := <-read; (err == nil) != (name == "no other request") {
				t.Errorf("%s: %v", name, err)
			}
			k.hear("GET")
		}
		k.ends()
	}
}

// slowlyClosed are connections that are closed once something is answered, or it takes a while.
type slowlyClosed struct {
	net.Listener
	answered chan struct{}
}

func (l slowlyClosed) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return slowlyClosedConn{c, l.answered}, err
}

type slowlyClosedConn struct {
	net.Conn
	answered chan struct{}
}

func (c slowlyClosedConn) Close() error {
	select {
	case <-c.answered:
	case <-time.After(50 * time.Millisecond):
	}
	return c.Conn.Close()
}

// TestCloseAnswersNobody: whose client would have left is told by the context, and a server that ends ends it, too: what
// would be answered to nobody is no answer to a client that waits.
func TestCloseAnswersNobody(t *testing.T) {
	begun, answered := make(chan struct{}), make(chan struct{})
	l := newLabBehind(t, func(w http.ResponseWriter, r *http.Request) {
		close(begun)
		<-r.Context().Done()
		w.WriteHeader(499)
		_ = http.NewResponseController(w).Flush()
		close(answered)
	}, nil, func(ln net.Listener) net.Listener { return slowlyClosed{ln, answered} })
	busy := l.dial(get)
	<-begun
	_ = l.server.Close()
	busy.ends()
}

// A Shutdown ends idle connections at once, lets requests under way finish, and is over
// when its time is.
func TestShutdown(t *testing.T) {
	begun, go1 := make(chan struct{}), make(chan struct{})
	l := newLab(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			close(begun)
			<-go1
		}
		_, _ = io.WriteString(w, "hi")
	}, nil)
	idle, busy := l.dial(get), l.dial("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n")
	idle.hear("GET")
	<-begun
	over := make(chan error, 1)
	go func() { over <- l.server.Shutdown(context.Background()) }()
	idle.ends()
	if _, err := net.DialTimeout("tcp", l.address, patience); err == nil {
		t.Error("it still listens")
	}
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := l.server.Shutdown(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	close(go1)
	if _, body := busy.hear("GET"); body != "hi" {
		t.Error(body)
	}
	busy.ends()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
