package proxy

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/route/account"
)

// number returns the value of a metric.
func (l *lab) number(name string) float64 {
	v, _ := strconv.ParseFloat(l.metric(name), 64)
	return v
}

func promptBody(stream bool, from, n, output int) string {
	tokens := make([]string, n)
	for i := range tokens {
		tokens[i] = strconv.Itoa(from + i)
	}
	more := ""
	if stream {
		more = `,"stream_options":{"include_usage":true}`
	}
	return fmt.Sprintf(`{"model":%q,"prompt":[%s],"max_tokens":%d,"stream":%t%s}`, modelName, strings.Join(tokens, ","), output, stream, more)
}

// With mock engines whose events are there before their answers: prompt ≥ reachable ≥
// selected = actual, in the metrics, the receipts and the decisions, streamed or not.
func TestAccountsWithEngines(t *testing.T) {
	l := newLab(t, setup{engines: 3})
	for i := range 60 {
		status, text, header := l.post("/v1/completions", promptBody(i%2 == 0, 1000*(i%4), 80+8*(i/4), 3), "X-Request-Id", fmt.Sprint("ask-", i))
		if status != 200 {
			t.Fatalf("%d %s", status, text)
		}
		got := header.Get(headerReceipt)
		if !strings.HasPrefix(got, `worker="`+header.Get(headerWorker)+`", rank=0, prompt=`+fmt.Sprint(80+8*(i/4))+", reachable=") || !strings.Contains(got, ", decision=\"t-") {
			t.Errorf("receipt %s", got)
		}
	}
	l.idle()
	labels := `{model="` + modelName + `",block_size="4",group="",`
	of := func(what string) float64 {
		return l.number("kvatlas_router_prompt_tokens_sum" + labels + `of="` + what + `",reported="yes"}`)
	}
	prompt, reachable, selected, actual := of("prompt"), of("reachable"), of("selected"), of("actual")
	if prompt < reachable || reachable < selected || selected == 0 || actual == 0 {
		t.Errorf("%v tokens, %v reachable, %v selected, %v found", prompt, reachable, selected, actual)
	}
	if n := l.metric("kvatlas_router_prompt_tokens_count" + labels + `of="actual",reported="yes"}`); n != "60" {
		t.Errorf("%s of 60 are reported", n)
	}
	for _, found := range []string{"less", "more"} {
		for why := account.Evicted; why < account.NumMisses; why++ {
			if n := l.metric("kvatlas_router_not_found_requests_total" + labels + `found="` + found + `",reason="` + why.String() + `"}`); n != "0" {
				t.Errorf("%q requests found %s: %s, and nothing is late", n, found, why)
			}
		}
	}
	list := l.proxy.cfg.Decisions.Find(account.Query{})
	if len(list) != 60 {
		t.Fatalf("%d decisions of 60", len(list))
	}
	for _, d := range list {
		if *d.Reachable < *d.Selected || *d.Actual-*d.Selected > blockSize || *d.Selected-*d.Actual > blockSize || d.First == nil || d.Rows != 3 || d.Miss != "" {
			t.Errorf("%+v", d)
		}
	}
	if text, err := json.Marshal(list); err != nil || strings.Contains(string(text), "1001,1002") {
		t.Errorf("tokens are shown: %v", err)
	}
}

// An engine that evicts between the choice and the answer, one whose events come late, one
// that counts other tokens: each is told apart, through kvrouter.
func TestMissesWithEngines(t *testing.T) {
	const labels = `{model="` + modelName + `",block_size="4",group="",found="less",reason="`
	for name, f := range map[string]struct {
		reason string
		usage  string
		lost   int64 // published at; 0: nothing is lost
	}{
		"evicted": {"evicted", `{"prompt_tokens":80,"prompt_tokens_details":{"cached_tokens":8}}`, 1 << 62},
		"late":    {"event_late", `{"prompt_tokens":80,"prompt_tokens_details":{"cached_tokens":8}}`, 1},
		"tokens":  {"tokens_differ", `{"prompt_tokens":90,"prompt_tokens_details":{"cached_tokens":8}}`, 0},
		"unknown": {"unknown", `{"prompt_tokens":80,"prompt_tokens_details":{"cached_tokens":8}}`, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, setup{})
			body := promptBody(false, 1, 80, 1)
			if status, text, _ := l.post("/v1/completions", body); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			l.idle()
			// The same prompt from here on goes to an engine that says what it likes.
			liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if f.lost > 0 {
					loseAll(t, l, f.lost)
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"choices":[{"text":"a"}],"usage":%s}`, f.usage)
			}))
			t.Cleanup(liar.Close)
			w := registry.Worker{ID: 0, Model: modelName, BlockSize: blockSize, Transport: registry.JetStream, Endpoints: registry.Endpoints{HTTP: liar.URL}}
			if err := l.fleet.SetWorker(w, false); err != nil {
				t.Fatal(err)
			}
			if status, text, _ := l.post("/v1/completions", body); status != 200 {
				t.Fatalf("%d %s", status, text)
			}
			l.idle()
			if n := l.metric("kvatlas_router_not_found_requests_total" + labels + f.reason + `"}`); n != "1" {
				t.Errorf("%q requests: %s", n, f.reason)
			}
			if d := l.proxy.cfg.Decisions.Find(account.Query{Limit: 1}); len(d) != 1 || d[0].Miss != f.reason {
				t.Errorf("%+v", d)
			}
		})
	}
}

// What a list, one decision and the export say is as the document has it, and arguments
// that mean nothing are refused.
func TestDecisionsOverHTTP(t *testing.T) {
	l := newLab(t, setup{engines: 2})
	for i := range 5 {
		l.post("/v1/completions", promptBody(true, 1, 40+4*i, 2), "X-Request-Id", fmt.Sprint("ask-", i))
	}
	l.idle()
	get := func(path string) (int, string, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.front.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		text := readAll(t, resp.Body)
		kind := resp.Header.Get("Content-Type")
		where, _, _ := strings.Cut(path, "?")
		if kind == "application/json" {
			checkExchange(t, apitest.Exchange{Method: "GET", Path: where, Status: resp.StatusCode, AnswerType: kind, Answer: []byte(text)})
		}
		return resp.StatusCode, kind, text
	}
	var list struct{ Decisions []account.Decision }
	if status, _, text := get("/v1/decisions"); status != 200 || json.Unmarshal([]byte(text), &list) != nil || len(list.Decisions) != 5 || strings.Contains(text, "candidates") {
		t.Fatalf("%d %s", status, text)
	}
	newest := list.Decisions[0]
	if newest.RequestID != "ask-4" || newest.Group != "default" || newest.Rows != 2 {
		t.Errorf("%+v", newest)
	}
	var one account.Decision
	if status, _, text := get("/v1/decisions/" + newest.ID); status != 200 || json.Unmarshal([]byte(text), &one) != nil || len(one.Ranks) != 2 || one.ID != newest.ID || !strings.Contains(text, "to the first token") {
		t.Errorf("%d %s", status, text)
	}
	if status, _, text := get("/v1/decisions?request_id=ask-2&limit=7"); status != 200 || json.Unmarshal([]byte(text), &list) != nil || len(list.Decisions) != 1 || list.Decisions[0].RequestID != "ask-2" {
		t.Errorf("%d %s", status, text)
	}
	status, kind, text := get("/v1/decisions?format=jsonl&limit=3")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if status != 200 || kind != "application/x-ndjson" || len(lines) != 3 {
		t.Fatalf("%d %s %s", status, kind, text)
	}
	for _, line := range lines {
		var d account.Decision
		if err := json.Unmarshal([]byte(line), &d); err != nil || len(d.Ranks) != 2 {
			t.Errorf("%v: %s", err, line)
		}
	}
	for _, bad := range []string{"?limit=0", "?limit=x", "?worker_id=-1", "?kept=best", "?format=xml", "?nothing=1", "?limit=1&limit=2", "?%zz"} {
		if status, _, text := get("/v1/decisions" + bad); status != 400 || !strings.Contains(text, "invalid_argument") {
			t.Errorf("%s: %d %s", bad, status, text)
		}
	}
	for _, none := range []string{"/v1/decisions/t-999", "/v1/decisions/..%2f"} {
		if status, _, text := get(none); status == 200 {
			t.Errorf("%s: %s", none, text)
		}
	}
}

// A tenant's token sees the decisions of its own group and no other, on each route; a caller
// who is not trusted gets no receipt.
func TestDecisionsOfTenants(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	tokens := "- {token: acme-0123456789abcdef, role: reader, tenant: acme}\n- {token: other-0123456789abcdef, role: reader, tenant: other}\n- {token: all-0123456789abcdef, role: reader}\n"
	if err := os.WriteFile(path, []byte(tokens), 0o600); err != nil {
		t.Fatal(err)
	}
	access, err := secure.Settings{TokensFile: path}.Open(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, setup{engines: 2, registry: func(i int, w *registry.Worker) { w.Group = []string{"acme", "other"}[i] },
		proxy: func(c *Config) { c.Access, c.Trust = access, nil }})
	ask := func(method, path, token, body string) (int, string, http.Header) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, l.front.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token+"-0123456789abcdef")
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // only read
		return resp.StatusCode, readAll(t, resp.Body), resp.Header
	}
	for _, tenant := range []string{"acme", "other", "acme"} {
		status, text, header := ask("POST", "/v1/completions", tenant, promptBody(false, 1, 20, 1))
		if status != 200 || header.Get(headerReceipt) != "" {
			t.Fatalf("%d %s, receipt %q", status, text, header.Get(headerReceipt))
		}
	}
	ids := map[string]string{}
	var list struct{ Decisions []account.Decision }
	l.eventually(func() error {
		_, text, _ := ask("GET", "/v1/decisions", "all", "")
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		if len(list.Decisions) != 3 {
			return fmt.Errorf("%d decisions of 3", len(list.Decisions))
		}
		return nil
	})
	for _, d := range list.Decisions {
		ids[d.Group] = d.ID
	}
	for _, f := range []struct{ token, path, sees string }{
		{"acme", "/v1/decisions", "acme"}, {"other", "/v1/decisions", "other"}, {"acme", "/v1/decisions?format=jsonl", "acme"}, {"other", "/v1/decisions?format=jsonl", "other"},
		{"acme", "/v1/decisions?routing_group=acme", "acme"}, {"other", "/v1/decisions?routing_group=other&limit=9", "other"},
		{"acme", "/v1/decisions/" + ids["acme"], "acme"}, {"acme", "/v1/decisions/" + ids["other"], ""}, {"other", "/v1/decisions/" + ids["acme"], ""},
		{"acme", "/v1/decisions?routing_group=other", ""}, {"acme", "/v1/decisions?format=jsonl&routing_group=other", ""}, {"", "/v1/decisions", ""}, {"", "/v1/decisions/" + ids["acme"], ""},
	} {
		_, text, _ := ask("GET", f.path, f.token, "")
		for _, group := range []string{"acme", "other"} {
			if got := strings.Contains(text, `"routing_group":"`+group+`"`); got != (group == f.sees) {
				t.Errorf("%s as %q shows %q: %v\n%s", f.path, f.token, group, got, text)
			}
		}
	}
}

func readAll(t *testing.T, r io.Reader) string {
	t.Helper()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// loseAll has every worker let go of all that it holds.
func loseAll(t *testing.T, l *lab, published int64) {
	t.Helper()
	b := &event.Batch{Space: space, Published: published, Events: []event.Event{{Kind: event.Cleared, AllTiers: true}}}
	if _, err := l.set.Lookup(space).ApplyWait(t.Context(), b); err != nil {
		t.Error(err)
	}
}
