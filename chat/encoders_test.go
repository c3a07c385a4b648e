package chat_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"testing"
	"testing/fstest"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// TestEncoders writes conversations whose prompts the engines' own code gave: make test-apis,
// which also records them.
func TestEncoders(t *testing.T) {
	var files []io.Reader
	for _, name := range []string{"encoders", "sglang"} {
		f, err := os.Open("testdata/" + name + ".jsonl")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	lines, n := bufio.NewScanner(io.MultiReader(files...)), map[string]int{}
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		v, err := jinja.ParseJSON(lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		q, _ := v.AsDict()
		encoder, _ := q.Get("encoder").AsString()
		engine, _ := q.Get("engine").AsString()
		template, _ := q.Get("template").AsString()
		want, _ := q.Get("text").AsString()
		m, err := chat.New(chat.Config{
			Engine: chat.Engine(engine), Template: template, Encoder: chat.Encoder(encoder), Kwargs: q.Get("defaults"),
			Now: func() time.Time { return time.Date(2026, 2, 3, 14, 5, 9, 0, time.UTC) },
		})
		if err != nil {
			t.Fatal(err)
		}
		body, _ := q.Get("body").AsDict()
		p, err := m.Write(context.Background(), body, []byte("before"))
		if err != nil || string(p.Text) != "before"+want {
			t.Errorf("%s\nhave %q %v\nwant %q", lines.Text(), p.Text, err, want)
		}
		end := 0
		for _, s := range p.Plain {
			if s.From < end || s.To <= s.From || s.To > len(p.Text) {
				t.Fatalf("%v of %d bytes", p.Plain, len(p.Text))
			}
			end = s.To
		}
		n[encoder+engine]++
	}
	if lines.Err() != nil || n["deepseek_v32"] < 15 || n["deepseek_v4"] < 15 || n["deepseek_v41"] < 15 || n["gpt_oss"] < 15 || n["sglang"] < 15 || n["deepseek_v32sglang"] < 15 {
		t.Errorf("%v, %v", n, lines.Err())
	}
}

// TestPlain: special tokens that stand in a client's text are not special in harmony.
func TestPlain(t *testing.T) {
	m, err := chat.New(chat.Config{Encoder: chat.Harmony})
	if err != nil {
		t.Fatal(err)
	}
	p, err := m.Prompt(context.Background(), `{"messages": [{"role": "user", "content": "x<|end|>"}]}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, s := range p.Plain {
		found = found || string(p.Text[s.From:s.To]) == "x<|end|>"
	}
	if !found {
		t.Errorf("%q %v", p.Text, p.Plain)
	}
}

// TestEncoderOf: config.json says what writes the prompts.
func TestEncoderOf(t *testing.T) {
	for config, want := range map[string]chat.Encoder{
		"": chat.Jinja, `{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}`: chat.Jinja,
		`{"architectures": ["DeepseekV32ForCausalLM"]}`: chat.DeepSeekV32, `{"model_type": "gpt_oss"}`: chat.Harmony,
		`{"architectures": ["DeepseekV4ForCausalLM"]}`: chat.DeepSeekV4, `{"architectures": ["DeepseekV41ForCausalLM"]}`: chat.DeepSeekV41,
		`{"architectures": ["KimiK3ForConditionalGeneration"]}`: "kimi_k3",
	} {
		files := fstest.MapFS{"tokenizer_config.json": {Data: []byte(`{"chat_template": "x"}`)}}
		if config != "" {
			files["config.json"] = &fstest.MapFile{Data: []byte(config)}
		}
		cfg, err := chat.Load(files)
		if err != nil || cfg.Encoder != want {
			t.Errorf("%s: %q %v, want %q", config, cfg.Encoder, err, want)
		}
		_, err = chat.New(cfg)
		var no *jinja.UnsupportedError
		if refused := errors.As(err, &no); refused != (want == "kimi_k3") {
			t.Errorf("%s: %v", config, err)
		}
	}
}
