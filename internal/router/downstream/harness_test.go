package downstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

const patience = 30 * time.Second

// lab is a Server on a port of its own.
type lab struct {
	t       *testing.T
	server  *Server
	address string

	mu      sync.Mutex
	refused []string
}

func newLab(t *testing.T, h http.HandlerFunc, change func(c *Config)) *lab {
	t.Helper()
	return newLabBehind(t, h, change, func(ln net.Listener) net.Listener { return ln })
}

// newLabOf returns one whose connections are of TLS, and what its clients need for that.
func newLabOf(t *testing.T, h http.HandlerFunc) (*lab, *tls.Config) {
	t.Helper()
	wrap, client := tlsOf(t)
	client.ServerName = "example.com"
	return newLabBehind(t, h, nil, wrap), client
}

func newLabBehind(t *testing.T, h http.HandlerFunc, change func(c *Config), wrap func(net.Listener) net.Listener) *lab {
	t.Helper()
	l := &lab{t: t}
	c := Config{
		Handler: h, ReadTimeout: patience, WriteTimeout: patience, IdleTimeout: patience, MaxHeader: 16 << 10, Log: slog.New(slog.DiscardHandler),
		Refused: func(reason string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.refused = append(l.refused, reason)
		},
	}
	if change != nil {
		change(&c)
	}
	l.server = New(c)
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.address = ln.Addr().String()
	ended := make(chan error, 1)
	go func() { ended <- l.server.Serve(wrap(ln)) }()
	t.Cleanup(func() {
		_ = l.server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return l
}

// talk is one connection of a client.
type talk struct {
	net.Conn
	t  *testing.T
	in *bufio.Reader
}

func (l *lab) dial(text string) *talk {
	l.t.Helper()
	c, err := new(net.Dialer).DialContext(context.Background(), "tcp", l.address)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	k := &talk{c, l.t, bufio.NewReader(c)}
	k.say(text)
	return k
}

func (k *talk) say(text string) {
	k.t.Helper()
	if _, err := io.WriteString(k, text); err != nil {
		k.t.Fatal(err)
	}
}

// hear reads an answer to a request with the method.
func (k *talk) hear(method string) (*http.Response, string) {
	k.t.Helper()
	resp, err := http.ReadResponse(k.in, &http.Request{Method: method})
	if err != nil {
		k.t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		k.t.Fatalf("%d %q, then %v", resp.StatusCode, body, err)
	}
	return resp, string(body)
}

// ends waits for the end of the connection, and wants nothing before it.
func (k *talk) ends() {
	k.t.Helper()
	var late net.Error
	if n, err := k.in.Read(make([]byte, 1)); n > 0 || errors.As(err, &late) && late.Timeout() {
		k.t.Error("the connection goes on")
	}
}
