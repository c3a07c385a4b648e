package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// everything writes all that a template can see.
const everything = `{{ messages | tojson }}{{ tools | tojson }}{{ add_generation_prompt }} {{ enable_thinking }} {{ reasoning_effort }} {{ extra }}`

func writer(t *testing.T) func(chat string) (string, error) {
	t.Helper()
	var models []*chat.Model
	for _, format := range []chat.ContentFormat{chat.Text, chat.Parts} {
		m, err := chat.New(chat.Config{Template: everything + "{% if false %}{{ messages[0].content }}{% endif %}", ContentFormat: format, DropTools: true})
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, m)
	}
	return func(body string) (all string, err error) {
		var text struct{ Prompt *string }
		if err := json.Unmarshal([]byte(body), &text); err == nil && text.Prompt != nil {
			return *text.Prompt, nil // of a score
		}
		for _, m := range models {
			p, err := m.Prompt(context.Background(), body, nil)
			var no *jinja.UnsupportedError
			if errors.As(err, &no) {
				p.Text = []byte(no.Error())
			} else if err != nil {
				return "", err
			}
			all += string(p.Text) + "\n"
		}
		return all, nil
	}
}

// TestJudged compares what is made of random requests with what vLLM's own code makes of them:
// make test-apis.
func TestJudged(t *testing.T) {
	python, root := os.Getenv("KVATLAS_API_PYTHON"), os.Getenv("KVATLAS_API_VLLM")
	if python == "" || root == "" {
		t.Skip("run it with make test-apis")
	}
	cases := 2000
	if n, err := strconv.Atoi(os.Getenv("KVATLAS_API_CASES")); err == nil {
		cases = n
	}
	seed := rand.Uint64()
	if n, err := strconv.ParseUint(os.Getenv("KVATLAS_TEST_SEED"), 10, 64); err == nil {
		seed = n
	}
	t.Logf("seed %d", seed)
	cmd := exec.Command(python, "testdata/judge.py", root)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	answers := bufio.NewReaderSize(out, 1<<20)
	write := writer(t)
	for _, path := range []string{api.PathMessages, api.PathCountTokens, api.PathResponses, api.PathScore, api.PathRerank} {
		t.Run(strings.ReplaceAll(path[1:], "/", "-"), func(t *testing.T) {
			var same, refused, unsupported int
			for i := range cases {
				g := &gen{rand.New(rand.NewPCG(seed, uint64(i)))}
				rules := api.Template{SystemFirst: g.IntN(2) == 0, Disabled: g.one("none", "low")}
				past := g.list(3, func() any { return obj("role", g.one("user", "assistant", "tool"), "content", g.text()) })
				body := g.request(path)
				if path == api.PathResponses && g.IntN(4) == 0 {
					body["previous_response_id"] = "resp_1"
				} else {
					past = nil
				}
				rule := api.ScoreRule(g.one("apart", "joined", "template"))
				q := map[string]any{"path": path, "body": body, "system_first": rules.SystemFirst, "disabled": rules.Disabled, "rule": rule}
				if past != nil {
					q["past"] = past
				}
				line, err := json.Marshal(q)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := in.Write(append(line, '\n')); err != nil {
					t.Fatal(err)
				}
				answer, err := answers.ReadBytes('\n')
				if err != nil {
					t.Fatal(err)
				}
				var v struct {
					Chat    json.RawMessage
					Refused string
				}
				if err := json.Unmarshal(answer, &v); err != nil {
					t.Fatal(err)
				}
				text, _ := json.Marshal(body)
				got, err := converted(path, string(text), rules, rule, past)
				var no *jinja.UnsupportedError
				switch {
				case v.Refused != "":
					refused++
				case errors.As(err, &no):
					unsupported++
				case err != nil:
					t.Fatalf("case %d: %s: %v; the engine makes of it %s", i, text, err, v.Chat)
				default:
					want, werr := write(string(v.Chat))
					have, herr := write(got)
					if want != have || (werr == nil) != (herr == nil) {
						t.Fatalf("case %d: %s\nhave %s %v\nwant %s %v", i, text, have, herr, want, werr)
					}
					same++
				}
			}
			t.Logf("%d the same, %d refused by the engine, %d that only the engine can do", same, refused, unsupported)
			if same < cases/3 {
				t.Error("too few requests say anything")
			}
		})
	}
}

func converted(path, body string, rules api.Template, rule api.ScoreRule, past []any) (string, error) {
	v, err := jinja.ParseJSON(body)
	if err != nil {
		return "", err
	}
	req, _ := v.AsDict()
	r := api.Rules{Template: &rules, Scores: rule, Past: func(string) ([]jinja.Value, bool) {
		text, _ := json.Marshal(past)
		v, err := jinja.ParseJSON(string(text))
		list, ok := v.AsList()
		return list, ok && err == nil
	}}
	out, err := api.Chat(path, req, r)
	if err != nil {
		return "", err
	}
	text, err := jinja.AppendJSON(nil, out.Value())
	return string(text), err
}

// gen makes requests, odd ones among them.
type gen struct{ *rand.Rand }

func obj(pairs ...any) map[string]any {
	m := map[string]any{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i].(string)] = pairs[i+1] //nolint:forcetypeassert // written so below
	}
	return m
}

func (g *gen) one(of ...string) string { return of[g.IntN(len(of))] }

func (g *gen) some(n int) bool { return g.IntN(n) == 0 }

func (g *gen) text() string {
	return g.one("", "hi", "x-anthropic-billing-header: 1", "two\nlines", "äöü \"q\" \\ \u2028", " pad ", "{}", "0")
}

func (g *gen) list(most int, f func() any) []any {
	out := []any{}
	for range g.IntN(most + 1) {
		out = append(out, f())
	}
	return out
}

func (g *gen) value(depth int) any {
	switch n := g.IntN(7); {
	case n == 0:
		return nil
	case n == 1:
		return g.some(2)
	case n == 2:
		return g.IntN(1000) - 500
	case n == 3:
		return float64(g.IntN(1000)) / 8
	case n == 4 || depth == 0:
		return g.text()
	case n == 5:
		return g.list(3, func() any { return g.value(depth - 1) })
	}
	return g.object(depth - 1)
}

func (g *gen) object(depth int) map[string]any {
	m := map[string]any{}
	for range g.IntN(4) {
		m[g.one("a", "b", "type", "properties", "é")] = g.value(depth)
	}
	return m
}

func (g *gen) request(path string) map[string]any {
	b := obj("model", "m")
	if g.some(5) {
		b["chat_template_kwargs"] = obj("extra", g.value(1))
		if g.some(2) {
			b["chat_template_kwargs"].(map[string]any)["enable_thinking"] = g.some(2) //nolint:forcetypeassert // just put there
		}
	}
	switch path {
	case api.PathResponses:
		g.responses(b)
	case api.PathScore, api.PathRerank:
		g.scores(b, path)
	default:
		g.messages(b, path == api.PathMessages)
	}
	return b
}

func (g *gen) messages(b map[string]any, generates bool) {
	if generates {
		b["max_tokens"] = 100000
	}
	b["messages"] = g.list(6, func() any { return g.message() })
	switch g.IntN(4) {
	case 0:
		b["system"] = g.text()
	case 1:
		b["system"] = g.list(3, func() any { return obj("type", "text", "text", g.text(), "cache_control", obj("type", "ephemeral")) })
	case 2:
		b["system"] = nil
	}
	if g.some(2) {
		b["tools"] = g.list(3, func() any { return g.tool("input_schema") })
	}
	if g.some(3) {
		b["tool_choice"] = obj("type", g.one("auto", "any", "none", "tool"), "name", "f")
	}
	switch g.IntN(6) {
	case 0:
		b["thinking"] = obj("type", "enabled", "budget_tokens", 2000)
	case 1:
		b["thinking"] = obj("type", g.one("disabled", "adaptive"))
	}
	if g.some(5) {
		b["output_config"] = obj("effort", g.one("low", "medium", "high", "xhigh", "max"))
	}
	if g.some(9) {
		b["context_management"] = g.object(1)
	}
}

func (g *gen) message() map[string]any {
	role := g.one("user", "assistant", "user", "assistant", "system")
	m := obj("role", role, "content", g.text())
	if g.some(3) {
		return m
	}
	m["content"] = g.list(4, func() any { return g.block(role) })
	return m
}

func (g *gen) block(role string) map[string]any {
	switch kind := g.IntN(9); {
	case kind < 3 || role == "system":
		b := obj("type", "text", "text", g.text())
		if g.some(3) {
			b["cache_control"] = obj("type", "ephemeral")
		}
		return b
	case kind == 3:
		return obj("type", "image", "source", g.source())
	case kind == 4:
		return obj("type", "thinking", "thinking", g.text(), "signature", "s")
	case kind == 5:
		return obj("type", "tool_use", "id", g.one("a", "b"), "name", g.one("f", "g"), "input", g.object(2))
	case kind == 6:
		return obj("type", g.one("redacted_thinking", "tool_reference"), "data", "x", "tool_name", "f")
	}
	b := obj("type", "tool_result", "tool_use_id", g.one("a", "b"), "is_error", g.some(2))
	switch g.IntN(3) {
	case 0:
		b["content"] = g.text()
	case 1:
		b["content"] = g.list(3, func() any {
			switch g.IntN(5) {
			case 0:
				return obj("type", "image", "source", g.source())
			case 1:
				return obj("type", "tool_reference", "tool_name", g.one("f", ""))
			}
			return obj("type", "text", "text", g.text())
		})
	}
	return b
}

func (g *gen) source() map[string]any {
	if g.some(2) {
		return obj("type", "url", "url", "http://x/y")
	}
	return obj("type", "base64", "media_type", "image/png", "data", "AAAA")
}

func (g *gen) tool(schema string) map[string]any {
	t := obj("name", g.one("f", "g"), schema, g.object(2))
	if g.some(2) {
		t["description"] = g.text()
	}
	if g.some(4) {
		t["strict"] = g.some(2)
	}
	if g.some(9) {
		t["defer_loading"] = g.some(2)
	}
	if g.some(4) {
		t["cache_control"] = obj("type", "ephemeral")
	}
	return t
}

func (g *gen) responses(b map[string]any) {
	if b["input"] = g.text(); !g.some(4) {
		b["input"] = g.list(6, func() any { return g.item() })
	}
	if g.some(2) {
		b["instructions"] = g.text()
	}
	if g.some(3) {
		b["reasoning"] = obj("effort", g.one("none", "minimal", "low", "medium", "high", "xhigh"), "summary", "auto")
	}
	if g.some(2) {
		b["tools"] = g.list(3, func() any {
			t := g.tool("parameters")
			t["type"] = "function"
			switch g.IntN(6) {
			case 0:
				return obj("type", "namespace", "name", "n", "description", "d", "tools", []any{t})
			case 1:
				return obj("type", "web_search")
			}
			return t
		})
		if g.some(3) {
			b["tool_choice"] = g.one("auto", "none")
		}
	}
	if g.some(5) {
		b["store"], b["prompt_cache_key"], b["text"] = false, "k", obj("verbosity", "low")
	}
}

func (g *gen) item() map[string]any {
	switch g.IntN(8) {
	case 0, 1:
		m := obj("role", g.one("user", "user", "system", "developer", "assistant"), "content", g.text())
		if g.some(2) {
			m["type"] = "message"
		}
		return m
	case 2:
		return obj("role", g.one("user", "developer"), "type", "message", "content", g.list(3, func() any {
			if g.some(6) {
				return obj("type", "input_image", "image_url", "data:image/png;base64,AAAA", "detail", "auto")
			}
			return obj("type", "input_text", "text", g.text())
		}))
	case 3:
		m := obj("type", "message", "role", "assistant", "id", "msg_1", "content", g.list(2, func() any { return obj("type", "output_text", "text", g.text()) }))
		if g.some(2) {
			m["status"] = g.one("completed", "incomplete")
		}
		return m
	case 4:
		m := obj("type", "reasoning", "id", "rs_1", "summary", g.list(1, func() any { return obj("type", "summary_text", "text", g.text()) }))
		if g.some(2) {
			m["content"] = g.list(2, func() any { return obj("type", "reasoning_text", "text", g.text()) })
		}
		if g.some(9) {
			m["status"] = "in_progress"
		}
		return m
	case 5, 6:
		m := obj("type", "function_call", "call_id", g.one("a", "b"), "name", "f", "arguments", g.one("{}", `{"a": 1.0}`, "", "no json"))
		if g.some(4) {
			m["namespace"] = "n"
		}
		if g.some(9) {
			m = obj("type", "custom_tool_call", "call_id", "a", "name", "f", "input", g.text())
		}
		return m
	}
	m := obj("type", g.one("function_call_output", "function_call_output", "custom_tool_call_output"), "call_id", g.one("a", "b"), "output", g.text())
	if g.some(4) {
		m["output"] = []any{obj("type", "input_text", "text", g.text())}
	}
	return m
}
