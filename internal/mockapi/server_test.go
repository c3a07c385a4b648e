package mockapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/mock"
)

func post(t *testing.T, url, body string) (int, string) {
	t.Helper()
	resp, err := http.Post(url, "application/json", strings.NewReader(body)) //nolint:gosec,noctx // a test's own server
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

// What an answer says was cached is what its engine has stored before.
func TestUsage(t *testing.T) {
	stored := 0 // the engine's goroutine and, after an answer, this one
	steps := 0
	var mu sync.Mutex
	s, err := New(Config{Model: "m", Engine: mock.Config{BlockSize: 4},
		Sink: func(ev *event.Event) { mu.Lock(); stored += len(ev.Engine); mu.Unlock() },
		Step: func(*mock.Report) time.Duration { mu.Lock(); steps++; mu.Unlock(); return 0 }})
	if err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	defer h.Close()
	defer s.Close()
	body := `{"model":"m","prompt":[1,2,3,4,5,6,7,8,9],"max_tokens":4}`
	for i, cached := range []string{`"cached_tokens":0`, `"cached_tokens":8`} {
		if status, data := post(t, h.URL+"/v1/completions", body); status != 200 || !strings.Contains(data, cached) || !strings.Contains(data, `"completion_tokens":4`) {
			t.Errorf("request %d: %d %s, want %s", i, status, data, cached)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if stored != 3 || steps != 8 {
		t.Errorf("%d blocks stored in %d steps, want 3 in 8", stored, steps)
	}
	for path, bad := range map[string]string{"/v1/completions": `{"prompt":[]}`, "/v1/chat/completions": `{`, "/tokenize": `{"prompt":3}`} {
		if status, data := post(t, h.URL+path, bad); status != 400 {
			t.Errorf("%s %s: %d %s", path, bad, status, data)
		}
	}
	if _, data := post(t, h.URL+"/tokenize", `{"prompt":"abcde"}`); !strings.Contains(data, `"tokens":[1633837924,101]`) {
		t.Errorf("tokens: %s", data)
	}
}
