package jinja

import (
	"context"
	"testing"
)

func render(t *testing.T, src, vars string) (string, error) {
	t.Helper()
	tpl, err := Compile(src)
	if err != nil {
		return "", err
	}
	v, err := ParseJSON(vars)
	if err != nil {
		t.Fatal(err)
	}
	d, _ := v.AsDict()
	out, err := tpl.Render(context.Background(), d.Get, Options{})
	return string(out), err
}

func TestBasics(t *testing.T) {
	for _, c := range []struct{ src, vars, want string }{
		{"a{{ x }}b", `{"x": 1.50}`, "a1.5b"},
		{"{% for m in ms %}\n  {{ m.role }}{{ loop.index }}\n{% endfor %}\n", `{"ms":[{"role":"u"},{"role":"a"}]}`, "  u1\n  a2\n"},
		{"{{ 'a' + 'b' + x|string }}{% set ns = namespace(a=1) %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", `{"x":null}`, "abNone4"},
		{"{% macro f(a, b=2) %}{{ a }}-{{ b }}{% endmacro %}{{ f(1) ~ f(b=3, a='x') }}", "{}", "1-2x-3"},
		{"{{ x|tojson }}{{ x }}", `{"x":{"b":[1,2.0,true,null,"é\n"],"a":{}}}`, `{"b": [1, 2.0, true, null, "é\n"], "a": {}}{'b': [1, 2.0, True, None, 'é\n'], 'a': {}}`},
	} {
		got, err := render(t, c.src, c.vars)
		if err != nil || got != c.want {
			t.Errorf("%s: %q, %v; want %q", c.src, got, err, c.want)
		}
	}
}
