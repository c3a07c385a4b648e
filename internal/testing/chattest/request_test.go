package chattest

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Body is the body of a random request to /v1/chat/completions.
func (g Gen) Body() string {
	fields := []string{field("model", `"m"`), field("messages", g.Messages())}
	if tools := g.Tools(); tools != "null" || g.chance(50) {
		fields = append(fields, field("tools", tools))
	}
	if kw := g.Options(); g.chance(60) {
		fields = append(fields, field("chat_template_kwargs", g.obj(kw...)))
	}
	if g.chance(15) {
		fields = append(fields, field("reasoning_effort", pick(g, `"low"`, `"high"`, `"none"`, "null")))
	}
	switch g.IntN(10) {
	case 0:
		fields = append(fields, field("add_generation_prompt", "false"))
	case 1, 2:
		fields = append(fields, field("add_generation_prompt", "false"), field("continue_final_message", "true"))
	}
	if g.chance(10) {
		fields = append(fields, field("documents", `[{"title": "T", "text": `+Quote(g.Text())+`}]`))
	}
	return g.obj(fields...)
}

// TestRequests makes the prompts of random requests with each real template, and compares
// them with those that vLLM's rules give in Python.
func TestRequests(t *testing.T) {
	j := startJudge(t)
	names, source := templates(t)
	n := envInt("KVATLAS_CHAT_CASES", 2000) / 4
	s := seed(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			if _, err := jinja.Compile(source[name]); err != nil {
				t.Skipf("TestRealTemplates says why: %v", err)
			}
			g := NewGen(s)
			g.API = true
			models := map[string]*chat.Model{}
			bad, texts, refused := 0, 0, 0
			for i := range n {
				defaults := pick(g, "{}", "{}", `{"enable_thinking": false}`, `{"thinking": true, "reasoning_effort": "low"}`)
				tokens := pick(g, `{"bos_token": "<s>", "eos_token": "</s>"}`, `{"eos_token": "</s>"}`)
				body := g.Body()
				want, err := j.Request(source[name], body, defaults, tokens)
				if err != nil {
					t.Fatal(err)
				}
				m := models[defaults+tokens]
				if m == nil {
					if m, err = model(source[name], defaults, tokens); err != nil {
						t.Fatal(err)
					}
					models[defaults+tokens] = m
				}
				p, err := m.Prompt(context.Background(), body, nil)
				got := string(p.Text)
				if err != nil && (strings.Contains(err.Error(), "takes contents as text") || strings.Contains(err.Error(), "thinking in chat_template_kwargs") ||
					strings.Contains(err.Error(), "depends on the engine's version")) {
					refused++
					continue
				}
				if want.Err == "" {
					texts++
				}
				if d := differs(got, err, want); d != "" {
					if bad++; bad <= 3 {
						t.Errorf("case %d: %s\nbody %.3000s", i, d, body)
					}
				}
			}
			t.Logf("%d cases, %d with a text, %d refused, %d differ", n, texts, refused, bad)
		})
	}
}

func model(source, defaults, tokens string) (*chat.Model, error) {
	d, err := jinja.ParseJSON(defaults)
	if err != nil {
		return nil, err
	}
	tok, err := jinja.ParseJSON(tokens)
	if err != nil {
		return nil, err
	}
	cfg := chat.Config{Template: source, Kwargs: d, Tokens: map[string]jinja.Value{}, Now: func() time.Time { return clock }}
	td, _ := tok.AsDict()
	for i := range td.Len() {
		k, v := td.At(i)
		name, _ := k.AsString()
		cfg.Tokens[name] = v
	}
	return chat.New(cfg)
}
