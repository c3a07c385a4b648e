package decisions

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/account"
)

// Whoever mounts the handler gets what kvrouter answers: the list without tables, lines and
// one decision with them, and what is not there refused.
func TestHandler(t *testing.T) {
	log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "r"})
	for range 3 {
		log.Add(time.Now(), &account.Decision{ID: log.ID(), Time: time.Now(), Rows: 2, Ranks: make([]account.Row, 2)}, true, false)
	}
	h := Handler(log)
	ask := func(method, path string) (int, string) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, nil))
		return w.Code, w.Body.String()
	}
	var list struct{ Decisions []account.Decision }
	if status, text := ask("GET", Path+"?limit=2"); status != http.StatusOK || json.Unmarshal([]byte(text), &list) != nil || len(list.Decisions) != 2 || list.Decisions[0].Ranks != nil {
		t.Errorf("%d %s", status, text)
	}
	var one account.Decision
	if status, text := ask("GET", Path+"/"+list.Decisions[1].ID); status != http.StatusOK || json.Unmarshal([]byte(text), &one) != nil || len(one.Ranks) != 2 || one.Group != "default" {
		t.Errorf("%d %s", status, text)
	}
	if status, text := ask("GET", Path+"?format=jsonl"); status != http.StatusOK || len(text) < 3*len(`{"candidates":[{},{}]}`) {
		t.Errorf("%d %s", status, text)
	}
	for path, want := range map[string]int{Path + "/": 404, Path + "/x": 404, "/": 404, Path + "?limit=0": 400, Path + "?x=1": 400} {
		if status, text := ask("GET", path); status != want {
			t.Errorf("%s: %d %s", path, status, text)
		}
	}
	if status, _ := ask("POST", Path); status != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", status)
	}
}
