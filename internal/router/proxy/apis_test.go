package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// asking has the fleet ask engines what they are.
func (l *lab) asking() *lab {
	l.t.Helper()
	if n := l.fleet.AskModels(context.Background(), http.DefaultClient, patience); n != len(l.engines) {
		l.t.Fatalf("%d engines say what they are", n)
	}
	return l
}

// turns are the bodies of a conversation's first and second request by each API.
var turns = map[string]func(topic string, second bool) string{
	"/v1/messages": func(topic string, second bool) string {
		more := ""
		if second {
			more = `,{"role":"assistant","content":[{"type":"text","text":"well"}]},{"role":"user","content":"and?"}`
		}
		return fmt.Sprintf(`{"model":"org/model","max_tokens":4,"system":[{"type":"text","text":%q}],"messages":[{"role":"user","content":[{"type":"text","text":"so"}]}%s]`, topic, more)
	},
	"/v1/responses": func(topic string, second bool) string {
		more := ""
		if second {
			more = `,{"type":"message","role":"assistant","content":[{"type":"output_text","text":"well"}]},{"role":"user","content":"and?"}`
		}
		return fmt.Sprintf(`{"model":"org/model","max_output_tokens":4,"instructions":%q,"input":[{"role":"user","content":"so"}%s]`, topic, more)
	},
}

// A conversation's second turn goes where its first was, by the tokens that the engine
// itself would make of it, and finds it cached: the engine gets the client's bytes.
func TestConversationsOfOtherAPIs(t *testing.T) {
	for _, split := range []bool{false, true} {
		l := newLab(t, setup{engines: 4})
		if split {
			l = pools(t, mockapi.TransferVLLM, nil)
		}
		l.asking()
		for path, body := range turns {
			for n, stream := range []string{"", `,"stream":true`} {
				topic := strings.Repeat(fmt.Sprint(path, n), 1000)
				_, first, h1 := l.post(path, body(topic, false)+stream+"}")
				l.idle()
				status, second, h2 := l.post(path, body(topic, true)+stream+"}")
				l.idle()
				at := headerWorker
				if split {
					at = headerPrefill
				}
				if w := h1.Get(at); status != 200 || w == "" || w != h2.Get(at) {
					t.Errorf("%s%s, split %v: %s, then %d by %s: %.200s %.200s %s", path, stream, split, w, status, h2.Get(at), first, second, h2.Get(headerReceipt))
				}
				if got := usageIn([]byte(second)); got.cached < len(topic)/4 {
					t.Errorf("%s%s: %+v of %.200s", path, stream, got, second)
				}
			}
		}
		if n := l.metric(`kvatlas_router_prompt_tokens_count{model="org/model",block_size="4",group="",kind="selected",reported="no"}`); n == "0" {
			t.Error("nothing was looked up")
		}
		for _, why := range []string{unreadEngine, unreadOther, unreadPast, unreadRefused} {
			if n := l.metric(`kvatlas_router_unread_conversations_total{reason="` + why + `"}`); n != "0" {
				t.Errorf("%s went by load: %s", n, why)
			}
		}
		if split && l.metric("kvatlas_router_decode_only_total") != "0" {
			t.Error("a decode worker did all of it")
		}
	}
}

// What is not read is counted by reason and goes by load.
func TestConversationsThatAreNotRead(t *testing.T) {
	l := newLab(t, setup{engines: 2})
	send := func(path, body, why string) {
		t.Helper()
		metric := `kvatlas_router_unread_conversations_total{reason="` + why + `"}`
		before := l.metric(metric)
		l.post(path, body)
		if l.metric(metric) == before {
			t.Errorf("%s %s is not counted as %s", path, body, why)
		}
		l.idle()
	}
	send("/v1/messages", `{"model":"org/model","max_tokens":2,"messages":[]}`, unreadEngine)
	l.asking()
	send("/v1/messages", `{"model":"org/model","max_tokens":2,"messages":[{"role":"user","content":[{"type":"document"}]}]}`, unreadRefused)
	send("/v1/messages", `{"model":"org/model","max_tokens":2,"messages":[],"thinking":{"type":"disabled"}}`, unreadOther)
	send("/v1/responses", `{"model":"org/model","input":"x","previous_response_id":"resp_0"}`, unreadPast)
}

// Of a prompt and messages in one request counts what its route is for, in whichever order.
func TestPromptBesideMessages(t *testing.T) {
	l := newLab(t, setup{}).asking()
	for _, members := range []string{`"prompt":"a text","messages":[{"role":"user","content":"x"}]`, `"messages":[{"role":"user","content":"x"}],"prompt":"a text"`} {
		for path, want := range map[string]string{"/v1/completions": `"a text"`, "/v1/chat/completions": `[{"role":"user","content":"x"}]`} {
			data := []byte(`{"model":"org/model",` + members + `}`)
			b, err := parseBody(data, 1<<20)
			q := &call{body: b, api: apis[path], data: data}
			if q.place(1 << 20); err != nil || string(q.text) != want || q.chat != (want[0] == '[') || (q.form() == tokens.Chat) != q.chat {
				t.Errorf("%s %s: a chat %t of %s, %v", path, data, q.chat, q.text, err)
			}
			if status, text, _ := l.post(path, `{"max_tokens":1,`+string(data[1:])); status != 200 {
				t.Errorf("%s: %d %s", path, status, text)
			}
		}
	}
	q := &call{body: body{}, api: apis["/v1/completions"], data: []byte(`{"messages":[]}`)}
	q.body, _ = parseBody(q.data, 1<<20)
	if q.place(1 << 20); q.chat || q.text != nil {
		t.Errorf("a completion without a prompt is a chat of %s", q.text)
	}
}

// An embedding's text is looked up, a chat's as vLLM embeds it, and neither is split.
func TestEmbeddingsAreRouted(t *testing.T) {
	l := pools(t, mockapi.TransferVLLM, nil).asking()
	for body, want := range map[string]string{
		`{"model":"org/model","input":"a text"}`:                                                              `{"model":"org/model","prompt":"a text"}`,
		`{"model":"org/model","input":["first","second"],"add_special_tokens":false}`:                         `{"model":"org/model","prompt":"first","add_special_tokens":false}`,
		`{"model":"org/model","messages":[{"role":"user","content":"x"}],"dimensions":3}`:                     `{"model": "org/model", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false}`,
		`{"model":"org/model","messages":[{"role":"user","content":"x"}],"add_generation_prompt":true,"x":1}`: `{"model": "org/model", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": true}`,
	} {
		q := &call{api: apis["/v1/embeddings"], data: []byte(body)}
		var err error
		if q.body, err = parseBody(q.data, 1<<20); err != nil {
			t.Fatal(err)
		}
		q.place(1 << 20)
		if q.api.read != "" && !l.proxy.converse(l.model(), q) {
			t.Errorf("%s is not read", body)
		}
		if got := q.ask(); string(got) != want || q.split || !json.Valid(got) {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
}

// Whose cache a prompt is for stays known by whatever API it came: what is kept of its text
// is kept for that salt alone.
func TestSaltsStayWithThePrompt(t *testing.T) {
	l := newLab(t, setup{}).asking()
	for path, body := range map[string]string{
		"/v1/completions":      `"prompt":"x"`,
		"/v1/chat/completions": `"messages":[{"role":"user","content":"x"}],"reasoning_effort":"low"`,
		"/v1/messages":         `"messages":[{"role":"user","content":"x"}],"max_tokens":3`,
		"/v1/responses":        `"input":"x"`,
		"/v1/embeddings":       `"input":"x"`,
		"/classify":            `"messages":[{"role":"user","content":"x"}]`,
	} {
		q := &call{api: apis[path], data: []byte(`{"model":"org/model","cache_salt":"so \"secret\"",` + body + `}`)}
		var err error
		if q.body, err = parseBody(q.data, 1<<20); err != nil {
			t.Fatal(err)
		}
		q.place(1 << 20)
		if q.api.read != "" && !l.proxy.converse(l.model(), q) {
			t.Errorf("%s is not read", path)
		}
		v, err := jinja.ParseJSON(string(q.older()))
		if d, ok := v.AsDict(); !ok || d.Get("cache_salt") != jinja.Str(`so "secret"`) {
			t.Errorf("%s: %v: its salt is not in %s", path, err, q.older())
		}
	}
}

// A list of prompts weighs as all of them, looked up by the first; what an API does not call its
// prompt counts as none.
func TestListsOfPromptsWeighAsAll(t *testing.T) {
	l := newLab(t, setup{}).asking()
	text := strings.Repeat("word", 1000)
	for _, c := range []struct {
		path, body  string
		first, rest int
	}{
		{"/v1/completions", `"prompt":[1,2,3]`, 3, 0},
		{"/v1/completions", `"prompt":[[1,2,3]]`, 3, 0},
		{"/v1/completions", `"prompt":[[1,2,3],[4,5],[6]]`, 3, 3},
		{"/v1/completions", `"prompt":["` + text + `"]`, 1000, 0},
		{"/v1/completions", `"prompt":["` + text + `" , "` + text + `","` + text + `"]`, 1000, 2000},
		{"/v1/embeddings", `"prompt":[9,9,9],"input":["` + text + `","` + text + `"]`, 1000, 1000},
		{"/v1/embeddings", `"prompt":[9,9,9]`, 0, 0},
		{"/v1/responses", `"prompt":[9,9,9],"input":"x"`, 0, 0},
		{"/v1/chat/completions", `"prompt":[[9,9],[9]],"messages":[]`, 0, 0},
	} {
		q := &call{api: apis[c.path], m: l.model(), data: []byte(`{"model":"org/model",` + c.body + `}`)}
		var err error
		if q.body, err = parseBody(q.data, 1<<20); err != nil {
			t.Fatal(err)
		}
		q.place(1 << 20)
		rest := q.rest
		if c.path != "/v1/completions" && c.first == 0 {
			if q.tokens != nil || rest != 0 {
				t.Errorf("%s %.60s: %d tokens and %d", c.path, c.body, len(q.tokens), rest)
			}
			continue
		}
		prompt, known := l.proxy.prompt(t.Context(), l.model(), q)
		first := len(prompt.Tokens)
		if off := prompt.Size() - first - c.rest; !known || first < c.first || first > c.first+2 || off < -2 || off > 4 {
			t.Errorf("%s %.60s: known %v, %d tokens and %d, want %d and %d", c.path, c.body, known, first, prompt.Rest, c.first, c.rest)
		}
	}
}

// With trusted files other APIs' conversations become tokens in the process, and what the
// template decides is known.
func TestConversationsInProcess(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	e := newKnowing(t, tokentest.Template, true)
	l := followed(t, dir, 0, e)
	if n := l.fleet.AskModels(t.Context(), http.DefaultClient, patience); n != 1 {
		t.Fatal("the engine does not say what it is")
	}
	l.states("trusted", "trusted")
	l.compared(1)
	asked := e.asked.Load()
	for _, body := range []string{
		`{"model":"org/model","max_tokens":2,"system":"a","messages":[{"role":"user","content":"b"}]}`,
		`{"model":"org/model","max_tokens":2,"messages":[{"role":"user","content":"b"},{"role":"system","content":"c"},{"role":"user","content":"d"}],"thinking":{"type":"disabled"}}`,
	} {
		l.post("/v1/messages", body)
	}
	l.post("/v1/responses", `{"model":"org/model","input":"x"}`)
	l.post("/v1/embeddings", `{"model":"org/model","input":"x"}`)
	if n, made := e.asked.Load()-asked, l.metric(`kvatlas_router_tokenize_total{from="process"}`); n != 0 || made != "4" {
		t.Errorf("%s made in the process, an engine was asked %d times", made, n)
	}
}
