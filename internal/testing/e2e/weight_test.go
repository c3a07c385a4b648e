package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Requests that come at once spread over the engines: on routes whose tokens the router
// does not know, and with one session's name from all.
func TestManyAtOnceSpread(t *testing.T) {
	var got [3]atomic.Int64
	var mu sync.Mutex
	release := make(chan struct{})
	var urls []string
	for i := range got {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if r.Method == http.MethodPost && r.URL.Path != "/tokenize" {
				got[i].Add(1)
				mu.Lock()
				until := release
				mu.Unlock()
				<-until
			}
			_, _ = io.WriteString(w, "{}")
		}))
		t.Cleanup(h.Close)
		urls = append(urls, h.URL)
	}
	// Long enough that a request costs more than what lies between their arrivals: an engine that
	// begins its step a ms sooner is the best for all short ones that come within that.
	words := strings.Repeat(", and some words about it", 100)
	for name, c := range map[string]struct {
		path, body, session string
		n                   int64
	}{
		"messages":    {"/v1/messages", `{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"%d%s"}]}`, "", 64},
		"embeddings":  {"/v1/embeddings", `{"model":"m","input":"%d%s"}`, "", 64},
		"lists":       {"/generate", `{"model":"m","text":["%d%s","and more"]}`, "", 64},
		"one session": {"/v1/chat/completions", `{"model":"m","stream":true,"messages":[{"role":"user","content":"%d%s"}]}`, "me", 33},
	} {
		t.Run(name, func(t *testing.T) {
			// It has learnt nothing: these engines answer when the test says, however much they have.
			// Nor does it hold any back, as it would until the first tokens of those before come.
			_, url := startRouter(t, t.TempDir(), "--queue", "0", "--nats", "none", "--kv-events=false", "--model", "m", "--engines", strings.Join(urls, ","))
			mu.Lock()
			release = make(chan struct{})
			answer := sync.OnceFunc(func() { close(release) })
			mu.Unlock()
			defer answer()
			for i := range got {
				got[i].Store(0)
			}
			var all sync.WaitGroup
			for i := range c.n {
				all.Go(func() {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+c.path, strings.NewReader(fmt.Sprintf(c.body, i, words)))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("X-Session-Id", c.session)
					resp, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Error(err)
						return
					}
					_ = resp.Body.Close()
				})
			}
			eventually(t, time.Minute, func() error {
				if n := got[0].Load() + got[1].Load() + got[2].Load(); n != c.n {
					return fmt.Errorf("%d of %d requests have arrived", n, c.n)
				}
				return nil
			})
			answer()
			all.Wait()
			for i := range got {
				if n := got[i].Load(); n < c.n/5 {
					t.Errorf("engine %d got %d of %d", i, n, c.n)
				}
			}
		})
	}
}
