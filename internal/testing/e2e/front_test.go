package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/securetest"
)

// Clients that speak HTTP/2, over TLS or without, get what others get: many answers at
// once on one connection. Who leaves ends the engine's request, and an answer that
// breaks off is seen to. HTTP/1.1 is served beside it, by the same rules.
func TestHTTP2InFront(t *testing.T) {
	home := t.TempDir()
	authority := securetest.New(t)
	cert, key := filepath.Join(home, "cert"), filepath.Join(home, "key")
	authority.Issue("router", cert, key)
	for name, flags := range map[string][]string{"h2c": nil, "TLS": {"--tls-cert=" + cert, "--tls-key=" + key}} {
		t.Run(name, func(t *testing.T) { testHTTP2(t, authority.Client(), flags) })
	}
}

func testHTTP2(t *testing.T, trust *tls.Config, flags []string) {
	ended := make(chan struct{}, 1)
	a := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
		switch r.Header.Get("X-Want") {
		case "stream": // until its client leaves
			w.Header().Set("Content-Type", "text/event-stream")
			for range time.Tick(10 * time.Millisecond) {
				_, _ = io.WriteString(w, `data: {"choices":[{"text":"x"}]}`+"\n\n") // what has no choices is held back
				_ = http.NewResponseController(w).Flush()
				if r.Context().Err() != nil {
					ended <- struct{}{}
					return true
				}
			}
		case "break":
			_, _ = io.WriteString(w, strings.Repeat("x", 10_000))
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		return false
	})
	home := t.TempDir()
	plain := &http.Transport{TLSClientConfig: trust}
	scheme := "http"
	if len(flags) > 0 {
		scheme = "https"
	}
	p, address := listeningRouter(t, home, append([]string{"--nats=none", "--kv-events=false", "--engines=" + a.url, "--model=m", "--block-size=4",
		"--admin-listen=127.0.0.1:0", "--http2-streams=64"}, flags...)...)
	url := scheme + "://" + address
	both := new(http.Protocols)
	both.SetHTTP2(true)
	both.SetUnencryptedHTTP2(true)
	two := &http.Client{Transport: &http.Transport{TLSClientConfig: trust, Protocols: both}}
	defer two.CloseIdleConnections()
	send := func(ctx context.Context, c *http.Client, want, body string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header.Set("X-Want", want)
		return c.Do(req)
	}
	const short = `{"model":"m","prompt":"x"}`
	get := func(c *http.Client, major int) error {
		resp, err := send(t.Context(), c, "", short)
		if err != nil {
			return err
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		data, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != major || string(data) != `{"choices":[{"text":"x"}]}` {
			return fmt.Errorf("%s %s %s %w", resp.Proto, resp.Status, data, err)
		}
		return nil
	}
	eventually(t, time.Minute, func() error { return get(two, 2) })
	one := &http.Client{Transport: plain}
	defer one.CloseIdleConnections()
	if err := get(one, 1); err != nil {
		t.Error(err)
	}
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if err := get(two, 2); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	ctx, leave := context.WithCancel(t.Context())
	resp, err := send(ctx, two, "stream", `{"model":"m","prompt":"x","stream":true}`)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(resp.Body, make([]byte, 30)); err != nil {
		t.Fatal(err)
	}
	leave()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatal("the engine's request goes on without its client")
	}
	if resp, err = send(t.Context(), two, "break", short); err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
	if err == nil {
		t.Error("an answer that breaks off looks whole")
	}
	if resp, err = send(t.Context(), two, "", `{"model":"m","prompt":"`+strings.Repeat("x", 3<<20)+`"}`); err != nil || resp.StatusCode != http.StatusOK {
		t.Errorf("a long request: %v", err)
	}
	if err := get(two, 2); err != nil {
		t.Errorf("the connection is of no use any more: %v", err)
	}
	p.stop()
}

// With --http2=false what HTTP/2 begins with is refused by HTTP/1.1's rules.
func TestHTTP2Off(t *testing.T) {
	a := newSpy(t, nil)
	p, url := startRouter(t, t.TempDir(), "--nats=none", "--kv-events=false", "--engines="+a.url, "--model=m", "--admin-listen=127.0.0.1:0", "--http2=false")
	if status, rest, closed := raw(t, url, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); status != "505 HTTP Version Not Supported" || !closed {
		t.Errorf("%s, closed %v: %s", status, closed, rest)
	}
	p.stop()
}
