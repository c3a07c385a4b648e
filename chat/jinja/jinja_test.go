package jinja

import (
	"context"
	"errors"
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

// Jinja computes a slice of what it knows beforehand by other rules, which we have not: what would be wrong is refused.
func TestSlicesOfConstants(t *testing.T) {
	for src, refused := range map[string]bool{
		"{{ 1[1:] }}":              true,
		"{{ ((1, 2).0)[1:] }}":     true,
		"{{ (1, 2)[0][1:] }}":      true,
		"{{ {'k': [1]}.k.0[1:] }}": true,
		"{{ n[1:] }}":              false,
		"{{ d.a[1:] }}":            false,
		"{{ d['a'][1:] }}":         false,
		"{{ d.keys()[1:] }}":       false,
	} {
		_, err := render(t, src, `{"n": 1, "d": {"a": 1}}`)
		if no := (*UnsupportedError)(nil); err == nil || errors.As(err, &no) != refused {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// Marked text has methods and rules of its own: what is given to it is escaped, be it a str or not. "" is an error.
func TestMarkedText(t *testing.T) {
	const refused = "refused"
	for src, want := range map[string]string{
		"{{ ('-'|e).join([1, none]) }}":     refused,
		"{{ ('-'|e).join(['a', 'b']) }}":    refused,
		"{{ ('-'|e).join(1) }}":             "",
		"{{ '-'.join(['a'|e, 1]) }}":        "",
		"{{ [('a'|e).ljust(3, 5)] }}":       "[Markup('a55')]",
		"{{ [('a'|e).center(3, '*')] }}":    "[Markup('*a*')]",
		"{{ ('a'|e).rjust(3, '<') }}":       "",
		"{{ 'a'.rjust(3, '<') }}":           "<<a",
		"{{ 'a'.rjust(3, 5) }}":             "",
		"{{ ('a'|e).striptags() }}":         refused,
		"{{ ('a'|e)['unescape'] }}":         refused,
		"{{ ('a'|e)|attr('escape') }}":      refused,
		"{{ 'a'.striptags is defined }}":    "False",
		"{{ ['ab'|e|last, 'ab'|last] }}":    "[Markup('b'), 'b']",
		"{{ ['ab'|e|first, ('ab'|e)[0]] }}": "['a', Markup('a')]",
	} {
		got, err := render(t, src, "{}")
		if no := (*UnsupportedError)(nil); errors.As(err, &no) {
			got = refused
		} else if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%s: %q, %v; want %q", src, got, err, want)
		}
	}
}
