package chattest

import (
	"errors"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// TestRandomTemplates compares random expressions and templates with the judge.
func TestRandomTemplates(t *testing.T) {
	j := startJudge(t)
	n := 25 * envInt("KVATLAS_CHAT_CASES", 2000)
	s := seed(t)
	for _, kind := range []string{"expressions", "statements"} {
		t.Run(kind, func(t *testing.T) {
			g := NewGen(s)
			bad, texts := 0, 0
			refused := map[string]int{}
			for i := range n {
				var src string
				if kind == "expressions" {
					src = "{% set ns = namespace(v=1) %}{{ " + g.expr(1+g.IntN(4)) + " }}"
				} else {
					src = g.Template()
				}
				want, err := j.Once(src, oneLine)
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(want.Text, " at 0x") || strings.HasPrefix(want.Err, "Slow") || strings.Contains(want.Err, "int_max_str") {
					continue // an address, which nobody can know
				}
				if want.Err == "" {
					texts++
				}
				tpl, err := jinja.Compile(src)
				got := ""
				if err == nil {
					got, err = ours(tpl, oneLine)
				}
				var no *jinja.UnsupportedError
				if errors.As(err, &no) {
					refused[no.What]++
					continue
				}
				if d := differs(got, err, want); d != "" {
					if bad++; bad <= 25 {
						t.Errorf("case %d: %s\n%s", i, d, src)
					}
				}
			}
			t.Logf("%d cases, %d with a text, %d differ, refused: %v", n, texts, bad, refused)
		})
	}
}
