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
