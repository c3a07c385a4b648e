package chattest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// clock is what the judge's clock shows.
var clock = time.Date(2026, 2, 3, 14, 5, 9, 0, time.UTC)

// startJudge starts the judge that run.sh prepared, or skips the test.
func startJudge(t *testing.T) *Judge {
	t.Helper()
	python := os.Getenv("KVATLAS_CHAT_PYTHON")
	if python == "" {
		t.Skip("make test-chat runs this against transformers")
	}
	j, err := StartJudge(python, "judge.py")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() }) // what went wrong was said by its answers
	return j
}

func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return def
}

func seed(t *testing.T) uint64 {
	s := uint64(envInt("KVATLAS_TEST_SEED", 1))
	t.Logf("KVATLAS_TEST_SEED=%d", s)
	return s
}

// templates reads the real templates that run.sh fetched, by name.
func templates(t *testing.T) (names []string, source map[string]string) {
	t.Helper()
	source = map[string]string{}
	files, err := filepath.Glob(filepath.Join(os.Getenv("KVATLAS_CHAT_TEMPLATES"), "*.jinja"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates in KVATLAS_CHAT_TEMPLATES: %v", err)
	}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(f), ".jinja")
		if only := os.Getenv("KVATLAS_CHAT_ONLY"); only != "" && !strings.Contains(name, only) {
			continue
		}
		names, source[name] = append(names, name), string(text)
	}
	sort.Strings(names)
	return names, source
}

// ours renders as the judge is asked to.
func ours(tpl *jinja.Template, vars string) (string, error) {
	v, err := jinja.ParseJSON(vars)
	if err != nil {
		return "", fmt.Errorf("the test's own variables: %w", err)
	}
	d, _ := v.AsDict()
	out, err := tpl.Render(context.Background(), d.Get, jinja.Options{Now: clock})
	return string(out), err
}

// refusal tells whether err refuses something by name.
func refusal(err error) bool {
	var no *jinja.UnsupportedError
	return errors.As(err, &no)
}

// differs says how our result differs from the verdict, or nothing.
func differs(got string, err error, want Verdict) string {
	var raised *jinja.RaisedError
	var refused *jinja.UnsupportedError
	switch {
	case errors.As(err, &refused):
		return "refused: " + err.Error()
	case err != nil && want.Err == "":
		return fmt.Sprintf("error %q; want text %.300q", err, want.Text)
	case err == nil && want.Err != "":
		return fmt.Sprintf("text %.300q; want error %q", got, want.Err)
	case err == nil && got != want.Text:
		i := 0
		for i < len(got) && i < len(want.Text) && got[i] == want.Text[i] {
			i++
		}
		from := max(0, i-60)
		return fmt.Sprintf("differs at byte %d:\n got …%.160q\nwant …%.160q", i, got[from:], want.Text[from:])
	case errors.As(err, &raised) != want.Raised:
		return fmt.Sprintf("error %q; want %q", err, want.Err)
	case raised != nil && "TemplateError: "+raised.Msg != want.Err:
		return fmt.Sprintf("raised %q; want %q", raised.Msg, want.Err)
	}
	return ""
}

// TestRealTemplates renders random conversations with each real template, here and there.
func TestRealTemplates(t *testing.T) {
	j := startJudge(t)
	names, source := templates(t)
	n := envInt("KVATLAS_CHAT_CASES", 2000)
	s := seed(t)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			tpl, err := jinja.Compile(source[name])
			if err != nil {
				v, jerr := j.Template(source[name], "{}")
				if jerr != nil {
					t.Fatal(jerr)
				}
				if strings.Contains(v.Err, "TemplateSyntaxError") || strings.Contains(v.Err, "TemplateAssertionError") {
					t.Skipf("the judge does not compile it either: %s; ours: %v", v.Err, err)
				}
				t.Fatal(err)
			}
			g := NewGen(s)
			bad, texts := 0, 0
			for i := range n {
				fields := append(g.Options(),
					field("messages", g.Messages()), field("tools", g.Tools()),
					field("add_generation_prompt", pick(g, "true", "true", "false")), field("bos_token", `"<s>"`), field("eos_token", `"</s>"`))
				if g.chance(90) {
					fields = append(fields, field("documents", "null"))
				}
				vars := g.obj(fields...)
				want, err := j.Template(source[name], vars)
				if err != nil {
					t.Fatal(err)
				}
				if want.Err == "" {
					texts++
				}
				got, err := ours(tpl, vars)
				if d := differs(got, err, want); d != "" {
					if bad++; bad <= 3 {
						t.Errorf("case %d: %s\nvars %.3000s", i, d, vars)
					}
				}
			}
			t.Logf("%d cases, %d with a text, %d differ", n, texts, bad)
		})
	}
}
