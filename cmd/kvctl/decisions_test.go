package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/account"
)

// decisions and why print what a router keeps, by the decision's id and by its request's,
// with a token, as text and as JSON; what is not kept is told apart from what failed.
func TestDecisions(t *testing.T) {
	log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "k"})
	first := 12.5
	d := &account.Decision{
		Time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Model: "org/model", Group: "default", RequestID: "ask-1", Phase: "aggregated", Mode: "auto", Worker: 7,
		Predicted: 10, First: &first, Rows: 2, Ranks: []account.Row{
			{Worker: 7, Chosen: true, Cost: 10.25, Formula: "10.2 ms = all of it", CachedTokens: 64},
			{Worker: 8, Cost: account.NoCost(), Left: "busy_prefill_tokens", CachedTokens: 96},
		},
	}
	d.Choose(&account.Choice{Known: true, Prompt: 100, Reachable: 96, Selected: 64, Why: account.Busy})
	d.BestAt = new(uint64)
	*d.BestAt = 8
	log.Add(d.Time, d, true, true)
	bare := &account.Decision{Time: d.Time.Add(time.Second), Model: "other\x1b[2J\u202e", RequestID: "ask-2", Predicted: 10, First: &first}
	log.Add(bare.Time, bare, true, false)
	for i, phase := range []string{"prefill", "decode"} { // a pair, of which the prefill worker has what is cached
		part := &account.Decision{Time: d.Time.Add(time.Duration(2+i) * time.Second), RequestID: "ask-3", Phase: phase, Predicted: 10, First: &first}
		log.Add(part.Time, part, true, false)
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := account.Query{ID: strings.TrimPrefix(r.URL.Path, "/v1/decisions/"), RequestID: r.URL.Query().Get("request_id")}
		if name := r.URL.Query().Get("model_name"); name != "" {
			q.Models = []string{name}
		}
		switch one := strings.HasPrefix(r.URL.Path, "/v1/decisions/"); {
		case r.Header.Get("Authorization") != "Bearer sesame":
			http.Error(w, "who is it", http.StatusUnauthorized)
		case one && len(log.Find(q)) == 0:
			http.Error(w, `{"error":{"code":"unknown_decision"}}`, http.StatusNotFound)
		case one:
			_ = json.NewEncoder(w).Encode(log.Find(q)[0])
		case r.URL.Query().Get("format") == "jsonl":
			q.ID = ""
			for _, d := range log.Find(q) {
				_ = json.NewEncoder(w).Encode(d)
			}
		default:
			q.ID = ""
			_ = json.NewEncoder(w).Encode(map[string]any{"decisions": log.Find(q)})
		}
	}))
	defer s.Close()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct {
		args   string
		code   int
		stdout []string
		stderr string
	}{
		{"decisions", 0, []string{"k-1", "k-2", "7/0", "busy", "slowest", "?"}, ""},
		{"decisions --model other\x1b[2J\u202e", 0, []string{"k-2", `other\u001b[2J\u202e`}, ""},
		{"decisions --json", 0, []string{`{"decisions":[{"id":"k-4"`, `"id":"k-2"`, `other\u001b[2J\u202e`}, ""},
		{"decisions export", 0, []string{`"id":"k-1"`, "}\n{", `other\u001b[2J\u202e`}, ""},
		{"why k-1", 0, []string{"request ask-1", "worker 7/0: 10.0 ms predicted to the first token, 12.5 ms taken", "96 reachable (worker 8/0), 64 selected (less: busy), ? found",
			"*", "10.2 ms = all of it", "left out: busy_prefill_tokens"}, ""},
		{"why ask-1", 0, []string{"k-1  2026-01-02T03:04:05Z"}, ""},
		{"why ask-3", 0, []string{"k-3  2026-01-02T03:04:07Z", ", prefill, ", "--decisions-rows of kvrouter\n\nk-4  2026-01-02T03:04:08Z", ", decode, "}, ""},
		{"why ask-3 --json", 0, []string{`{"id":"k-3"`, "}\n{\"id\":\"k-4\""}, ""},
		{"why k-2", 0, []string{"? reachable", "no table of candidates was written"}, ""},
		{"why k-1 --json", 0, []string{`{"id":"k-1"`, `"cost":null`}, ""},
		{"why k-9", 3, nil, "no such decision is kept"},
		{"why", 2, nil, "give one of"},
		{"decisions all", 2, nil, "give one of"},
		{"why k-1 --token-file=", 1, nil, "401"},
		{"why k-1 --token-file /nowhere", 1, nil, "--token-file"},
		{"why k-1 --router ftp://x", 2, nil, "--router"},
	} {
		args := append([]string{"--router", s.URL, "--token-file", token}, strings.Fields(f.args)...)
		code, stdout, stderr := kvctl(t, args...)
		if code != f.code || !strings.Contains(stderr, f.stderr) {
			t.Errorf("%s: exit code %d, want %d: %s%s", f.args, code, f.code, stdout, stderr)
		}
		if strings.ContainsAny(stdout+stderr, "\x1b\u202e") {
			t.Errorf("%s: a terminal would obey a name in\n%q", args, stdout+stderr)
		}
		for _, want := range f.stdout {
			if !strings.Contains(stdout, want) {
				t.Errorf("%s: no %q in\n%s", f.args, want, stdout)
			}
		}
	}
}
