package e2e

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
)

// An answer with a length that breaks off before its client saw any of it is answered 502; of
// one that is longer than what is held, the client sees that it is not whole.
func TestWholeAnswersThatBreakOff(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if r.Method != http.MethodPost || r.URL.Path == "/tokenize" {
			return
		}
		_, after, _ := strings.Cut(string(data), "length ")
		text, _, _ := strings.Cut(after, `"`)
		length, err := strconv.Atoi(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", text)
		_, _ = io.WriteString(w, `{"choices":[{"text":"`+strings.Repeat("x", length/2))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}))
	t.Cleanup(h.Close)
	_, url := startRouter(t, t.TempDir(), "--nats", "none", "--kv-events=false", "--model", "m", "--engines", h.URL)
	for _, c := range []struct{ length, status int }{{1000, 502}, {10_000, 502}, {50_000, 502}, {200_000, 200}} {
		resp, err := http.Post(url+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(`{"model":"m","prompt":"length %d"}`, c.length))) //nolint:noctx // the router's own time
		if err != nil {
			t.Errorf("%d bytes: %v", c.length, err)
			continue
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != c.status || (err == nil) != (c.status == 502) || c.status == 502 && !strings.Contains(string(text), "engine_broke_off") {
			t.Errorf("%d bytes: status %d, %.200q, %v", c.length, resp.StatusCode, text, err)
		}
	}
}
