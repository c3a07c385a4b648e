package chattest

import (
	"fmt"
	"strings"
)

// Expressions and templates at random: what real templates do not do is compared too.

// fuzzVars are the variables that random expressions use.
const fuzzVars = `{"s": "Hello, Wörld <b>", "t": " a\tb\n c ", "n": 7, "f": 2.5, "z": 0, "no": null, "yes": true, "neg": -3,
 "l": [3, 1, 2, "b", "A"], "nums": [3, 1.5, -2, true], "words": ["bb", "A", "a", "Ccc"], "e": [], "d": {"b": 1, "a": [1, 2], "items": "x", "é": null},
 "ms": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null, "n": 2}, {"role": "user", "content": "Y", "n": 1}],
 "big": 123456789012345678901, "emoji": "a🙂b\ud800c", "tiny": 1e-7, "huge": 1e22}`

var oneLine = strings.ReplaceAll(fuzzVars, "\n", " ")

func (g Gen) atom() string {
	return pick(g, "s", "t", "n", "f", "z", "no", "yes", "neg", "l", "nums", "words", "e", "d", "ms", "big", "emoji", "tiny", "huge", "nope",
		"1", "0", "-1", "2.5", "1e3", "'x'", "'a b'", "''", "'é'", "true", "none", "[]", "[1, 2]", "{}", "{'k': 1}", "(1, 2)", "range(4)", "d.a", "ms[0]",
		"loop", "ns.v", "'%s-%d'", "'{}'", "'a,b,,c'", "'12'", "' 3.7 '", "'ab' 'cd'", "'ΑΣ'", "'ß'", "3 | string", "words[0]", "ms[1].content")
}

func (g Gen) expr(depth int) string {
	if depth <= 0 {
		return g.atom()
	}
	x := func() string { return g.expr(depth - 1 - g.IntN(2)) }
	switch g.IntN(14) {
	case 0, 1:
		return fmt.Sprintf("%s %s %s", x(), pick(g, "+", "-", "*", "/", "//", "%", "~", "~", "+"), x())
	case 2:
		return fmt.Sprintf("%s %s %s", x(), pick(g, "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or"), x())
	case 3:
		return fmt.Sprintf("(%s if %s else %s)", x(), x(), x())
	case 4:
		return fmt.Sprintf("%s is %s%s", x(), pick(g, "", "", "not "), pick(g, "defined", "undefined", "none", "string", "number", "mapping", "iterable",
			"sequence", "integer", "float", "boolean", "true", "false", "odd", "even", "divisibleby 3", "lower", "upper", "callable", "in [1, 2, 'x']",
			"eq 1", "gt 1", "escaped", "sameas none", "filter", "test"))
	case 5, 6, 7:
		return fmt.Sprintf("(%s)|%s", x(), g.filter(x))
	case 8, 9:
		return fmt.Sprintf("(%s).%s", x(), g.method(x))
	case 10:
		return fmt.Sprintf("(%s)[%s]", x(), pick(g, "0", "-1", "1:", ":-1", "::-1", "1:3", "'a'", "'items'", "'role'", "::2", "-2:", "5", x(), x()+":"+x()))
	case 11:
		return fmt.Sprintf("%s(%s)", pick(g, "not ", "-", "+", ""), x())
	case 12:
		return pick(g, "["+x()+", "+x()+"]", "("+x()+", "+x()+")", "{'p': "+x()+", "+pick(g, "'q'", "1", "none", "2.0")+": "+x()+"}", "dict(a="+x()+")")
	}
	return x() + pick(g, ".a", ".role", ".items", "['a']", ".0", ".content", ".nope", ".upper", ".__class__")
}

func (g Gen) filter(x func() string) string {
	return pick(g, "string", "length", "upper", "lower", "trim", "title", "capitalize", "list", "first", "last", "reverse|list", "sort", "unique|list",
		"tojson", "tojson(indent=2)", "tojson(ensure_ascii=true)", "tojson(sort_keys=true)", "tojson(separators=(',', ':'))", "int", "float", "abs", "sum",
		"min", "max", "round", "round(1)", "join(', ')", "join('-', attribute='role')", "default('D')", "default('D', true)", "replace('a', 'b')",
		"replace('', '-')", "replace('l', 'L', 1)", "items|list", "dictsort", "dictsort(by='value')", "dictsort(reverse=true)", "map('upper')|list",
		"map(attribute='role')|list", "map(attribute='n', default=0)|list", "map('string')|join", "select|list", "reject('none')|list",
		"select('string')|list", "select('gt', 1)|list", "selectattr('role', 'equalto', 'user')|list", "selectattr('n')|list",
		"rejectattr('n', 'defined')|list", "selectattr('n', 'defined')|map(attribute='n')|sum", "sort(reverse=true)", "sort(attribute='role')",
		"sort(case_sensitive=true)", "batch(2)|list", "batch(2, 'f')|list", "slice(2)|list", "slice(2, 'f')|list", "indent", "indent(2, true)", "indent('> ')",
		"center(12)", "truncate(9)", "truncate(9, true, '!')", "format(1, 2)", "format("+x()+")", "attr('upper')", "attr('a')", "safe", "e", "count", "d('x')",
		"trim('Hb')", "safe|upper", "nope", "list|length", "default("+x()+")", "join("+x()+")", "map('length')|list", "int(default=9)", "int(base=16)")
}

func (g Gen) method(x func() string) string {
	return pick(g, "upper()", "lower()", "strip()", "lstrip()", "rstrip('b')", "strip(' <>b')", "title()", "capitalize()", "swapcase()", "split()",
		"split(',')", "split(',', 1)", "split(maxsplit=1)", "rsplit(',', 1)", "rsplit(None, 1)", "splitlines()", "splitlines(true)", "partition(',')",
		"rpartition('b')", "startswith('H')", "startswith(('a', 'H'))", "endswith('>')", "startswith('e', 1)", "replace('l', 'L')", "replace('l', 'L', 1)",
		"replace('', '.')", "find('l')", "rfind('l')", "find('zz')", "index('a')", "count('l')", "count('')", "join(words)", "join(l)", "join(['a', 'b'])",
		"isdigit()", "isalpha()", "isalnum()", "isspace()", "islower()", "isupper()", "istitle()", "isnumeric()", "isdecimal()", "isascii()", "isprintable()",
		"zfill(12)", "center(20, '*')", "ljust(9)", "rjust(9)", "rjust(9, '<')", "rjust(9, 5)", "striptags()", "removeprefix('He')", "removesuffix('>')", "format(1, 'x')", "format(a=1)", "get('a')",
		"get('zz', 5)", "items()|list", "keys()|list", "values()|list", "items()", "keys()", "copy()", "count(1)", "index(1)", "append(1)", "pop()",
		"update({})", "get("+x()+")", "startswith("+x()+")", "split("+x()+")", "nope()", "fromkeys([1])", "a()")
}

// stmt is a statement, in which variables a and b and the namespace ns may be set.
func (g Gen) stmt(depth int) string {
	if depth <= 0 {
		return pick(g, "text ", "\n", "  \n", "{{ a }}", "{{ b }}", "{{- a -}}", " {{ ns.v }} ", "{# c #}\n", "{% raw %}{{ x }}{% endraw %}", "{{ n }}\n")
	}
	body := func() string {
		var b strings.Builder
		for range g.IntN(4) {
			b.WriteString(g.stmt(depth - 1 - g.IntN(2)))
		}
		return b.String()
	}
	x := func() string { return g.expr(g.IntN(3)) }
	o, c := pick(g, "{%", "{%", "{%-", "{%+", "\n  {%"), pick(g, "%}", "%}", "-%}", "+%}", "%}\n")
	tag := func(s string) string { return o + " " + s + " " + c }
	name := pick(g, "a", "b", "n", "caller", "m")
	switch g.IntN(15) {
	case 0, 1:
		return "{{ " + x() + " }}"
	case 2, 3:
		return tag("set " + name + " = " + x())
	case 4:
		return tag("set ns.v = " + x())
	case 5:
		s := tag("if "+x()) + body()
		if g.chance(30) {
			s += tag("elif "+x()) + body()
		}
		if g.chance(50) {
			s += tag("else") + body()
		}
		return s + tag("endif")
	case 6, 7:
		iter := pick(g, "l", "ms", "range(3)", "words", "d", "d.items()", "s", "e", "nope", "[1, 2, 3]|select('odd')", x())
		target := pick(g, "i", "a", "i", "i, j")
		cond := pick(g, "", "", "", " if "+pick(g, "i", "loop.index", "ns.v != i", x()))
		s := tag("for " + target + " in " + iter + cond)
		s += pick(g, "", "", "{{ loop.index }}", "{{ loop.last }}", "{{ loop.previtem }}", "{{ loop.nextitem }}", "{{ loop.length }}", "{{ loop.revindex0 }}",
			"{{ loop.cycle('x', 'y') }}", "{{ loop.changed(i) }}", "{{ i }}", "{{ loop }}", "{{ loop.depth }}")
		s += body()
		if g.chance(15) {
			s += tag("if "+x()) + tag(pick(g, "break", "continue")) + tag("endif") + body()
		}
		if g.chance(25) {
			s += tag("else") + body()
		}
		return s + tag("endfor")
	case 8:
		params := pick(g, "", "x", "x, y=1", "x='d'", "a", "x, caller=none")
		return tag("macro m("+params+")") + pick(g, "{{ x }}", "{{ varargs }}", "{{ kwargs }}", "{{ caller() }}", "{{ caller('q') }}", "", "{{ a }}") + body() + tag("endmacro")
	case 9:
		return "{{ " + pick(g, "m", "m()", "m("+x()+")", "m(x="+x()+")", "m(1, 2, 3)", "m(1, z=2)", "m.name", "m.arguments") + " }}"
	case 10:
		return tag("call"+pick(g, "", "", "(v)", "(v='w')")+" m("+pick(g, "", "1", "x=2")+")") + pick(g, "{{ v }}", "") + body() + tag("endcall")
	case 11:
		return tag("set "+name+pick(g, "", "", "|upper", "|trim|length")) + body() + tag("endset")
	case 12:
		return tag("with a = "+x()+pick(g, "", ", b = a")) + body() + tag("endwith")
	case 13:
		return tag("filter "+pick(g, "upper", "trim", "replace('a', 'b')|lower", "length")) + body() + tag("endfilter")
	}
	return tag("generation") + body() + tag("endgeneration")
}

// Template is a random template.
func (g Gen) Template() string {
	var b strings.Builder
	b.WriteString("{% set ns = namespace(v=1) %}")
	for range 1 + g.IntN(5) {
		b.WriteString(g.stmt(1 + g.IntN(3)))
	}
	return b.String()
}
