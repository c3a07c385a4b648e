package proxy

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/registry"
)

// idOf returns the name of a response, streamed or not.
func idOf(answer string) string { return firstID([]byte(answer)) }

// turnOf is a request that goes on with a response.
func turnOf(before, input string, stream bool) string {
	return fmt.Sprintf(`{"model":"org/model","max_output_tokens":3,"instructions":"be brief","input":%q,"previous_response_id":%q,"stream":%t}`, input, before, stream)
}

// A response that goes on with another is looked up with all that was said, as the engine puts
// it together, also by a router that has only been told.
func TestResponsesGoOn(t *testing.T) {
	var mu sync.Mutex
	var msgs [][]byte
	l := newLab(t, setup{engines: 3, proxy: func(c *Config) {
		c.TellTurn = func(msg []byte) error {
			mu.Lock()
			defer mu.Unlock()
			msgs = append(msgs, bytes.Clone(msg))
			return nil
		}
	}}).asking()
	other := newLab(t, setup{engines: 1}) // its store alone counts
	for _, stream := range []bool{false, true} {
		input := strings.Repeat("a long question. ", 500)
		_, data, _ := l.post("/v1/responses", fmt.Sprintf(`{"model":"org/model","max_output_tokens":3,"instructions":"be brief","input":%q,"stream":%t}`, input, stream))
		var chain []string
		for range 3 {
			chain = append(chain, idOf(data))
			l.idle()
			status, next, _ := l.post("/v1/responses", turnOf(idOf(data), "and?", stream))
			if status != http.StatusOK || usageIn([]byte(next)).cached < len(input)/4-blockSize {
				t.Fatalf("%d %.300s", status, next)
			}
			data = next
		}
		l.idle()
		mu.Lock()
		for _, msg := range msgs {
			other.proxy.HearTurn(msg)
		}
		mu.Unlock()
		all, ok := other.proxy.past(other.model())(chain[2])
		text, _ := jinja.AppendJSON(nil, jinja.List(all...))
		if n := strings.Count(string(text), `"role": "assistant"`); !ok || n != 3 || strings.Count(string(text), "and?") != 2 || strings.Contains(string(text), "brief") {
			t.Errorf("stream %v: another router knows %v of it: %.300s", stream, ok, text)
		}
	}
	if n := l.metric(`kvatlas_router_unread_conversations_total{reason="past"}`); n != "0" {
		t.Errorf("%s were not known", n)
	}
	if n := l.metric("kvatlas_router_responses_not_remembered_total"); n != "0" {
		t.Errorf("%s were not remembered", n)
	}
	l.post("/v1/responses", turnOf("resp_nobodys", "and?", false))
	if n := l.metric(`kvatlas_router_unread_conversations_total{reason="past"}`); n != "1" {
		t.Errorf("%s are counted as not known, want 1", n)
	}
}

// What is remembered is what the engine puts before the next request: not what the system says.
func TestResponsesWithoutTheSystem(t *testing.T) {
	l := newLab(t, setup{}).asking()
	_, data, _ := l.post("/v1/responses", `{"model":"org/model","input":[{"role":"system","content":"s"},{"role":"user","content":"one"}],"instructions":"i"}`)
	l.idle()
	var texts []string
	all, ok := l.proxy.past(l.model())(idOf(data))
	for _, v := range all {
		m, _ := v.AsDict()
		text, _ := m.Get("content").AsString()
		texts = append(texts, text)
	}
	want := mockapi.Text(mockapi.Tokens("system: i\nsystem: s\nuser: one\n"), 16)
	if !ok || len(texts) != 2 || texts[0] != "one" || texts[1] != want {
		t.Errorf("%v %q, want one and %q", ok, texts, want)
	}
}

// What is not to be kept is not, what is too long neither, and all of it ends with its time.
func TestResponsesAreForgotten(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.ResponseBytes = 2000 }}).asking()
	known := func(body string) bool {
		t.Helper()
		status, data, _ := l.post("/v1/responses", body)
		if status != http.StatusOK || idOf(data) == "" {
			t.Fatalf("%d %s", status, data)
		}
		l.idle()
		_, ok := l.proxy.past(l.model())(idOf(data))
		return ok
	}
	for _, stream := range []string{"", `,"stream":true`} {
		if !known(`{"model":"org/model","input":"x"` + stream + `}`) {
			t.Error("what was said is forgotten")
		}
		if known(`{"model":"org/model","input":"x","store":false` + stream + `}`) {
			t.Error("what is not to be kept is")
		}
		for _, word := range []string{"null", "0", `"false"`, `"no"`} { // which an engine takes for false, too
			if known(`{"model":"org/model","input":"x","store":` + word + stream + `}`) {
				t.Errorf("with store %s what was said is kept", word)
			}
		}
		if known(`{"model":"org/model","input":"x","max_output_tokens":900` + stream + `}`) {
			t.Error("a long answer is kept")
		}
	}
	if n := l.metric("kvatlas_router_responses_not_remembered_total"); n != "2" {
		t.Errorf("%s are counted as not remembered, want 2", n)
	}
	for _, msg := range []string{"", "{}", `{"ID":"a/b"}`, `{"ID":"x","Before":"../y","Said":[]}`, `{"Space":{"Model":"nobody"},"ID":"x"}`,
		`{"Space":{"Model":"org/model","BlockSize":4},"ID":"long","Said":["` + strings.Repeat("x", maxTold) + `"]}`} {
		before := l.proxy.turns.used(time.Now())
		if l.proxy.HearTurn([]byte(msg)); l.proxy.turns.used(time.Now()) != before {
			t.Errorf("%s is kept", msg)
		}
	}
	// A circle has no end, and what is no list of messages says nothing.
	for id, x := range map[string]turn{"a": {"b", json.RawMessage(`[]`)}, "b": {"a", json.RawMessage(`[]`)}, "c": {"", json.RawMessage(`{}`)}, "d": {"", nil}} {
		l.proxy.keepTurn(space, "", id, x)
		if _, ok := l.proxy.past(l.model())(id); ok {
			t.Errorf("%s is known", id)
		}
	}
	off := newLab(t, setup{proxy: func(c *Config) { c.Responses = 0 }}).asking()
	if off.post("/v1/responses", `{"model":"org/model","input":"x"}`); off.proxy.turns.used(time.Now()) != 0 {
		t.Error("what was said is kept although it is not to be")
	}
}

// answering is a lab whose engines are called vLLM's and answer as given.
func answering(t *testing.T, c func(*Config), answer http.HandlerFunc) *lab {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"org/model","owned_by":"vllm"}]}`)
		case "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[1,2]}`)
		default:
			answer(w, r)
		}
	}))
	t.Cleanup(h.Close)
	return newLab(t, setup{proxy: c, registry: func(_ int, w *registry.Worker) { w.Endpoints.HTTP = h.URL }}).asking()
}

// An answer that is not over, or that nobody here can read, is not taken for all that was said,
// and counts.
func TestResponsesThatAreNotUnderstood(t *testing.T) {
	body, packed := "", false
	l := answering(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		if !packed {
			_, _ = io.WriteString(w, body)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, body)
		_ = z.Close()
	})
	for i, status := range []string{"completed", "incomplete", "queued", "in_progress", "failed", "cancelled", "", "completed"} {
		packed = i == 7
		body = fmt.Sprintf(`{"id":"resp_%d","status":%q,"output":[]}`, i, status)
		l.post("/v1/responses", `{"model":"org/model","input":"x"}`, "Accept-Encoding", "gzip")
		l.idle()
		if _, ok := l.proxy.past(l.model())(fmt.Sprintf("resp_%d", i)); ok != (i < 2) {
			t.Errorf("%q, packed %v: known is %v", status, packed, ok)
		}
	}
	if n := l.metric("kvatlas_router_responses_not_remembered_total"); n != "6" {
		t.Errorf("%s are counted as not remembered, want 6", n)
	}
}

// gpt-oss is known by its vocabulary, whatever it is served as and whatever template it was given: its
// responses go by load. Other models' are looked up.
func TestHarmonyOfAnotherName(t *testing.T) {
	for _, c := range []struct {
		vocabulary   string
		unread       int   // responses
		first, later int64 // how many questions each is
	}{{"200006,17360,200008", 1, 1, 0}, {"27,91,2527,91,29", 0, 2, 1}, {"200006,17360,200008,9", 0, 2, 1}} {
		var asked atomic.Int64
		h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/v1/models":
				_, _ = io.WriteString(w, `{"data":[{"id":"org/model","owned_by":"vllm","root":"/models/served"}]}`)
			case "/tokenize":
				asked.Add(1)
				if body, _ := io.ReadAll(r.Body); bytes.Contains(body, []byte(`"prompt":"<|start|>system<|message|>"`)) {
					_, _ = io.WriteString(w, `{"tokens":[`+c.vocabulary+`]}`)
					return
				}
				_, _ = io.WriteString(w, `{"tokens":[3575,1,2,3,4]}`)
			}
		}))
		t.Cleanup(h.Close)
		l := newLab(t, setup{registry: func(_ int, w *registry.Worker) { w.Endpoints.HTTP = h.URL }}).asking()
		for _, q := range []struct {
			path, body string
			unread     int
			asked      int64
		}{
			{"/v1/chat/completions", `{"model":"org/model","messages":[{"role":"user","content":"x"}]}`, 0, 1},
			{"/v1/messages", `{"model":"org/model","max_tokens":1,"messages":[{"role":"user","content":"y"}]}`, 0, 2},
			{"/v1/responses", `{"model":"org/model","input":"z"}`, c.unread, 2 + c.first},
			{"/v1/responses", `{"model":"org/model","input":"another"}`, 2 * c.unread, 2 + c.first + c.later}, // it is known for a while
		} {
			l.post(q.path, q.body)
			l.idle()
			if n := l.metric(`kvatlas_router_unread_conversations_total{reason="unsupported"}`); n != strconv.Itoa(q.unread) || asked.Load() != q.asked {
				t.Errorf("%s: after %s %s went by load, %d asked for, want %d and %d", c.vocabulary, q.path, n, asked.Load(), q.unread, q.asked)
			}
		}
	}
}

// A client whose key the engines do not take does not decide how others' responses are looked up.
func TestHarmonyIsNotRefusedToOthers(t *testing.T) {
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"org/model","owned_by":"vllm","root":"/models/served"}]}`)
		case r.Header.Get("Authorization") != "Bearer good":
			w.WriteHeader(http.StatusUnauthorized)
		case r.URL.Path == "/tokenize":
			_, _ = io.WriteString(w, `{"tokens":[3575,1,2,3,4]}`)
		}
	}))
	t.Cleanup(h.Close)
	l := newLab(t, setup{registry: func(_ int, w *registry.Worker) { w.Endpoints.HTTP = h.URL }}).asking()
	for _, key := range []string{"bad", "good"} {
		l.post("/v1/responses", `{"model":"org/model","input":"z"}`, "Authorization", "Bearer "+key)
		l.idle()
	}
	if n := l.metric(`kvatlas_router_tokenize_total{from="failed"}`); n != "1" {
		t.Errorf("%s prompts have no tokens, want that of the bad key", n)
	}
}

// A conversation longer than what is looked at of a prompt is not read: what JSON becomes in
// memory is many times as long.
func TestConversationsAreBounded(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.MaxPrompt = 1 << 10 }}).asking()
	for path, body := range map[string]string{
		"/v1/responses":        `"input":[` + strings.Repeat("0,", 4<<10) + `0]`,
		"/v1/messages":         `"messages":[` + strings.Repeat("0,", 4<<10) + `0]`,
		"/v1/embeddings":       `"messages":[` + strings.Repeat("0,", 4<<10) + `0]`,
		"/v1/chat/completions": `"reasoning_effort":"low","messages":[` + strings.Repeat("0,", 4<<10) + `0]`,
	} {
		const metric = `kvatlas_router_unread_conversations_total{reason="too_long"}`
		before := l.metric(metric)
		if l.post(path, `{"model":"org/model",`+body+`}`); l.metric(metric) == before {
			t.Errorf("%s: it is read", path)
		}
		l.idle()
	}
}

// Tools are of a chat's prompt, as messages are.
func TestLongToolsAreNotTokenized(t *testing.T) {
	l := newLab(t, setup{proxy: func(c *Config) { c.MaxPrompt = 1 << 10 }}).asking()
	const metric = `kvatlas_router_tokenize_total{from="failed"}`
	for n, long := range map[int]bool{100: false, 8 << 10: true} {
		before := l.metric(metric)
		l.post("/v1/chat/completions", `{"model":"org/model","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":{"name":"f","description":"`+strings.Repeat("x", n)+`"}}]}`)
		l.idle()
		if not := l.metric(metric) != before; not != long {
			t.Errorf("%d bytes of tools: that it is not tokenized is %v", n, not)
		}
	}
}

// An answer says the same in whatever pieces it comes.
func TestListeningInPieces(t *testing.T) {
	const stream = "event: response.created\r\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"r\"}}\r\n\r\n: ping\n\nevent: response.completed\ndata: {\"response\":{\"id\":\"r\",\"status\":\"completed\",\"output\":[" +
		`{"type":"reasoning"},{"type":"message","content":[{"type":"output_text","text":"a\nb"},{"type":"output_text","text":"c"}]},{"type":"function_call"}]}}` + "\n\ndata: [DONE]\n\n"
	for step := 1; step < len(stream); step++ {
		l := &listening{events: true, most: 1000}
		for rest := stream; rest != ""; {
			n := min(step, len(rest))
			l.see([]byte(rest[:n]))
			rest = rest[n:]
		}
		id, said := l.end()
		if text, _ := jinja.AppendJSON(nil, jinja.List(said...)); id != "r" || string(text) != `[{"role": "assistant", "content": "a\nb"}, {"role": "assistant", "content": "c"}]` {
			t.Fatalf("in pieces of %d: %q %s", step, id, text)
		}
	}
}
