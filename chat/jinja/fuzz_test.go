package jinja

import (
	"context"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// fuzzLimits are small, so that a hostile template shows how well they hold.
var fuzzLimits = Limits{Steps: 200_000, Output: 1 << 20, Memory: 8 << 20, Depth: 50}

var hostile = []string{
	"{% for a in range(99999) %}{% for b in range(99999) %}{{ a * b }}{% endfor %}{% endfor %}",
	"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}",
	"{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
	"{{ 'x' * 99999999999 }}{{ [0] * 999999999 }}",
	"{{ 9 ** 9 ** 9 ** 9 }}",
	"{% set ns = namespace(n=7) %}{% for i in range(99999) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
	"{% set ns = namespace(l=[]) %}{% for i in range(9999) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}{{ ns.l == ns.l }}{{ ns.l|tojson }}",
	"{{ '%999999999d' % 1 }}{{ '{:>999999999}'.format('x') }}{{ 'x'.center(999999999) }}{{ 'a'|indent(999999999) }}",
	"{{ ('x,' * 99999).split(',')|sort|unique|list|length }}",
	"{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
	"{{ 'aaaaaaaaaaaaaaaa'.replace('', 'b' * 99999).replace('', 'c' * 99999) }}",
	"{{ " + repeat200("(") + "1" + repeat200(")") + " }}",
	"{% if a %}" + repeat200("{% if a %}") + repeat200("{% endif %}") + "{% endif %}",
	"{{ 1" + repeat200(" - 1") + repeat200("|abs") + repeat200(".a") + repeat200("[0]") + repeat200("()") + " }}",
	"{% raw %}", "{#", "{{ '", "{% set x %}", "{{ a.b.c[1:2](x, *y, **z)|f(g)|h is i j }}",
	"{% for k, v in d|dictsort %}{{ loop.changed(k) }}{{ loop.cycle(1, 2) }}{{ k|tojson }}{% else %}{% endfor %}",
	"{% call(x) m(1) %}{{ x }}{% endcall %}{% filter upper %}a{% endfilter %}{% generation %}{{ m }}{% endgeneration %}",
	"{{ l[::-1][1:2]|map('upper')|join }}{{ strftime_now('%Y') }}{{ raise_exception('x') }}",
}

func repeat200(s string) string {
	out := ""
	for range 200 {
		out += s
	}
	return out
}

// FuzzRender compiles and renders what it is given: errors, within the limits, in bounded time.
func FuzzRender(f *testing.F) {
	for _, h := range hostile {
		f.Add(h, `{"a": 1, "l": [1, "x", null], "d": {"b": 1, "a": 2.5}}`)
	}
	f.Fuzz(func(t *testing.T, src, vars string) {
		tpl, err := Compile(src)
		if err != nil {
			return
		}
		tpl.ReadsParts()
		v, err := ParseJSON(vars)
		if err != nil {
			v = (&Dict{}).Value()
		}
		d, ok := v.AsDict()
		if !ok {
			d = &Dict{}
		}
		var out []byte
		waittest.Ends(t, "it is rendered", func() {
			out, _ = tpl.Render(context.Background(), d.Get, Options{Limits: fuzzLimits}) // any error is a good answer
		})
		if len(out) > fuzzLimits.Output {
			t.Fatalf("%d bytes of output", len(out))
		}
	})
}

// TestHostile renders what is made to take for ever, to the end that its limit sets.
func TestHostile(t *testing.T) {
	for _, src := range hostile {
		tpl, err := Compile(src)
		if err != nil {
			continue
		}
		waittest.Ends(t, src, func() {
			if out, err := tpl.Render(context.Background(), func(string) Value { return Value{} }, Options{Limits: fuzzLimits}); err == nil && len(out) > 1000 {
				t.Errorf("%.80s: %d bytes and no error", src, len(out))
			}
		})
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	tpl, err := Compile(hostile[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tpl.Render(ctx, func(string) Value { return Value{} }, Options{}); err != context.Canceled {
		t.Errorf("%v, though nobody waits", err)
	}
}

// FuzzParseJSON reads what it is given: what is read can be written, and read again as the same.
func FuzzParseJSON(f *testing.F) {
	for _, s := range []string{`{"a": [1, 2.5, -0.0, 1e400, 12345678901234567890, NaN, "\ud800\ud83d\ude00x"], "a": null}`, `"\u0000"`, "[", `{"a"`, "-", "1e", "\"\xff\""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		v, err := ParseJSON(text)
		if err != nil {
			return
		}
		b, err := AppendJSON(nil, v)
		if err != nil {
			t.Fatalf("%q was read and cannot be written: %v", text, err)
		}
		if !validText(string(b)) {
			t.Fatalf("%q was written as what is no text: %q", text, b)
		}
		st := plainJSON
		st.ascii = true
		if b, err = appendJSON(nil, v, &st, 0); err != nil {
			t.Fatal(err)
		}
		again, err := ParseJSON(string(b))
		if err != nil {
			t.Fatalf("%q, of %q, is not read: %v", b, text, err)
		}
		c, err := appendJSON(nil, again, &st, 0)
		if err != nil || string(c) != string(b) {
			t.Fatalf("%q became %q: %v", b, c, err)
		}
	})
}
