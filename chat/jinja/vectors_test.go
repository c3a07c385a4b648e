package jinja

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestVectors renders what jinja2 3.1.6 rendered as transformers 5.23 sets it up: templates
// that use each feature, and random ones. The first line of the file has the variables.
// KVATLAS_CHAT_RECORD=file make test-chat RUN=TestRecord writes it.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/vectors.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	vars, err := ParseJSON(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	d, _ := vars.AsDict()
	texts := 0
	for _, line := range lines[1:] {
		v, err := ParseJSON(line)
		if err != nil {
			t.Fatal(err)
		}
		c, _ := v.AsDict()
		src, _ := c.Get("src").AsString()
		want, ok := c.Get("text").AsString()
		var got []byte
		tpl, err := Compile(src)
		if err == nil {
			got, err = tpl.Render(context.Background(), d.Get, Options{Now: time.Date(2026, 2, 3, 14, 5, 9, 0, time.UTC)})
		}
		if ok {
			texts++
		}
		if ok && (err != nil || string(got) != want) || !ok && err == nil {
			t.Errorf("%s\n got %q, %v\nwant %q", src, got, err, want)
		}
	}
	if texts < 150 {
		t.Errorf("only %d vectors with a text", texts)
	}
}

// TestConcurrent renders one template in many goroutines: under the race detector it shows
// that renders share nothing that changes.
func TestConcurrent(t *testing.T) {
	tpl, err := Compile("{% macro m(x) %}{{ x|upper }}{% endmacro %}{% for a in l|sort %}{{ m(a) }}{{ loop.last }}{% endfor %}{% filter trim %} {{ d|tojson }} {% endfilter %}")
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(`{"l": ["b", "a"], "d": {"k": [1, 2]}}`)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := v.AsDict()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				got, err := tpl.Render(context.Background(), d.Get, Options{})
				if err != nil || string(got) != `AFalseBTrue{"k": [1, 2]}` {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
}

// TestContentFormat is vLLM's rule of what contents a template is given.
func TestContentFormat(t *testing.T) {
	for src, want := range map[string]bool{
		"{% for m in messages %}{{ m.content }}{% endfor %}":                                                                   false,
		"{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}":                                  true,
		"{% set l = messages[1:] %}{% for m in l %}{% for c in m['content']|list %}{{ c }}{% endfor %}{% endfor %}":            true,
		"{% for m in messages %}{% set x = m.content %}{% for c in x %}{{ c }}{% endfor %}{% endfor %}":                        false,
		"{% for a, b in messages %}{% for c in a.content %}{{ c }}{% endfor %}{% endfor %}":                                    false,
		"{% for m in other %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}":                                          false,
		"{% set a = messages %}{% set b = a %}{% set a = b %}{% for m in b %}{% for c in m.content %}{% endfor %}{% endfor %}": true,
	} {
		tpl, err := Compile(src)
		if err != nil {
			t.Fatal(err)
		}
		if got := tpl.ReadsParts(); got != want {
			t.Errorf("%s: %v", src, got)
		}
	}
}
