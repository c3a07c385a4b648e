package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func http2Client(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	c := &http.Client{Transport: &http.Transport{Protocols: p}}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// The time in which a client must take a part of its answer is not what an engine may
// take to give one, over HTTP/2 either, whose deadlines end streams that wait.
func TestSlowEnginesOverHTTP2(t *testing.T) {
	const within = 200 * time.Millisecond
	begun, gone := make(chan struct{}, 1), make(chan struct{}, 1)
	e := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		wait := func() {
			select {
			case <-time.After(3 * within):
			case <-r.Context().Done():
			}
		}
		switch {
		case strings.Contains(string(body), "forever"):
			begun <- struct{}{}
			<-r.Context().Done()
			gone <- struct{}{}
		case strings.Contains(string(body), `"stream":true`):
			w.Header().Set("Content-Type", "text/event-stream")
			for range 3 {
				_, _ = io.WriteString(w, "data: {}\n\n")
				_ = http.NewResponseController(w).Flush()
				wait()
			}
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
		default:
			wait()
			_, _ = io.WriteString(w, `{"id":"x"}`)
		}
	}))
	t.Cleanup(e.Close)
	url, _ := start(t, "--nats=none", "--kv-events=false", "--engines="+e.URL, "--model=m", "--health-every=0s", "--health-timeout=1m", "--http-write-timeout="+within.String(), "--engine-administration=open")
	client := http2Client(t)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/v1/completions", `{"model":"m","prompt":"x"}`, `{"id":"x"}`},
		{"POST", "/v1/completions", `{"model":"m","prompt":"x","stream":true}`, "data: [DONE]"},
		{"GET", "/v1/responses/resp_1", "", `{"id":"x"}`},
		{"POST", "/reset_prefix_cache", `{"model":"m"}`, `"status":200`},
	} {
		t.Run(fmt.Sprint(c.path, len(c.body)), func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), c.method, url+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			data, err := io.ReadAll(resp.Body)
			if err != nil || resp.ProtoMajor != 2 || resp.StatusCode != 200 || !strings.Contains(string(data), c.want) {
				t.Errorf("HTTP/%d: %d %q, %v", resp.ProtoMajor, resp.StatusCode, data, err)
			}
		})
	}
	t.Run("gone", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { // the client leaves once its request goes on for longer than an answer may take
			select {
			case <-begun:
				time.AfterFunc(2*within, cancel)
			case <-ctx.Done():
			}
		}()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(`{"model":"m","prompt":"forever"}`))
		if err != nil {
			t.Fatal(err)
		}
		if resp, err := client.Do(req); err == nil {
			_ = resp.Body.Close()
			t.Fatal("there is an answer")
		} else if ctx.Err() == nil {
			t.Errorf("the stream ended before the client left: %v", err)
		}
		waittest.Until(t, func() error {
			select {
			case <-gone:
				return nil
			default:
				return fmt.Errorf("the engine's request goes on")
			}
		})
	})
}
