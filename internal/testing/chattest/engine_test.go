package chattest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/tokenize"
)

// everything writes what an engine gives to a template.
const everything = `{{ messages | tojson }}
{{ tools | tojson }}{% for x in [add_generation_prompt, enable_thinking, reasoning_effort, extra] %}{{ "\n" }}{% if x is defined %}{{ x | tojson }}{% else %}"-"{% endif %}{% endfor %}{% if false %}{{ messages[0].content }}{% endif %}`

// TestEngines makes the prompts of random requests as vLLM's own code does: make test-apis.
func TestEngines(t *testing.T) {
	python, wheel := os.Getenv("KVATLAS_API_PYTHON"), os.Getenv("KVATLAS_API_VLLM")
	if python == "" || wheel == "" {
		t.Skip("make test-apis runs this against vLLM's code")
	}
	j, err := StartJudge(python, "engine_vllm.py", wheel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	record := recorder(t)
	for _, c := range []struct {
		encoder chat.Encoder
		format  chat.ContentFormat
	}{{chat.Jinja, chat.Text}, {chat.Jinja, chat.Parts}, {chat.DeepSeekV32, chat.Text}, {chat.DeepSeekV4, chat.Parts}, {chat.DeepSeekV41, chat.Parts}, {chat.Harmony, chat.Text}} {
		t.Run(fmt.Sprintf("%s-%s", c.encoder, c.format), func(t *testing.T) { testEngine(t, j, c.encoder, c.format, record) })
	}
}

// recorder takes the vectors that chat's own tests go by: KVATLAS_CHAT_RECORD=file.
func recorder(t *testing.T) io.Writer {
	path := os.Getenv("KVATLAS_CHAT_RECORD")
	if path == "" {
		return nil
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() }) // the vectors are looked at
	return f
}

func testEngine(t *testing.T, j *Judge, encoder chat.Encoder, format chat.ContentFormat, record io.Writer) {
	var tok *tokenize.Tokenizer
	if encoder == chat.Harmony {
		data, err := os.ReadFile(filepath.Join(os.Getenv("KVATLAS_TEST_TOKENS"), "gptoss", "tokenizer.json"))
		if err != nil {
			t.Skipf("make test-tokens fetches gpt-oss's tokenizer: %v", err)
		}
		if tok, err = tokenize.Load(data, tokenize.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	n := envInt("KVATLAS_API_CASES", 2000)
	g := NewGen(seed(t))
	g.API = true
	recorded := 0
	same, refused, unsupported, bad := 0, 0, 0, 0
	for i := range n {
		defaults := pick(g, "{}", "{}", `{"enable_thinking": false}`, `{"thinking": true, "reasoning_effort": "low"}`, `{"drop_thinking": false, "reasoning_effort": "max"}`)
		body := g.Body()
		if encoder == chat.Jinja && strings.Contains(body, `"continue_final_message": true`) {
			continue // transformers does it, after the template
		}
		m, err := engineModel(encoder, format, defaults)
		if err != nil {
			t.Fatal(err)
		}
		want, err := j.Engine(string(encoder), string(format), body, defaults)
		if err != nil {
			t.Fatal(err)
		}
		p, err := m.Prompt(context.Background(), body, nil)
		var no *jinja.UnsupportedError
		switch {
		case errors.As(err, &no):
			unsupported++
			continue
		case want.Err != "" && err != nil, p.Media:
			refused++
			continue
		case want.Err != "":
			// What the engine refuses for another reason than its prompt may be written.
			refused++
			continue
		}
		got := string(p.Text)
		if err == nil && tok != nil {
			var ids []uint32
			want.Text, _ = tok.Decode(want.IDs, false)
			if ids, err = encodeAll(tok, p); err == nil && !slices.Equal(ids, want.IDs) {
				err = fmt.Errorf("the ids differ: %v, want %v", ids, want.IDs)
			}
		}
		if err != nil || got != want.Text {
			if bad++; bad <= 1 {
				t.Errorf("case %d: %v\nbody %.3000s\nhave …%.300q\nwant …%.300q", i, err, body, got[common(got, want.Text):], want.Text[common(got, want.Text):])
			}
			continue
		}
		same++
		if record != nil && encoder != chat.Jinja && len(body) < 1200 && utf8.ValidString(got) && same%5 == 0 && recorded < 22 {
			recorded++
			fmt.Fprintf(record, `{"encoder":%q,"body":%s,"defaults":%s,"text":%s}`+"\n", encoder, body, defaults, Quote(got))
		}
	}
	t.Logf("%d the same, %d refused, %d unsupported, %d differ", same, refused, unsupported, bad)
	if same < n/4 {
		t.Error("too few requests say anything")
	}
}

func engineModel(encoder chat.Encoder, format chat.ContentFormat, defaults string) (*chat.Model, error) {
	cfg := chat.Config{Encoder: encoder, ContentFormat: format, Now: func() time.Time { return clock }}
	if encoder == chat.Jinja {
		cfg.Template = everything
	}
	var err error
	if cfg.Kwargs, err = jinja.ParseJSON(defaults); err != nil {
		return nil, err
	}
	return chat.New(cfg)
}

// encodeAll encodes a prompt as its parts ask for.
func encodeAll(tok *tokenize.Tokenizer, p chat.Prompt) (ids []uint32, err error) {
	done := 0
	for _, s := range p.Plain {
		if ids, err = tok.Encode(ids, string(p.Text[done:s.From]), false); err != nil {
			return ids, err
		}
		if ids, err = tok.EncodePlain(ids, string(p.Text[s.From:s.To]), ""); err != nil {
			return ids, err
		}
		done = s.To
	}
	return tok.Encode(ids, string(p.Text[done:]), false)
}

// common is where two texts begin to differ, or a little before.
func common(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return max(n-20, 0)
}

// afterResult ends a conversation behind a tool's message, where there is one, and names a tool, each in some
// requests: what was thought before a call, and which tools there are, is written only then.
func afterResult(g Gen, body string) string {
	v, err := jinja.ParseJSON(body)
	req, ok := v.AsDict()
	if err != nil || !ok {
		return body
	}
	list, _ := req.Get("messages").AsList()
	for i := len(list) - 1; i > 0 && g.chance(70); i-- {
		m, _ := list[i].AsDict()
		if role, _ := m.Get("role").AsString(); role == "tool" {
			req.Set("messages", jinja.List(list[:i+1]...))
			break
		}
	}
	for _, x := range list {
		m, _ := x.AsDict()
		if role, _ := m.Get("role").AsString(); role == "assistant" && g.chance(30) {
			m.Set("reasoning_content", jinja.Str("thought"))
		}
	}
	tools, _ := req.Get("tools").AsList()
	if len(tools) > 0 && g.chance(30) {
		tool, _ := tools[0].AsDict()
		fn, _ := tool.Get("function").AsDict()
		choice, of := jinja.NewDict(2), jinja.NewDict(1)
		of.Set("name", fn.Get("name"))
		choice.Set("type", jinja.Str("function"))
		choice.Set("function", of.Value())
		req.Set("tool_choice", choice.Value())
	}
	out, err := jinja.AppendJSON(nil, v)
	if err != nil || !utf8.Valid(out) { // half a character, which only an escape can be
		return body
	}
	return string(out)
}

// TestSGLang makes the prompts of random requests as SGLang's own code does, with templates that
// write all that they are given, and DeepSeek-V3.2's, which has none.
func TestSGLang(t *testing.T) {
	python, wheel := os.Getenv("KVATLAS_API_PYTHON"), os.Getenv("KVATLAS_API_SGLANG")
	if python == "" || wheel == "" {
		t.Skip("make test-apis runs this against SGLang's code")
	}
	j, err := StartJudge(python, "engine_sglang.py", wheel)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	record := recorder(t)
	source := map[string]string{
		"text":  everything,
		"parts": everything + "{% for m in messages %}{% for c in m.content %}{% endfor %}{% endfor %}",
		"media": everything + "{# image #}",
		"fails": everything + "{% if tools and tools[0].function %}{{ raise_exception('no') }}{% endif %}",
		"dsv32": "",
	}
	names := slices.Sorted(maps.Keys(source))
	n := envInt("KVATLAS_API_CASES", 2000)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			g := NewGen(seed(t))
			g.API = true
			same, refused, unsupported, bad, recorded := 0, 0, 0, 0, 0
			for i := range n {
				defaults := pick(g, "{}", "{}", `{"enable_thinking": false}`, `{"thinking": true, "extra": "x"}`)
				body := g.Body()
				encoder, encoding := chat.Jinja, "null"
				if name == "dsv32" {
					encoder, encoding = chat.DeepSeekV32, `"dsv32"`
					body = afterResult(g, body)
				}
				want, err := j.ask(fmt.Sprintf(`{"template":%s,"encoding":%s,"body":%s,"defaults":%s}`, Quote(source[name]), encoding, body, defaults))
				if err != nil {
					t.Fatal(err)
				}
				cfg := chat.Config{Engine: chat.SGLang, Encoder: encoder, Template: source[name], Now: func() time.Time { return clock }}
				if cfg.Kwargs, err = jinja.ParseJSON(defaults); err != nil {
					t.Fatal(err)
				}
				m, err := chat.New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				p, err := m.Prompt(context.Background(), body, nil)
				var no *jinja.UnsupportedError
				switch got := string(p.Text); {
				case errors.As(err, &no):
					unsupported++
				case want.Err != "", p.Media:
					refused++
				case err != nil || got != want.Text:
					if bad++; bad <= 1 {
						t.Errorf("case %d: %v\nbody %.3000s\nhave …%.300q\nwant …%.300q", i, err, body, got[common(got, want.Text):], want.Text[common(got, want.Text):])
					}
				default:
					same++
					if record != nil && len(body) < 900 && utf8.ValidString(got) && same%20 == 0 && recorded < 8 {
						recorded++
						fmt.Fprintf(record, `{"engine":"sglang","encoder":%q,"template":%s,"body":%s,"defaults":%s,"text":%s}`+"\n", encoder, Quote(source[name]), body, defaults, Quote(got))
					}
				}
			}
			t.Logf("%d the same, %d refused, %d unsupported, %d differ", same, refused, unsupported, bad)
			if same < n/5 {
				t.Error("too few requests say anything")
			}
		})
	}
}
