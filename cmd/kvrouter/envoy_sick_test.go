package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/mockapi"
)

// Behind a real Envoy, of 600 clients six at most see that one of three engines is sick, and none of the next 300,
// without fallbacks and with them.
func TestEnvoySickEngine(t *testing.T) {
	refuses := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", status) }
	}
	says := func(first string, then func(r *http.Request)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, first)
			if _ = http.NewResponseController(w).Flush(); then != nil {
				then(r)
			}
		}
	}
	const token = `data: {"choices":[{"index":0,"delta":{"content":"x"}}]}` + "\n\n"
	resets := func(*http.Request) { panic(http.ErrAbortHandler) }
	hangs := func(r *http.Request) { <-r.Context().Done() }
	for name, sick := range map[string]http.HandlerFunc{
		"500": refuses(500), "429": refuses(429), "503": refuses(503), "404": refuses(404),
		"reset": func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.(*net.TCPConn).SetLinger(0) //nolint:forcetypeassert // it listens on TCP
				_ = c.Close()
			}
		},
		"a token and a reset": says(token, resets), "a token and an end": says(token, nil),
		"silence":               func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); hangs(r) },
		"a comment and silence": says(": ping\n\n", hangs),
	} {
		for _, fallbacks := range []string{"0", "2"} {
			t.Run(name+" with "+fallbacks+" fallbacks", func(t *testing.T) {
				engines := []string{sickEngine(t, sick)}
				for range 2 {
					engines = append(engines, engine(t, mockapi.Config{Engine: mock.Config{BlockSize: 4}, Step: func(*mock.Report) time.Duration { return time.Millisecond }}))
				}
				duplex, _, url := envoyBefore(t, engines, "--picker-fallbacks="+fallbacks)
				for i, most := range []int64{6, 0} {
					begun := time.Now()
					failed, why := chats(t, duplex, 24, 600-300*i)
					t.Logf("%d of %d chats failed in %v: %v", failed, 600-300*i, time.Since(begun).Round(time.Millisecond), why)
					if failed > most {
						t.Errorf("that is more than %d", most)
					}
				}
				noBookings(t, url)
			})
		}
	}
}

// sickEngine is a sound engine but for chats.
func sickEngine(t *testing.T, chat http.HandlerFunc) string {
	t.Helper()
	sound, err := url.Parse(engine(t, mockapi.Config{Engine: mock.Config{BlockSize: 4}}))
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(sound)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v1/chat") {
			chat(w, r)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return s.URL
}

// chats asks n questions and returns how many were not answered whole, and how those ended.
func chats(t *testing.T, url string, clients, n int) (failed int64, why map[string]int) {
	t.Helper()
	var all sync.WaitGroup
	var next atomic.Int64
	var mu sync.Mutex
	why = make(map[string]int)
	for range clients {
		all.Go(func() {
			for i := next.Add(1); i <= int64(n); i = next.Add(1) {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				said := chatOnce(ctx, url, i)
				cancel()
				if said != "" {
					mu.Lock()
					failed++
					why[said]++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return failed, why
}

func chatOnce(ctx context.Context, url string, i int64) (failure string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(
		`{"model":"m","max_tokens":3,"stream":true,"messages":[{"role":"user","content":"question %d of some length, which nobody has asked"}]}`, i)))
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	switch {
	case ctx.Err() != nil:
		return "no answer"
	case err != nil:
		return "no head"
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	switch text, err := io.ReadAll(resp.Body); {
	case ctx.Err() != nil:
		return "no end"
	case resp.StatusCode != http.StatusOK:
		return fmt.Sprintf("%d %.100s", resp.StatusCode, text)
	case err != nil || !strings.HasSuffix(string(text), "data: [DONE]\n\n"):
		return "cut"
	}
	return ""
}
