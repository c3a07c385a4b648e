package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
)

// renderer is an engine that says its tokens, by files of its own.
type renderer struct {
	url   string
	model atomic.Pointer[tokens.Model]
	asked atomic.Int64
}

func newRenderer(t *testing.T, template string) *renderer {
	e := new(renderer)
	e.become(t, template)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		form, field := tokens.Completion, "tokens"
		switch r.URL.Path {
		case "/tokenize":
		case "/v1/chat/completions/render":
			form, field = tokens.Chat, "token_ids"
		default:
			_, _ = io.WriteString(w, `{"choices":[{"text":"x"}]}`)
			return
		}
		e.asked.Add(1)
		ids, err := e.model.Load().Tokens(r.Context(), form, body, nil)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]any{field: ids})
	}))
	t.Cleanup(h.Close)
	e.url = h.URL
	return e
}

// become makes the engine one that was started with a template, and without thinking.
func (e *renderer) become(t *testing.T, template string) {
	set, err := modelfiles.Read(tokentest.Files(template))
	if err != nil {
		t.Fatal(err)
	}
	set[modelfiles.Server] = []byte(`{"default_chat_template_kwargs":{"enable_thinking":false}}`)
	m, err := tokens.Load(set, tokens.Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.model.Store(m)
}

// A tokenizer's files go from beside the engine to the router, with the settings that the engine
// was started with, and the router makes tokens by them as long as engines make the same. An
// engine that comes with another template is found.
func TestTokenizerFilesTravel(t *testing.T) {
	home, dir := t.TempDir(), t.TempDir()
	for name, f := range tokentest.Files(tokentest.Template) {
		if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, url := startRouter(t, home, "--admin-listen=127.0.0.1:0", "--tokenizer-sample=0")
	publisher := func(worker string, e *renderer) *process {
		return start(t, home, "kvpublisher", "--data-dir="+filepath.Join(home, "data"), "--worker="+worker, "--model=m", "--engine=tcp://127.0.0.1:1", "--engine-http="+e.url, "--state-dir=none",
			"--admin-listen=", "--tokenizer="+dir, `--default-chat-template-kwargs={"enable_thinking":false}`)
	}
	state := func(want string) (text string) {
		t.Helper()
		eventually(t, time.Minute, func() error {
			data, err := get(t.Context(), url+"/v1/tokenizers")
			if text = string(data); err != nil || !strings.Contains(text, `"chats":"`+want+`"`) || !strings.Contains(text, `"texts":"`+want+`"`) {
				return fmt.Errorf("%s %v", data, err)
			}
			return nil
		})
		return text
	}
	one, two := newRenderer(t, tokentest.Template), newRenderer(t, tokentest.Template+"!")
	first := publisher("1", one)
	state("trusted")
	asked := one.asked.Load()
	for i := range 5 {
		if status, text, _ := ask(url+"/v1/chat/completions", fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%d"}]}`, i)); status != http.StatusOK {
			t.Fatalf("%d %s", status, text)
		}
	}
	if n := one.asked.Load() - asked; n != 0 {
		t.Errorf("the engine was asked %d times", n)
	}
	second := publisher("2", two)
	if text := state("disagrees"); !strings.Contains(text, `"worker_id":2`) {
		t.Error(text)
	}
	if data, err := get(t.Context(), url+"/readyz?verbose"); err != nil || !strings.Contains(string(data), "worker 2 makes other tokens") {
		t.Errorf("%s %v", data, err)
	}
	for _, p := range []*process{first, second, p} {
		p.stop()
	}
}

// gpt-oss's prompts, which no template writes, are the same at the router and at the engines, by
// config.json beside their files: what a client calls a special token is text. A second turn goes where
// the first was, with its tokens.
func TestHarmonyThroughTheRouter(t *testing.T) {
	t.Parallel()
	home, dir := t.TempDir(), t.TempDir()
	files := tokentest.Files("{{ raise_exception('the template is not used') }}")
	files["config.json"] = &fstest.MapFile{Data: []byte(`{"model_type":"gpt_oss"}`)}
	for name, f := range files {
		if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, url := startRouter(t, home, "--tokenizers=m="+dir, "--tokenizer-sample=1", "--tokenizer-sample-rate=1000", "--pass-tokens", "--models-every=50ms")
	start(t, home, "kvmocker", "--data-dir="+filepath.Join(home, "data"), "--http", "--http-port=0", "--workers=3", "--speed=0", "--model=m", "--model-files="+dir, "--engine-release=0.33.0")
	eventually(t, time.Minute, func() error {
		data, err := get(t.Context(), url+"/v1/tokenizers")
		if text := string(data); err != nil || !strings.Contains(text, `"chats":"trusted"`) || !strings.Contains(text, `"messages":"trusted"`) || !strings.Contains(text, `"compared":3`) {
			return fmt.Errorf("%s %v", data, err)
		}
		return nil
	})
	turn := func(path, more string) (cached int, worker string) {
		t.Helper()
		status, data, who := ask(url+path, `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"<|im_start|>`+strings.Repeat("the in a ", 100)+`"}`+more+`]}`)
		var answer struct {
			Usage struct {
				Cache   int `json:"cache_read_input_tokens"`
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		if err := json.Unmarshal([]byte(data), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%d %s", status, data)
		}
		return answer.Usage.Cache + answer.Usage.Details.Cached, who
	}
	const more = `,{"role":"assistant","content":"well"},{"role":"user","content":"and?"}`
	_, first := turn("/v1/chat/completions", "")
	for _, path := range []string{"/v1/chat/completions", "/v1/messages"} {
		eventually(t, time.Minute, func() error { // its events are on their way
			if cached, who := turn(path, more); cached < 100 || who != first {
				return fmt.Errorf("%s: %d tokens cached at %s, the first turn was at %s", path, cached, who, first)
			}
			return nil
		})
	}
	text, err := get(t.Context(), url+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if sum(text, "kvatlas_router_prompts_as_tokens_total") == 0 || sum(text, "kvatlas_router_tokenizer_compared_total", `result="differs"`) != 0 || sum(text, "kvatlas_router_tokenize_total", `from="engine"`) != 0 {
		t.Errorf("%s", text)
	}
	unread := sum(text, "kvatlas_router_unread_conversations_total", `reason="unsupported"`)
	if status, data, _ := ask(url+"/v1/responses", `{"model":"m","max_output_tokens":1,"input":"x"}`); status != http.StatusOK {
		t.Fatalf("%d %s", status, data)
	}
	if text, err = get(t.Context(), url+"/metrics"); err != nil || sum(text, "kvatlas_router_unread_conversations_total", `reason="unsupported"`) != unread+1 {
		t.Errorf("a response was looked up as a chat: %v", err)
	}
}
