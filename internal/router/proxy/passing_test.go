package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/testing/tokentest"
	"github.com/kvatlas/kvatlas/registry"
)

// arrival is a request as an engine saw it.
type arrival struct {
	engine int
	body   string
	prompt []uint32
	given  bool
}

// idsLab is a lab whose engines tokenize by the files that the proxy has, are trusted, and
// take tokens as their kind and release do.
type idsLab struct {
	*lab
	files   *mockapi.Tokenizer
	arrived chan arrival
}

func newPassing(t *testing.T, engines int, engine func(i int, c *mockapi.Config), worker func(i int, w *registry.Worker), proxy func(c *Config)) *idsLab {
	t.Helper()
	files := tokentest.Files(tokentest.Template)
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), files)
	var is mockapi.Config
	engine(0, &is)
	own, err := mockapi.LoadTokenizer(files, is.Kind, "", "")
	if err != nil {
		t.Fatal(err)
	}
	x := &idsLab{files: own, arrived: make(chan arrival, 64)}
	x.lab = newLab(t, setup{engines: engines, registry: worker,
		engine: func(i int, c *mockapi.Config) {
			c.Tokenizer = own
			c.Seen = func(body []byte, prompt []uint32, given bool) { x.arrived <- arrival{i, string(body), prompt, given} }
			engine(i, c)
		},
		proxy: func(c *Config) {
			c.PassTokens = true
			if c.Tokenizers.Dirs, err = tokens.NewDirs([]string{dir}, tokens.Options{TurnCache: 1 << 20}); err != nil {
				t.Fatal(err)
			}
			if proxy != nil {
				proxy(c)
			}
		}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { x.proxy.FollowTokens(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	x.states("trusted", "trusted")
	x.compared(engines)
	if n := x.fleet.AskModels(ctx, http.DefaultClient, patience); n != engines {
		t.Fatalf("%d engines said what they are", n)
	}
	x.eventually(func() error { // whose rules hold is known then
		ids, err := x.proxy.Tokens().Of(space).Tokens(ctx, tokens.Request{Form: tokens.Chat, Body: []byte(`{"messages":[{"role":"user","content":"a"}]}`)})
		if err == nil && ids.SGLang() != (is.Kind == mockapi.KindSGLang) {
			err = errors.New("by the other engine's rules")
		}
		return err
	})
	x.compared(engines)
	return x
}

func (x *idsLab) compared(engines int) {
	x.t.Helper()
	x.eventually(func() error {
		if s := x.proxy.Tokens().Of(space).Status(); s.Compared != engines {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// agreed waits until the worker's engine, the process that it is now, was seen to make the same tokens.
func (l *lab) agreed(worker uint64) {
	l.t.Helper()
	l.eventually(func() error {
		for form, body := range map[tokens.Form]string{tokens.Completion: `{"prompt":"x"}`, tokens.Chat: `{"messages":[]}`} {
			ids, err := l.proxy.Tokens().Of(space).Tokens(l.t.Context(), tokens.Request{Form: form, Body: []byte(body)})
			if err != nil || !ids.Agreed(worker, l.model().Engine(worker).Process()) {
				return fmt.Errorf("worker %d does not agree: %w", worker, err)
			}
		}
		return nil
	})
}

const passTool = `"tools":[{"type":"function","function":{"name":"look","description":"é","parameters":{"b":1,"a":[]}}}]`

// What an engine computes is what it would have made of the body itself, tools included,
// whether the tokens came with it or not; and the body is the client's but for them.
func TestPassTokens(t *testing.T) {
	t.Parallel()
	chat := func(more string) string {
		return `{ "model":"org/model", "messages":[{"role":"user","content":"the in"}],"temperature":1.50 ,"max_tokens":1` + more + `}`
	}
	text := func(more string) string {
		return `{"model":"org/model","prompt":"the in a" ,"max_tokens":1` + more + `}`
	}
	always := []string{text(""), text(`,"add_special_tokens":false`), text(`,"echo":null`)}
	chats := []string{chat(""), `{"model":"org/model","max_tokens":1,"messages":[{"role":"user","content":"the"},{"role":"assistant","content":"in"}]}`, chat("," + passTool), chat(`,"chat_template_kwargs":{"enable_thinking":false}`), chat(`,"kv_transfer_params":null,"input_ids":null`)}
	never := []string{text(`,"echo":true`), chat(`,"echo":true`), chat(`,"truncate_prompt_tokens":2`), chat(`,"return_prompt_text":true`), chat(`,"kv_transfer_params":{"x":1}`),
		`{"model":"org/model","prompt":["the in a"],"max_tokens":1}`, `{"model":"lora","prompt":"the in a","max_tokens":1}`, text(`,"messages":[{"role":"user","content":"a"}]`)}
	for _, c := range []struct {
		kind, release string
		off, chats    bool
	}{
		{kind: mockapi.KindVLLM, chats: true}, {kind: mockapi.KindSGLang, chats: true}, {kind: mockapi.KindVLLM, release: "0.26.0"},
		{kind: mockapi.KindSGLang, release: "0.5.12.post1"}, {kind: mockapi.KindVLLM, off: true},
	} {
		t.Run(c.kind+c.release, func(t *testing.T) {
			t.Parallel() // it waits, mostly
			x := newPassing(t, 1, func(_ int, e *mockapi.Config) { e.Kind, e.Release = c.kind, c.release }, nil, func(p *Config) { p.PassTokens = !c.off })
			try := func(body string, given bool) {
				t.Helper()
				path := "/v1/chat/completions"
				if strings.Contains(body, `"prompt"`) {
					path = "/v1/completions"
				}
				if status, data, _ := x.post(path, body); status != 200 {
					t.Errorf("%s: %d %s", body, status, data)
					return
				}
				a := <-x.arrived
				want, err := x.files.Prompt(t.Context(), []byte(body))
				if strings.Contains(body, `"prompt":[`) {
					want, err = a.prompt, nil // the mock takes no lists of texts
				}
				if err != nil || a.given != given || !slices.Equal(a.prompt, want) {
					t.Errorf("%s: given %t, want %t; %v, want %v, %v", body, a.given, given, a.prompt, want, err)
				}
				if !given && a.body != body {
					t.Errorf("%s: the engine got %s", body, a.body)
				}
				var sent, got map[string]json.RawMessage
				if err := json.Unmarshal([]byte(body), &sent); err != nil {
					t.Fatal(err)
				}
				if err := json.Unmarshal([]byte(a.body), &got); err != nil {
					t.Fatal(err)
				}
				for name, value := range sent {
					if replaced := given && slices.Contains([]string{"prompt", "kv_transfer_params", "input_ids"}, name); !replaced && string(got[name]) != string(value) {
						t.Errorf("%s: %s is %s at the engine", body, name, got[name])
					}
				}
			}
			for _, body := range always {
				try(body, !c.off)
			}
			for _, body := range chats {
				try(body, !c.off && c.chats)
			}
			for _, body := range never {
				if !strings.Contains(body, `"prompt":[`) {
					try(body, false)
				}
			}
			if status, _, _ := x.post("/v1/completions", never[5]); status != 400 { // by the mock: it came as it was
				t.Errorf("a list of texts: %d", status)
			}
		})
	}
}

// A model that vLLM's and SGLang's engines serve together: texts go with their tokens to both, chats as
// they came, and engines are asked for them.
func TestPassTokensToSeveral(t *testing.T) {
	t.Parallel()
	files := tokentest.Files(tokentest.Template)
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), files)
	arrived := make(chan arrival, 64)
	l := newLab(t, setup{engines: 2,
		engine: func(i int, c *mockapi.Config) {
			c.Kind = []string{mockapi.KindVLLM, mockapi.KindSGLang}[i]
			var err error
			if c.Tokenizer, err = mockapi.LoadTokenizer(files, c.Kind, "", ""); err != nil {
				t.Fatal(err)
			}
			c.Seen = func(body []byte, prompt []uint32, given bool) { arrived <- arrival{i, string(body), prompt, given} }
		},
		proxy: func(c *Config) {
			c.PassTokens = true
			var err error
			if c.Tokenizers.Dirs, err = tokens.NewDirs([]string{dir}, tokens.Options{}); err != nil {
				t.Fatal(err)
			}
		}})
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() { l.proxy.FollowTokens(ctx) })
	t.Cleanup(func() { cancel(); work.Wait() })
	l.eventually(func() error {
		if n := l.fleet.AskModels(ctx, http.DefaultClient, patience); n != 2 {
			return fmt.Errorf("%d engines said what they are", n)
		}
		if s := l.proxy.Tokens().Of(space).Status(); s.Compared != 2 || s.States["texts"] != "trusted" || s.NoChats == "" {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if why := l.proxy.WrongTokens(); !strings.Contains(why, modelName+": SGLang and other engines serve the model") {
		t.Errorf("readiness says %q", why)
	}
	var posts sync.WaitGroup
	for i := range 24 {
		for path, body := range map[string]string{"/v1/completions": `{"model":"org/model","prompt":"%d the in","max_tokens":1}`,
			"/v1/chat/completions": `{"model":"org/model","messages":[{"role":"user","content":"%d the in"},{"role":"assistant","content":"b"}],"max_tokens":1}`} {
			posts.Go(func() {
				if status, data, _ := l.post(path, fmt.Sprintf(body, i)); status != 200 {
					t.Errorf("%d %s", status, data)
				}
			})
		}
	}
	posts.Wait()
	close(arrived)
	seen := map[bool]map[int]bool{true: {}, false: {}}
	for a := range arrived {
		if chat := strings.Contains(a.body, "messages"); a.given == chat {
			t.Errorf("given %t to engine %d: %s", a.given, a.engine, a.body)
		}
		seen[a.given][a.engine] = true
	}
	if len(seen[true]) != 2 || len(seen[false]) != 2 {
		t.Errorf("not both had both: %v", seen)
	}
	if s := l.proxy.Tokens().Of(space).Status(); s.States["chats"] != "unproven" || s.States["texts"] != "trusted" || s.Difference != nil {
		t.Errorf("%+v", s)
	}
}

// What an engine has not been seen to make, or is not known to take, it is not given.
func TestPassTokensToWhom(t *testing.T) {
	t.Parallel()
	x := newPassing(t, 1, func(int, *mockapi.Config) {}, nil, nil)
	e := x.model().Engine(0)
	try := func(given bool) {
		t.Helper()
		x.post("/v1/chat/completions", `{"model":"org/model","messages":[],"max_tokens":1}`)
		if a := <-x.arrived; a.given != given {
			t.Errorf("given %t, want %t", a.given, given)
		}
	}
	try(true)
	// Another engine behind the same worker, by its address: it is compared anew, and takes
	// nothing before it has said what it is.
	w := registry.Worker{ID: 0, Model: modelName, BlockSize: blockSize, Transport: registry.JetStream,
		Endpoints: registry.Endpoints{HTTP: strings.Replace(e.URL, "127.0.0.1", "localhost", 1)}}
	if err := x.fleet.SetWorker(w, false); err != nil {
		t.Fatal(err)
	}
	if x.model().Engine(0) == e {
		t.Fatal("it is the same engine")
	}
	x.agreed(0)
	try(false)
	x.fleet.AskModels(t.Context(), http.DefaultClient, patience)
	try(true)
	if asText := x.metric("kvatlas_router_prompts_as_text_total"); asText != "1" {
		t.Errorf("%s prompts counted as text", asText)
	}
}

// Tokens that one engine makes are not for another that was not seen to make them, and not for
// what runs behind an address since that was.
func TestPassTokensNotToOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeFiles(t, filepath.Join(dir, modelName), tokentest.Files(tokentest.Template))
	one, two := newKnowing(t, tokentest.Template, true), newKnowing(t, tokentest.Template, true)
	two.mute.Store(true)
	l := followed(t, dir, 0, one, two)
	l.proxy.cfg.PassTokens = true
	try := func(worker string, given bool) {
		t.Helper()
		if n := l.fleet.AskModels(t.Context(), http.DefaultClient, patience); n != 2 {
			t.Fatalf("%d engines said what they are", n)
		}
		for path, body := range map[string]string{
			"/v1/chat/completions": `{"model":"org/model","messages":[{"role":"user","content":"a"}],"max_tokens":1}`, "/v1/completions": `{"model":"org/model","prompt":"a","max_tokens":1}`,
		} {
			if status, text, _ := l.post(path, body, headerWorker, worker); status != http.StatusOK {
				t.Fatalf("%d %s", status, text)
			}
			got := *map[string]*knowing{"0": one, "1": two}[worker].got.Load()
			if (got != body) != given {
				t.Errorf("worker %s: tokens given: want %t: %s", worker, given, got)
			}
		}
	}
	l.states("trusted", "trusted")
	l.agreed(0)
	try("0", true)
	try("1", false)
	two.mute.Store(false)
	l.proxy.Tokens().Retry("")
	l.states("trusted", "trusted")
	l.agreed(1)
	try("1", true)
	two.mute.Store(true)
	w := registry.Worker{ID: 1, Model: modelName, BlockSize: blockSize, Transport: registry.JetStream, Incarnation: 2, Endpoints: registry.Endpoints{HTTP: two.http.URL}}
	e := l.model().Engine(1)
	if err := l.fleet.SetWorker(w, false); err != nil || l.model().Engine(1) != e || e.Software().Name != "" {
		t.Fatal("it is not the same engine, of which nothing is known", err)
	}
	try("1", false)
	two.mute.Store(false)
	l.agreed(1)
	try("1", true)
}

// Both parts of a split request are given the tokens, in vLLM's way beside what the engines
// find each other by, and in SGLang's.
func TestPassTokensSplit(t *testing.T) {
	t.Parallel()
	for _, way := range []string{mockapi.TransferVLLM, mockapi.TransferSGLang} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			x := newPassing(t, 2, func(i int, c *mockapi.Config) { c.Transfer, c.Prefill, c.Kind = way, i == 0, way },
				func(i int, w *registry.Worker) {
					w.KVTransfer, w.Role = registry.KVTransfer(way), registry.Decode
					if i == 0 {
						w.Role, w.Endpoints.Bootstrap = registry.Prefill, strings.TrimPrefix(w.Endpoints.HTTP, "http://")
					}
				}, nil)
			for _, body := range []string{`{"model":"org/model","prompt":"the in a the in a","max_tokens":2}`, `{"model":"org/model","messages":[{"role":"user","content":"the"}],"max_tokens":2,` + passTool + `}`} {
				path := "/v1/chat/completions"
				if strings.Contains(body, `"prompt"`) {
					path = "/v1/completions"
				}
				if status, data, _ := x.post(path, body); status != 200 {
					t.Fatalf("%d %s", status, data)
				}
				want, err := x.files.Prompt(t.Context(), []byte(body))
				if err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if a := <-x.arrived; !a.given || !slices.Equal(a.prompt, want) {
						t.Errorf("%s: engine %d: given %t %v, want %v: %s", body, a.engine, a.given, a.prompt, want, a.body)
					}
				}
			}
			if d := x.engines[1]; d.Received.Load() != 2 || d.Lost.Load() != 0 {
				t.Errorf("%d received, %d lost", d.Received.Load(), d.Lost.Load())
			}
		})
	}
}

// The tokens of other APIs' conversations go to engines that render those, too, and were seen to
// make the same of each API's; the body stays the client's but for them.
func TestPassTokensOfOtherAPIs(t *testing.T) {
	t.Parallel()
	const tool = `{"name":"look","description":"é","input_schema":{"type":"object","b":1,"a":[]}}`
	asked := map[string][]string{
		"/v1/messages": {
			`{"model":"org/model", "max_tokens":1,"messages":[{"role":"user","content":"the in"}] }`,
			`{"model":"org/model","max_tokens":1,"system":[{"type":"text","text":"a"}],"messages":[{"role":"user","content":[{"type":"text","text":"b","cache_control":{"type":"ephemeral"}}]}],"tools":[` + tool + `]}`,
		},
		"/v1/responses": {
			`{"model":"org/model","max_output_tokens":1,"input":"the in","truncation":"disabled"}`,
			`{"model":"org/model","max_output_tokens":1,"instructions":"a","input":[{"role":"user","content":"b"}],"tools":[` + strings.Replace(`{"type":"function",`+tool[1:], "input_schema", "parameters", 1) + `]}`,
		},
	}
	const never = `{"model":"org/model","max_output_tokens":1,"input":"the in","truncation":"auto"}`
	for _, c := range []struct {
		kind, release string
		split, given  bool
	}{
		{kind: mockapi.KindVLLM, release: "0.33.0", given: true}, {kind: mockapi.KindVLLM, release: "0.33.0", split: true, given: true},
		{kind: mockapi.KindVLLM, release: "0.32.1"}, {kind: mockapi.KindSGLang, release: "0.5.23"},
	} {
		t.Run(fmt.Sprint(c.kind, c.release, c.split), func(t *testing.T) {
			t.Parallel()
			n := 1
			if c.split {
				n = 2
			}
			x := newPassing(t, n, func(i int, e *mockapi.Config) {
				if e.Kind, e.Release = c.kind, c.release; c.split {
					e.Transfer, e.Prefill = mockapi.TransferVLLM, i == 0
				}
			}, func(i int, w *registry.Worker) {
				if c.split {
					w.KVTransfer, w.Role = registry.TransferVLLM, []registry.Role{registry.Prefill, registry.Decode}[i]
				}
			}, nil)
			if s := x.proxy.Tokens().Of(space).Status().States; (s["messages"] == "trusted") != c.given || s["messages"] != s["responses"] {
				t.Fatal(s)
			}
			try := func(path, body string, given bool) {
				t.Helper()
				if status, data, _ := x.post(path, body); status != 200 {
					t.Fatalf("%s: %d %s", body, status, data)
				}
				for range n {
					a := <-x.arrived
					want, err := x.files.Prompt(t.Context(), []byte(a.body)) // the mock's body is the chat that it made
					if err != nil || a.given != given || !slices.Equal(a.prompt, want) || len(want) == 0 {
						t.Errorf("%s: engine %d: given %t, want %t; %v, want %v, %v", body, a.engine, a.given, given, a.prompt, want, err)
					}
				}
			}
			for path, bodies := range asked {
				for _, body := range bodies {
					try(path, body, c.given)
				}
			}
			if try("/v1/responses", never, false); c.split && x.engines[1].Lost.Load() != 0 {
				t.Error("what was computed is lost")
			}
		})
	}
}
