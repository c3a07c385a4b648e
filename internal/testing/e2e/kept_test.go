package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
)

// A response is asked of the engine that keeps it: by the router that passed it on, and
// by one that has never heard of it. What nobody has is told, and counted.
func TestResponsesAreFound(t *testing.T) {
	var n atomic.Int64
	var urls []string
	var engines []*spy
	for range 3 {
		kept := ""
		e := newSpy(t, func(w http.ResponseWriter, r *http.Request) bool {
			rest, ok := strings.CutPrefix(r.URL.Path, "/v1/responses")
			switch {
			case !ok:
				return false
			case rest == "":
				id := fmt.Sprintf("resp_%d", n.Add(1))
				kept += "/" + id + "/"
				_, _ = io.WriteString(w, `{"id":"`+id+`","object":"response"}`)
			case strings.Contains(kept, rest+"/"):
				_, _ = io.WriteString(w, `{"id":"`+rest[1:]+`","kept":true}`)
			default:
				w.WriteHeader(http.StatusNotFound)
			}
			return true
		})
		engines, urls = append(engines, e), append(urls, e.url)
	}
	flags := []string{"--nats=none", "--kv-events=false", "--engines=" + strings.Join(urls, ","), "--model=m", "--admin-listen=127.0.0.1:0"}
	p, url := startRouter(t, t.TempDir(), flags...)
	other, otherURL := startRouter(t, t.TempDir(), flags...)
	asked := func() (n int) {
		for _, e := range engines {
			n += len(e.take())
		}
		return n
	}
	const responses = 12
	for range responses {
		if status, text, _ := ask(url+"/v1/responses", `{"model":"m","input":"x"}`); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	asked()
	for i := range responses {
		path := fmt.Sprintf("/v1/responses/resp_%d", i+1)
		for _, from := range []string{url, otherURL} {
			if data, err := get(t.Context(), from+path); err != nil || !strings.Contains(string(data), `"kept":true`) {
				t.Errorf("%s: %s %v", path, data, err)
			}
		}
	}
	if n := asked(); n < 2*responses || n > 4*responses {
		t.Errorf("engines were asked %d times for %d responses by two routers", n, responses)
	}
	if status, text, _ := ask(otherURL+"/v1/responses/resp_x/cancel", ""); status != http.StatusNotFound || !strings.Contains(text, "not_found") {
		t.Errorf("%d %s", status, text)
	}
	for from, want := range map[string]string{url: "known", otherURL: "asked"} {
		if text, err := get(t.Context(), from+"/metrics"); err != nil || sum(text, "kvatlas_router_kept_total", `found="`+want+`"`) != responses {
			t.Errorf("%s: not all were %s: %v", from, want, err)
		}
	}
	p.stop()
	other.stop()
}
