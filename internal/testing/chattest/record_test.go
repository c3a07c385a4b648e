package chattest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// features are templates of our own, each for something that chat templates use.
var features = []string{
	"{% for m in ms %}\n  {{ m.role }}: {{ m.content or '-' }}{% if not loop.last %},{% endif %}\n{% endfor %}\nend\n",
	"{%- set ns = namespace(n=0) -%}{%- for m in ms if m.role == 'user' -%}{%- set ns.n = ns.n + loop.index -%}{%- endfor -%}{{ ns.n }}",
	"{% macro call(name, args={}, **kw) %}x{% endmacro %}",
	"{% macro show(x, deep=false) -%}{{ x }}{% if deep %}{{ show(x ~ '!', false) }}{% endif %}{{ kwargs }}{{ varargs }}{%- endmacro %}{{ show('a', true, 3, k=4) }}",
	"{% macro wrap() %}<{{ caller('in') }}>{% endmacro %}{% call(v) wrap() %}{{ v }}{{ s }}{% endcall %}",
	"{% set x %}  a {{ n }} {% endset %}[{{ x }}][{{ x|trim }}]{% filter upper %}{{ s }}{% endfilter %}",
	"{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 4 %}{% break %}{% endif %}{{ i }}{% else %}none{% endfor %}",
	"{% for t in [[1, [2, [3]]], 4] recursive %}({{ loop.depth }}{{ loop(t) if t is not number else t }}){% endfor %}",
	"{% generation %}{{ s }}{% endgeneration %}{{ d|tojson }}{{ d|tojson(indent=2) }}{{ [1.0, 1e20, 1e-7, big, none, true]|tojson }}",
	"{{ d }}{{ l }}{{ (1,) }}{{ 'it\\'s \"x\" é \\x00\\n' }}{{ ['it\\'s', 'é\\u2028'] }}{{ 7 // -2 }}{{ -7 % 3 }}{{ 2 ** 70 }}{{ 1 / 3 }}",
	"{{ s[::-1] }}{{ s[1:-1:2] }}{{ l[-1] }}{{ emoji[1] }}{{ emoji|length }}{{ d['items'] }}{{ d.items() }}{{ d.get('zz', 'D') }}{{ nope.x is defined }}",
	"{{ nope is defined }}{{ nope }}{{ nope|default('D') }}{{ d.nope is none }}{{ (1 if z) }}{{ 'a' in d }}{{ 'z' not in s }}{{ n is sameas none }}",
	"{{ t.split() }}{{ 'a,b,c'.split(',', 1) }}{{ ' x\\n'.strip() }}{{ 'xxaxx'.strip('x') }}{{ 'a-b'.partition('-') }}{{ s.startswith(('H', 'x')) }}",
	"{{ ms|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}{{ words|sort|join }}{{ d|dictsort(reverse=true) }}",
	"{{ '%05.2f|%s|%-4d|%x' % (f, none, n, 255) }}{{ '{0:>5}|{1}|{k!r}'.format(n, s, k='v') }}{{ 'a %s'|format(l) }}",
	"{{ strftime_now('%d %b %Y %H:%M %j %A %B %y %p %I') }}",
	"{% if n > 5 %}{{ raise_exception('too many: ' ~ n) }}{% endif %}",
	"{% for k, v in d.items() %}{% set s = k %}{{ s }}={{ v }};{% endfor %}{{ s }}",
	"{% for i in [1] %}{{ n }}{% endfor %}{% set n = 5 %}{{ n }}",
	"{% if z %}{% set s = 'new' %}{% endif %}{{ s }}{% with s = 1, n = s %}{{ s }}{{ n }}{% endwith %}{{ n }}",
	"  {%+ if true %}  {% endif %}\n  {{- s -}}  \n{# comment #}\n\n{% raw %}{{ x }}\n{% endraw %}\nx\n\n",
	"{{ l.append(1) }}", "{{ d.pop('a') }}", "{{ d.pop }}|{{ l.append }}|{{ s.__class__ }}", "{{ none + 1 }}", "{{ nope.a.b }}", "{% set loop = 1 %}{% for i in l %}{{ loop.index }}{% endfor %}",
	"{{ s|nope }}", "{% if z %}{{ s|nope }}{% endif %}ok", "{{ '<'|e }}{{ '<'|safe ~ '<' }}{{ '<'|safe + '<' }}", "{{ {1: 'a', none: 2, true: 3, 2.0: 4} }}{{ {1: 2}[1.0] }}",
	"{{ 'ß ΑΣ İ ﬁ'.upper() }}{{ 'ΑΣ ΑΣΑ İ'.lower() }}{{ 'ǆ straße o\\'neil'.title() }}{{ 'hello-world (x)'|title }}{{ 'éA'|capitalize }}",
	"{{ '12'|int + 1 }}{{ '3.9'|int }}{{ 'x'|int(7) }}{{ 2.5|round }}{{ 3.14159|round(2) }}{{ -3|abs }}{{ [1, 2]|sum }}{{ words|max }}{{ words|min }}",
	"{{ 'a\\nb\\n\\nc'|indent(2) }}|{{ 'a\\nb'|indent('>', first=true) }}{{ l|first }}{{ l|last }}{{ l|reverse|list }}{{ [1, 1, 2]|unique|list }}{{ s|replace('l', 'L', 1) }}",
}

// TestRecord writes the vectors that chat/jinja's own tests go by, where it is asked to.
func TestRecord(t *testing.T) {
	path := os.Getenv("KVATLAS_CHAT_RECORD")
	if path == "" {
		t.Skip("KVATLAS_CHAT_RECORD=file records")
	}
	j := startJudge(t)
	g := NewGen(seed(t))
	sources := append([]string(nil), features...)
	for range 260 {
		sources = append(sources, g.Template(), "{% set ns = namespace(v=1) %}{{ "+g.expr(1+g.IntN(4))+" }}")
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n", oneLine)
	errs := 0
	for i, src := range sources {
		want, err := j.Once(src, oneLine)
		if err != nil {
			t.Fatal(err)
		}
		if want.Err != "" && i >= len(features) {
			if errs++; errs > 60 {
				continue
			}
		}
		if len(src)+len(want.Text) > 1200 || strings.Contains(want.Text, " at 0x") {
			continue
		}
		if tpl, err := jinja.Compile(src); err == nil {
			if _, err := ours(tpl, oneLine); refusal(err) {
				continue
			}
		} else if refusal(err) {
			continue
		}
		line := g.obj(field("src", Quote(src)), field("text", Quote(want.Text)))
		if want.Err != "" {
			line = g.obj(field("src", Quote(src)), field("error", Quote(want.Err)))
		}
		out.WriteString(line + "\n")
	}
	// The one surrogate that the variables have is no UTF-8 by itself.
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(out.String(), "\xed\xa0\x80", `\ud800`)), 0o644); err != nil {
		t.Fatal(err)
	}
}
