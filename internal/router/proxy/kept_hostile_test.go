package proxy

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/registry"
)

// seenBy is three engines, of which number 1 has what is called mine, and what they were
// asked: the engine, the request, and the length of its body.
func seenBy(t *testing.T, answer func(i int, w http.ResponseWriter, r *http.Request)) (l *lab, seen func() []string) {
	var mu sync.Mutex
	var all, urls []string
	for i := range 3 {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			mu.Lock()
			all = append(all, fmt.Sprintf("%d %s %s %d", i, r.Method, r.RequestURI, len(body)))
			mu.Unlock()
			answer(i, w, r)
		}))
		t.Cleanup(h.Close)
		urls = append(urls, h.URL)
	}
	l = newLab(t, setup{engines: 3, registry: func(i int, w *registry.Worker) { w.Endpoints.HTTP = urls[i] }})
	return l, func() []string {
		mu.Lock()
		defer mu.Unlock()
		got := all
		all = nil
		slices.Sort(got)
		return got
	}
}

// What is to be done with something unknown is done by the engine that has it: all the
// others are asked whether they do, and see nothing of the request.
func TestUnknownNamesAreLookedForFirst(t *testing.T) {
	l, seen := seenBy(t, func(i int, w http.ResponseWriter, r *http.Request) {
		if i != 1 || !strings.Contains(r.URL.Path, "/mine") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, `{"id":"mine"}`)
	})
	for _, request := range []string{"POST /v1/responses/mine/cancel", "DELETE /v1/files/mine", "POST /v1/batches/mine/cancel", "GET /v1/files/mine/content"} {
		l.forget()
		method, path, _ := strings.Cut(request, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+path, strings.NewReader(strings.Repeat(" ", 4<<10)))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		got := seen()
		to := 0
		for _, g := range got {
			switch {
			case strings.HasPrefix(g, "1 "+request+" "):
				to++
			case !strings.HasSuffix(g, "/mine 0") || !strings.Contains(g, " GET "):
				t.Errorf("%s: an engine was asked %q", request, g)
			}
		}
		if resp.StatusCode != 200 || to != 1 {
			t.Errorf("%s: %d, engines were asked %q", request, resp.StatusCode, got)
		}
		if method == http.MethodDelete {
			if status, _ := l.do(method, "/v1/files/nobodys"); status != 404 {
				t.Error(status)
			}
			for _, g := range seen() {
				if !strings.Contains(g, " GET ") {
					t.Errorf("an engine without it was asked %q", g)
				}
			}
		}
	}
}

// A name in a body is a name, and no way to engines' other routes.
func TestNamesAreNoPaths(t *testing.T) {
	l, seen := seenBy(t, func(_ int, w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"id":"x"}`) })
	for _, name := range []string{"../../flush_cache", "..", ".", "x/../../../sleep", `x\\..\\sleep`, "x%2f..", "x?a=b", "a\\u0000b", "a\\r\\nb", strings.Repeat("x", 300)} {
		if status, data, _ := l.post("/v1/responses", `{"model":"org/model","input":"x","previous_response_id":"`+name+`"}`); status != 200 {
			t.Errorf("%s: %d %s", name, status, data)
		}
		for _, g := range seen() {
			if strings.Contains(g, " GET ") {
				t.Errorf("%q: an engine was asked %q", name, g)
			}
		}
	}
	if l.post("/v1/responses", `{"model":"org/model","input":"x","previous_response_id":"resp_1"}`); !slices.ContainsFunc(seen(), func(g string) bool { return strings.HasSuffix(g, "GET /v1/responses/resp_1 0") }) {
		t.Error("nobody was asked for one that may be")
	}
}

// A list is whole or late: an engine that stops in its middle is not waited for.
func TestListsHaveATime(t *testing.T) {
	var stops atomic.Bool
	left := make(chan struct{}, 100)
	l, _ := seenBy(t, func(i int, w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, `{"object":"list","data":[`)
		if i == 2 {
			stops.Store(true)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			left <- struct{}{}
		}
		_, _ = io.WriteString(w, `]}`)
	})
	l.proxy.cfg.AskTimeout = 100 * time.Millisecond
	waittest.For(t, "the engine is asked", func() bool { // which a busy machine may not get to within the time
		if status, data := l.do("GET", "/v1/files"); status != 502 || !strings.Contains(data, "would not be whole") {
			t.Fatalf("%d %s", status, data)
		}
		return stops.Load()
	})
	select {
	case <-left:
	case <-time.After(patience):
		t.Error("the engine's request goes on")
	}
	if len(l.proxy.asking) > 0 {
		t.Error("it still counts as one that asks")
	}
}

// Engines of two tenants may call theirs the same, as a client may choose the name: what goes on
// with it stays with each tenant's own, and nobody is asked who has it. A name that is no
// response's does not count as one.
func TestNamesOfOtherTenants(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	var urls []string
	for i := range 2 {
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				mu.Lock()
				asked = append(asked, fmt.Sprint(i, r.URL.Path))
				mu.Unlock()
			}
			_, _ = io.WriteString(w, `{"id":"same"}`)
		}))
		t.Cleanup(h.Close)
		urls = append(urls, h.URL)
	}
	groups := []string{"a", "b"}
	l := newLab(t, setup{engines: 2, registry: func(i int, w *registry.Worker) { w.Endpoints.HTTP, w.Group = urls[i], groups[i] }})
	for range 3 {
		for n, more := range []string{"", `,"previous_response_id":"same"`, `,"previous_response_id":"same","input_file_id":"another"`} {
			for i, group := range groups {
				if status, data, h := l.post("/v1/responses", `{"model":"org/model","input":"x"`+more+`}`, headerGroup, group); status != 200 || h.Get(headerWorker) != fmt.Sprint(i) {
					t.Errorf("%s, %d: %d %s by %s", group, n, status, data, h.Get(headerWorker))
				}
			}
		}
	}
	if mu.Lock(); len(asked) > 0 {
		t.Errorf("engines were asked %q", asked)
	}
	mu.Unlock()
	if n := l.metric(`kvatlas_router_kept_total{found="known"}`); n != "12" {
		t.Errorf("%s were known, want 12", n)
	}
}
