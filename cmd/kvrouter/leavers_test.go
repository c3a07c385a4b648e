package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// Clients that leave while their requests wait for a busy engine take nobody's turn: the engine never sees them,
// and who waits behind them is next.
func TestLeaversTakeNoTurn(t *testing.T) {
	var served, serving atomic.Int64
	release := make(chan struct{})
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		if r.URL.Path == "/v1/completions" {
			served.Add(1)
			serving.Add(1)
			defer serving.Add(-1)
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		_, _ = io.WriteString(w, `{"choices":[{"text":"x","finish_reason":"stop"}]}`)
	}))
	t.Cleanup(slow.Close)
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+slow.URL, "--model=m", "--block-size=4",
		"--busy-prefill-tokens=0", "--queue-timeout=5m", "--health-every=0s", "--models-every=0s", "--mode=kv", "--overdue-after=0s")
	waiting := func(n int) {
		t.Helper()
		waittest.Until(t, func() error {
			_, text, _ := ask("GET", url+"/metrics", "")
			if want := fmt.Sprintf("kvatlas_router_queue_length{model=\"m\",block_size=\"4\",group=\"\"} %d\n", n); n > 0 && !strings.Contains(text, want) || serving.Load() != 1 {
				return fmt.Errorf("not %d wait", n)
			}
			return nil
		})
	}
	asked := 0
	body := func() string { // a prompt of its own, as one that is cached makes nobody busy
		asked++
		return fmt.Sprintf(`{"model":"m","prompt":[%d,2,3,4,5,6,7,8],"max_tokens":1,"stream":true}`, asked)
	}
	stays := func() chan error {
		ended, text := make(chan error, 1), body()
		go func() { // ends with its answer, or with the test's context
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/completions", strings.NewReader(text))
			if err != nil {
				ended <- err
				return
			}
			resp, err := http.DefaultClient.Do(req)
			if err == nil {
				if err = resp.Body.Close(); resp.StatusCode != http.StatusOK {
					err = errors.New(resp.Status)
				}
			}
			ended <- err
		}()
		return ended
	}
	first := stays()
	waiting(0)
	var leavers []net.Conn
	for range 30 {
		c, err := new(net.Dialer).DialContext(context.Background(), "tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		leavers = append(leavers, c)
		text := body()
		if _, err := fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(text), text); err != nil {
			t.Fatal(err)
		}
	}
	waiting(30)
	last := stays()
	waiting(31)
	for _, c := range leavers {
		_ = c.Close()
	}
	close(release)
	for _, ended := range []chan error{first, last} {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	if n := served.Load(); n != 2 {
		t.Errorf("the engine was sent %d requests, and two clients stayed", n)
	}
}
