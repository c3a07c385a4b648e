package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/apitest"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
	"github.com/kvatlas/kvatlas/registry"
	"github.com/kvatlas/kvatlas/tokenize"
)

// knowing is an engine that tokenizes as vLLM does: by its own files, which may be others.
type knowing struct {
	model    atomic.Pointer[tokens.Model]
	words    *tokenize.Tokenizer
	skips    atomic.Bool            // it leaves special tokens out of texts
	cleans   atomic.Bool            // and spaces before punctuation
	renders  bool                   // it has /v1/chat/completions/render
	converts atomic.Int64           // it has that of /v1/messages and /v1/responses, and adds so many tokens
	mute     atomic.Bool            // it fails at saying tokens
	length   atomic.Int64           // how many it takes
	got      atomic.Pointer[string] // the last request that was not for tokens
	asked    atomic.Int64           // for tokens
	requests atomic.Int64
	http     *httptest.Server
}

func newKnowing(t *testing.T, template string, renders bool) *knowing {
	words, err := tokenize.Load(tokentest.Files(template)["tokenizer.json"].Data, tokenize.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e := &knowing{renders: renders, words: words}
	e.length.Store(4096)
	e.become(t, template)
	e.http = httptest.NewServer(e)
	t.Cleanup(e.http.Close)
	return e
}

func (e *knowing) become(t *testing.T, template string) {
	m, err := tokens.Load(tokentest.Files(template), tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.model.Store(m)
}

func (e *knowing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	e.requests.Add(1)
	field := "tokens"
	switch {
	case r.URL.Path == "/v1/models":
		_, _ = fmt.Fprintf(w, `{"data":[{"id":"org/model","owned_by":"vllm","max_model_len":%d}]}`, e.length.Load())
		return
	case r.URL.Path == "/version":
		_, _ = io.WriteString(w, `{"version":"0.27.0"}`)
		return
	case strings.HasSuffix(r.URL.Path, renders) && r.URL.Path != pathRender && e.converts.Load() == 0:
		w.WriteHeader(http.StatusNotFound)
		return
	case e.mute.Load() && (r.URL.Path == pathTokenize || r.URL.Path == pathRender):
		w.WriteHeader(http.StatusInternalServerError)
		return
	case r.URL.Path == pathTokenize:
	case r.URL.Path == pathDetokenize:
		var q struct{ Tokens []uint32 }
		text, err := "", json.Unmarshal(body, &q)
		if err == nil {
			text, err = e.words.Decode(q.Tokens, false)
		}
		if err != nil {
			_, _ = io.WriteString(w, `{"error":{}}`)
			return
		}
		if e.cleans.Load() {
			text = strings.ReplaceAll(text, " .", ".")
		}
		if e.skips.Load() {
			text = strings.ReplaceAll(text, "<s>", "")
		}
		data, _ := json.Marshal(map[string]string{"prompt": text})
		_, _ = w.Write(data)
		return
	case r.URL.Path == pathRender && e.renders, strings.HasSuffix(r.URL.Path, renders) && r.URL.Path != pathRender:
		field = "token_ids"
	case r.URL.Path == pathRender:
		w.WriteHeader(http.StatusNotFound)
		return
	default:
		text := string(body)
		e.got.Store(&text)
		_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
		return
	}
	e.asked.Add(1)
	form := tokens.Chat
	if other, is := conversations[strings.TrimSuffix(r.URL.Path, renders)]; is {
		form = other
	} else if strings.Contains(string(body), `"prompt"`) {
		form = tokens.Completion
	}
	ids, err := e.model.Load().Tokens(r.Context(), form, body, nil)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if form > tokens.Chat {
		ids = append(ids, make([]uint32, e.converts.Load()-1)...)
	}
	data, _ := json.Marshal(map[string]any{field: ids, "count": len(ids), "max_model_len": e.length.Load()})
	_, _ = w.Write(data)
}

// writeFiles writes a model's files to a directory.
func writeFiles(t *testing.T, dir string, files fstest.MapFS) {
	t.Helper()
	for name, f := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// followed is a lab whose proxy has the files of a directory, and these engines.
func followed(t *testing.T, dir string, sample float64, engines ...*knowing) *lab {
	l := newLab(t, setup{engines: len(engines), registry: func(i int, w *registry.Worker) { w.Endpoints.HTTP = engines[i].http.URL },
		proxy: func(c *Config) {
			var err error
			if c.Tokenizers.Dirs, err = tokens.NewDirs([]string{dir}, tokens.Options{TurnCache: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			c.Tokenizers.Sample, c.Tokenizers.Rate = sample, 1000
		}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { l.proxy.FollowTokens(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	return l
}

func (l *lab) states(texts, chats string) {
	l.t.Helper()
	l.eventually(func() error {
		got := l.proxy.Tokens().Of(space).Status()
		if got.States["texts"] != texts || got.States["chats"] != chats {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
}

// compared waits for comparisons of so many engines to be over.
func (l *lab) compared(n uint64) {
	l.t.Helper()
	l.eventually(func() error {
		if s := l.proxy.Tokens().Of(space).Status(); uint64(s.Compared) != n {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// What engines agree with at registration is tokenized in the process from then on, and no
// engine is asked; what a request may not be known of, an engine is asked for.
func TestTokensInProcess(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	for _, renders := range []bool{true, false} {
		e := newKnowing(t, tokentest.Template, renders)
		l := followed(t, dir, 0, e)
		l.states("trusted", "trusted")
		l.compared(1)
		asked := e.asked.Load()
		for i := range 5 {
			l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":"the %d","max_tokens":1}`, i))
			l.post("/v1/chat/completions", fmt.Sprintf(`{"model":"org/model","messages":[{"role":"user","content":"%d"}]}`, i))
		}
		if n := e.asked.Load(); n != asked {
			t.Errorf("an engine was asked %d times for what is known", n-asked)
		}
		if made := l.metric(`kvatlas_router_tokenize_total{from="process"}`); made != "10" {
			t.Errorf("%s prompts were tokenized in the process", made)
		}
		l.post("/v1/completions", `{"model":"lora","prompt":"the"}`)
		l.post("/v1/chat/completions", `{"model":"org/model","messages":[],"chat_template":"x"}`)
		if n := e.asked.Load(); n != asked+2 {
			t.Errorf("an engine was asked %d times, want 2", n-asked)
		}
		for _, reason := range []string{"adapter", "unsupported"} {
			if n := l.metric(`kvatlas_router_tokenizer_asked_total{reason="` + reason + `"}`); n != "1" {
				t.Errorf("asked because of %s: %s", reason, n)
			}
		}
	}
}

// An engine with another template is found when it registers, or later by a sampled request.
// From then on nothing is routed by those tokens, not even what was made before; until the files
// are others, or an operator wants them compared anew.
func TestTokensDisagree(t *testing.T) {
	const other = tokentest.Template + "!"
	dir := t.TempDir()
	at := filepath.Join(dir, modelName)
	writeFiles(t, at, tokentest.Files(tokentest.Template))
	one, two := newKnowing(t, tokentest.Template, true), newKnowing(t, tokentest.Template, false)
	l := followed(t, dir, 1, one, two)
	l.states("trusted", "trusted")
	held, err := l.proxy.Tokens().Of(space).Tokens(t.Context(), tokens.Request{Form: tokens.Chat, Body: []byte(`{"messages":[{"role":"user","content":"x"}]}`)})
	if err != nil || !held.Stand() {
		t.Fatal(err)
	}
	two.become(t, other)
	l.eventually(func() error { // by samples, some of which go to the second
		l.post("/v1/chat/completions", `{"model":"org/model","messages":[{"role":"user","content":"y"}]}`)
		if s := l.proxy.Tokens().Of(space).Status(); s.States["chats"] != "disagrees" || s.States["texts"] != "disagrees" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if s := l.proxy.Tokens().Of(space).Status(); s.Difference == nil || s.Difference.Worker != 1 || s.Difference.Position == 0 || s.Difference.Theirs != s.Difference.Ours+1 {
		t.Errorf("%+v", s.Difference)
	}
	if held.Stand() || held.Agreed(0, l.model().Engine(0).Process()) {
		t.Error("what was made before the difference is still used")
	}
	q := &call{m: l.model(), ids: held, api: apis["/v1/chat/completions"], body: body{model: modelName, chat: true, text: []byte(`[]`)}, data: []byte(`{"messages":[]}`), header: http.Header{}, id: "held"}
	q.prompt.Tokens = held.List
	if _, err := l.proxy.chooseNow(t.Context(), q, hasty); err != nil || q.ids != nil || len(q.prompt.Tokens) == len(held.List) {
		t.Errorf("%v: a request that had waited is routed by %d tokens", err, len(q.prompt.Tokens))
	}
	l.model().Router.Free("held")
	made := l.metric(`kvatlas_router_tokenize_total{from="process"}`)
	for i := range 5 {
		l.post("/v1/completions", fmt.Sprintf(`{"model":"org/model","prompt":"%d"}`, i))
	}
	if now := l.metric(`kvatlas_router_tokenize_total{from="process"}`); now != made {
		t.Errorf("%s prompts were tokenized in the process, then %s", made, now)
	}
	if m := l.metric(`kvatlas_router_tokenizer_state{model="org/model",block_size="4",group="",prompts="chats",state="disagrees"}`); m != "1" {
		t.Errorf("the metric is %q", m)
	}
	// An operator's word alone does not help; the engine's does.
	if l.proxy.Tokens().Retry("org/model") != 1 {
		t.Fatal("no such model")
	}
	l.states("disagrees", "disagrees")
	two.become(t, tokentest.Template)
	l.proxy.Tokens().Retry("")
	l.states("trusted", "trusted")
	// Other files are compared anew, and found to be others.
	files := maps.Clone(tokentest.Files(other))
	writeFiles(t, at, files)
	l.states("disagrees", "disagrees")
}

// Operators see what differs, and say when it is mended.
func TestTokenizerRoutes(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	e := newKnowing(t, tokentest.Template+"!", true)
	l := followed(t, dir, 0, e)
	l.states("disagrees", "disagrees")
	resp, err := http.Get(l.front.URL + pathTokens)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil || !strings.Contains(string(data), `"difference":{"worker_id":0,`) || strings.Contains(string(data), "im_start") {
		t.Errorf("%s %v", data, err)
	}
	checkExchange(t, apitest.Exchange{Method: http.MethodGet, Path: pathTokens, Status: resp.StatusCode, AnswerType: resp.Header.Get("Content-Type"), Answer: data})
	if why := l.proxy.WrongTokens(); !strings.Contains(why, "worker 0 makes other tokens") {
		t.Error(why)
	}
	e.become(t, tokentest.Template)
	if status, text, _ := l.post(pathRetryTokens+"?model_name=other", ""); status != http.StatusNotFound {
		t.Errorf("%d %s", status, text)
	}
	status, text, header := l.post(pathRetryTokens+"?model_name="+modelName, "")
	checkPost(t, pathRetryTokens, "", status, text, header)
	if status != http.StatusOK {
		t.Errorf("%d %s", status, text)
	}
	l.states("trusted", "trusted")
	if why := l.proxy.WrongTokens(); why != "" {
		t.Error(why)
	}
}

// /tokenize and /detokenize are answered here as engines answer them, and passed on where that
// is not known.
func TestTokenizeItself(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	e := newKnowing(t, tokentest.Template, true)
	l := followed(t, dir, 0, e)
	l.states("trusted", "trusted")
	l.compared(1)
	l.eventually(func() error {
		if s := l.proxy.Tokens().Of(space).Status(); s.States["detokenized"] != "trusted" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	asked := e.requests.Load()
	if _, text, _ := l.post("/tokenize", `{"model":"org/model","prompt":"the"}`); e.requests.Load() != asked+1 || !strings.Contains(text, `"max_model_len":4096`) {
		t.Errorf("nobody has said how long a prompt may be: %s", text)
	}
	l.asking()
	for _, c := range []struct {
		path, body string
		own        bool
	}{
		{"/tokenize", `{"model":"org/model","prompt":"the in"}`, true},
		{"/tokenize", `{"model":"org/model","prompt":"","add_special_tokens":false}`, true},
		{"/tokenize", `{"model":"org/model","messages":[{"role":"user","content":"a"}],"return_token_strs":false}`, true},
		{"/tokenize", `{"model":"org/model","prompt":"the","return_token_strs":true}`, false},
		{"/tokenize", `{"model":"org/model","messages":[],"reasoning_effort":"low"}`, false},
		{"/tokenize", `{"model":"lora","prompt":"the"}`, false},
		{"/tokenize", `{"model":"org/model","prompt":["the","in"]}`, false},
		{"/tokenize", `{"model":"org/model","prompt":"the","messages":[]}`, false},

		{"/detokenize", `{"model":"org/model","tokens":[1,null]}`, false},
		{"/detokenize", `{"model":"org/model","Tokens":[1]}`, false},
		{"/detokenize", `{"model":"org/model","tokens":[]}`, true},
		{"/detokenize", `{"model":"org/model","tokens":"x"}`, false},
	} {
		asked := e.requests.Load()
		status, text, header := l.post(c.path, c.body)
		if own := e.requests.Load() == asked; own != c.own || status != http.StatusOK {
			t.Errorf("%s %s: answered here: %v, want %v: %d %s", c.path, c.body, own, c.own, status, text)
		}
		if !c.own || c.path != "/tokenize" {
			continue
		}
		if header.Get("Content-Type") != "application/json" || !strings.Contains(text, `"max_model_len":4096`) || !strings.Contains(text, `"token_strs":null`) {
			t.Errorf("%s: %v %s", c.body, header, text)
		}
		var ours, theirs, back struct {
			Count  int
			Tokens []uint32
			Prompt string
		}
		resp, err := http.Post(e.http.URL+c.path, "application/json", strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(json.NewDecoder(resp.Body).Decode(&theirs), resp.Body.Close(), json.Unmarshal([]byte(text), &ours)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(ours.Tokens, theirs.Tokens) || ours.Count != theirs.Count {
			t.Errorf("%s: %v, the engine says %v", c.body, ours, theirs)
		}
		list, _ := json.Marshal(ours.Tokens)
		_, text, _ = l.post("/detokenize", fmt.Sprintf(`{"model":"org/model","tokens":%s}`, list))
		if json.Unmarshal([]byte(text), &back) != nil || ours.Count > 0 && !strings.ContainsAny(back.Prompt, "ta") {
			t.Errorf("%v are %s", ours.Tokens, text)
		}
	}
	e.length.Store(2048) // it was started anew
	l.asking()
	if _, text, _ := l.post("/tokenize", `{"model":"org/model","prompt":"the"}`); !strings.Contains(text, `"max_model_len":2048`) {
		t.Errorf("an old length: %s", text)
	}
	e.length.Store(2)
	l.asking()
	asked = e.requests.Load()
	if l.post("/v1/messages/count_tokens", `{"model":"org/model","messages":[{"role":"user","content":"the"}]}`); e.requests.Load() != asked+1 {
		t.Error("what the engine finds too long is counted here")
	}
	// No more is made of a body than of one that is routed.
	long := &call{m: l.model(), data: []byte(`{"prompt":"the","x":"` + strings.Repeat("x", bytesPerToken*l.proxy.cfg.MaxPrompt) + `"}`), header: http.Header{}}
	if _, err := l.proxy.tokenized(httptest.NewRequest(http.MethodPost, pathTokenize, nil), long); !errors.Is(err, errForEngine) {
		t.Errorf("a body of %d bytes: %v", len(long.data), err)
	}
}

// An engine that makes another text of ids answers /detokenize itself from then on, and prompts
// are made tokens here as before.
func TestDetokenizeDisagrees(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	one, two := newKnowing(t, tokentest.Template, true), newKnowing(t, tokentest.Template, true)
	l := followed(t, dir, 1, one, two)
	l.states("trusted", "trusted")
	l.compared(2)
	state := func(want string) {
		t.Helper()
		l.eventually(func() error {
			if s := l.proxy.Tokens().Of(space).Status(); s.States["detokenized"] != want || s.States["texts"] != "trusted" {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	state("trusted")
	const ids = `{"model":"org/model","tokens":[97,261,98]}`
	two.skips.Store(true)
	l.eventually(func() error { // by samples, some of which go to the second
		l.post(pathDetokenize, ids)
		if s := l.proxy.Tokens().Of(space).Status(); s.Difference == nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	state("disagrees")
	if why := l.proxy.WrongTokens(); !strings.Contains(why, "worker 1 makes other text of tokens") {
		t.Error(why)
	}
	asked := one.requests.Load() + two.requests.Load()
	if l.post(pathDetokenize, ids); one.requests.Load()+two.requests.Load() != asked+1 {
		t.Error("it is still answered here")
	}
	two.skips.Store(false)
	l.proxy.Tokens().Retry("")
	state("trusted")
}

// What a message has of tokens is counted here as its engine counts, and passed on where that is
// not known.
func TestCountTokensItself(t *testing.T) {
	x := newPassing(t, 1, func(int, *mockapi.Config) {}, nil, nil)
	const path = "/v1/messages/count_tokens"
	for body, own := range map[string]bool{
		`{"model":"org/model","messages":[{"role":"user","content":"the in"}]}`: true,
		`{"model":"org/model","system":"the","messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"tool_result","tool_use_id":"t","content":"b"}]}],
			"tools":[{"name":"f","input_schema":{}}],"thinking":{"type":"disabled"}}`: true,
		`{"model":"org/model","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x/y"}}]}]}`: false,
		`{"model":"lora","messages":[{"role":"user","content":"the in"}]}`:                                                           false,
		`{"model":"org/model","messages":"the"}`:                                                                                     false,
	} {
		asked := x.engines[0].Tokenized.Load()
		status, ours, header := x.post(path, body)
		now := x.engines[0].Tokenized.Load()
		resp, err := http.Post(x.engines[0].http.URL+path, "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		var a, b any
		if err = errors.Join(err, json.Unmarshal([]byte(ours), &a), json.Unmarshal(theirs, &b)); err != nil || !reflect.DeepEqual(a, b) || status != resp.StatusCode {
			t.Errorf("%s: %d %s, the engine says %d %s: %v", body, status, ours, resp.StatusCode, theirs, err)
		}
		if own && (now != asked || header.Get("X-Engine") != "") || !own && header.Get("X-Engine") == "" {
			t.Errorf("%s: answered here should be %t; the engine tokenized %d times", body, own, now-asked)
		}
	}
}

// What /tokenize knows nothing of is compared by what renders, or not at all: else an engine
// would be found to differ that does not.
func TestComparedByRenderOnly(t *testing.T) {
	l := newLab(t, setup{})
	e := l.model().Engine(0)
	for body, compared := range map[string]bool{
		`{"messages":[]}`: true, `{"messages":[],"tool_choice":"auto","documents":null,"reasoning_effort":null}`: true,
		`{"messages":[],"reasoning_effort":"low"}`: false, `{"messages":[],"documents":[{"text":"a"}]}`: false, `{"messages":[],"tool_choice":"none"}`: false,
		`{"messages":[],"reasoning_\u0065ffort":"low"}`: false,
	} {
		for _, renders := range []bool{true, false} {
			engine := newKnowing(t, tokentest.Template, renders)
			w := registry.Worker{Model: modelName, BlockSize: blockSize, Transport: registry.JetStream, Endpoints: registry.Endpoints{HTTP: engine.http.URL}}
			if err := l.fleet.SetWorker(w, false); err != nil {
				t.Fatal(err)
			}
			q := tokens.Question{Space: space, Is: l.model().Engine(0).Process(), Form: tokens.Chat, Body: []byte(body)}
			list, err := l.proxy.engineTokens(t.Context(), q)
			if is := err == nil && len(list) > 0; is != (compared || renders) || !is && !errors.Is(err, tokens.ErrSilent) {
				t.Errorf("%s, an engine that renders %t: %v, %v", body, renders, list, err)
			}
			q.Is = e.Process()
			if _, err := l.proxy.engineTokens(t.Context(), q); !errors.Is(err, errGone) {
				t.Errorf("another engine answers in the place of one: %v", err)
			}
		}
	}
}

// An engine that makes other prompts of messages than of the chats that they become here is found by
// its rendering: messages go by load then, and chats as before.
func TestMessagesThatDiffer(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	e := newKnowing(t, tokentest.Template, true)
	e.converts.Store(1)
	l := followed(t, dir, 1, e)
	l.fleet.AskModels(t.Context(), http.DefaultClient, patience)
	is := func(messages string) {
		t.Helper()
		l.eventually(func() error {
			if s := l.proxy.Tokens().Of(space).Status(); s.States["messages"] != messages || s.States["chats"] != "trusted" || s.States["texts"] != "trusted" {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
	}
	const body = `{"model":"org/model","max_tokens":2,"messages":[{"role":"user","content":"b"}]}`
	byLoad := func() string { return l.metric(`kvatlas_router_unread_conversations_total{reason="differs"}`) }
	is("trusted")
	if l.post("/v1/messages", body); byLoad() != "0" {
		t.Error("it goes by load")
	}
	e.converts.Store(2)
	l.eventually(func() error { // by samples
		l.post("/v1/messages", body)
		if s := l.proxy.Tokens().Of(space).Status(); s.Difference == nil || s.Difference.Prompts != "messages" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	is("disagrees")
	before := byLoad()
	if l.post("/v1/messages", body); byLoad() == before {
		t.Error("it is still looked up")
	}
	l.post("/v1/chat/completions", `{"model":"org/model","messages":[{"role":"user","content":"b"}]}`)
	is("disagrees")
}

// What gpt-oss is asked by /v1/responses is not taken for a chat.
func TestHarmonyResponses(t *testing.T) {
	dir := t.TempDir()
	files := tokentest.Files(tokentest.Template)
	files["config.json"] = &fstest.MapFile{Data: []byte(`{"model_type":"gpt_oss"}`)}
	writeFiles(t, filepath.Join(dir, modelName), files)
	e := newKnowing(t, tokentest.Template, true)
	m, err := tokens.Load(files, tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.model.Store(m)
	e.converts.Store(1)
	l := followed(t, dir, 1, e)
	l.fleet.AskModels(t.Context(), http.DefaultClient, patience)
	l.states("trusted", "trusted")
	if s := l.proxy.Tokens().Of(space).Status().States; s["messages"] != "trusted" || s["responses"] != "unproven" {
		t.Error(s)
	}
	l.post("/v1/responses", `{"model":"org/model","input":"x"}`)
	l.post("/v1/messages", `{"model":"org/model","max_tokens":1,"messages":[{"role":"user","content":"b"}]}`)
	if n := l.metric(`kvatlas_router_unread_conversations_total{reason="unsupported"}`); n != "1" {
		t.Errorf("%s went by load", n)
	}
}
