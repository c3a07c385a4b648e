package jinja

import (
	"strings"
)

// maxCompareDepth bounds how deep values are compared.
const maxCompareDepth = 200

// equal is a == b.
func equal(s *state, a, b Value) (bool, error) { return equalAt(s, a, b, 0) }

func equalAt(s *state, a, b Value, depth int) (bool, error) {
	if depth > maxCompareDepth {
		return false, &LimitError{"values nested too deep to be compared"}
	}
	if err := s.step(); err != nil {
		return false, err
	}
	if a.isNumber() && b.isNumber() {
		c, ok := compareNumbers(a, b)
		return ok && c == 0, nil
	}
	if a.k != b.k {
		return viewEqual(s, a, b)
	}
	switch a.k {
	case str:
		return a.s == b.s, nil
	case none, undefined:
		return true, nil
	case list, tuple:
		x, y := a.items(), b.items()
		if len(x) != len(y) {
			return false, nil
		}
		for i := range x {
			if eq, err := equalAt(s, x[i], y[i], depth+1); !eq || err != nil {
				return false, err
			}
		}
		return true, nil
	case dict:
		x, y := a.dict(), b.dict()
		if x.Len() != y.Len() {
			return false, nil
		}
		for _, e := range x.entries {
			other, err := y.lookup(e.key)
			if err != nil || other.k == missing {
				return false, err
			}
			if eq, err := equalAt(s, e.val, other, depth+1); !eq || err != nil {
				return false, err
			}
		}
		return true, nil
	case view:
		return viewEqual(s, a, b)
	case rng:
		x, y := a.o.(*pyRange), b.o.(*pyRange)
		n := x.len()
		return n == y.len() && (n == 0 || x.start == y.start && (n == 1 || x.step == y.step)), nil
	}
	return a.o == b.o, nil
}

// viewEqual compares views of dicts, which are sets.
func viewEqual(s *state, a, b Value) (bool, error) {
	if a.k != view && b.k != view {
		return false, nil
	}
	if a.k != b.k {
		return false, nil
	}
	x, y := a.o.(*dictView), b.o.(*dictView)
	if x == y {
		return true, nil
	}
	if x.what == viewValues || y.what == viewValues {
		return false, nil
	}
	if x.what == viewItems && y.what == viewItems {
		return equal(s, x.d.Value(), y.d.Value())
	}
	if x.what != y.what {
		return false, &UnsupportedError{"comparing keys with items"}
	}
	if x.d.Len() != y.d.Len() {
		return false, nil
	}
	for _, e := range x.d.entries {
		if v, err := y.d.lookup(e.key); err != nil || v.k == missing {
			return false, err
		}
	}
	return true, nil
}

// order is a < b, a <= b and so on.
func order(s *state, op string, a, b Value) (bool, error) {
	var c int
	switch {
	case a.isNumber() && b.isNumber():
		var ok bool
		if c, ok = compareNumbers(a, b); !ok {
			return false, nil
		}
	case a.k == str && b.k == str:
		c = strings.Compare(a.s, b.s)
	case a.isSeq() && a.k == b.k:
		x, y := a.items(), b.items()
		for i := range min(len(x), len(y)) {
			eq, err := equal(s, x[i], y[i])
			if err != nil {
				return false, err
			}
			if !eq {
				return order(s, op, x[i], y[i])
			}
		}
		c = len(x) - len(y)
	case a.k == undefined:
		return false, undefErr(a)
	case b.k == undefined:
		return false, undefErr(b)
	case a.k == view && b.k == view:
		return false, &UnsupportedError{"comparing views of dicts as sets"}
	default:
		return false, typeErr("'%s' not supported between instances of '%s' and '%s'", op, a.typeName(), b.typeName())
	}
	switch op {
	case "<":
		return c < 0, nil
	case "<=":
		return c <= 0, nil
	case ">":
		return c > 0, nil
	}
	return c >= 0, nil
}

// contains is x in c.
func contains(s *state, c, x Value) (bool, error) {
	switch c.k {
	case str:
		if x.k != str {
			return false, typeErr("'in <string>' requires string as left operand, not %s", x.typeName())
		}
		return strings.Contains(c.s, x.s), s.charge(len(c.s) / 64)
	case dict:
		v, err := c.dict().lookup(x)
		return v.k != missing, err
	case rng:
		if x.k == integer && x.o == nil || x.k == boolean {
			r := c.o.(*pyRange)
			if n := r.len(); n > 0 {
				d := x.int() - r.start
				return d%r.step == 0 && d/r.step >= 0 && d/r.step < n, nil
			}
			return false, nil
		}
	case view:
		if w := c.o.(*dictView); w.what == viewKeys {
			v, err := w.d.lookup(x)
			return v.k != missing, err
		}
	case undefined:
		return false, nil
	}
	it, err := iterate(c)
	if err != nil {
		return false, typeErr("argument of type '%s' is not iterable", c.typeName())
	}
	for {
		v, ok, err := it.next(s)
		if !ok || err != nil {
			return false, err
		}
		if err := s.step(); err != nil {
			return false, err
		}
		if same(v, x) {
			return true, nil
		}
		if eq, err := equal(s, v, x); eq || err != nil {
			return eq, err
		}
	}
}

func compareOp(s *state, op string, a, b Value) (bool, error) {
	switch op {
	case "==":
		return equal(s, a, b)
	case "!=":
		eq, err := equal(s, a, b)
		return !eq, err
	case "in":
		return contains(s, b, a)
	case "not in":
		in, err := contains(s, b, a)
		return !in, err
	}
	return order(s, op, a, b)
}

// chargeSize counts what it costs to go through all of v. Values share parts, so that going
// through one may take longer than it took to make.
func (s *state) chargeSize(v Value) error {
	left := s.limits.Steps - s.steps + 1
	before := left
	valueSize(v, &left)
	return s.charge(before - left)
}

func valueSize(v Value, left *int) {
	if *left -= 1 + len(v.s)/8; *left < 0 {
		return
	}
	switch v.k {
	case list, tuple:
		for _, x := range v.items() {
			if valueSize(x, left); *left < 0 {
				return
			}
		}
	case dict, view:
		d, ok := v.o.(*Dict)
		if !ok {
			d = v.o.(*dictView).d
		}
		for _, e := range d.entries {
			*left -= len(e.key.s) / 8
			if valueSize(e.val, left); *left < 0 {
				return
			}
		}
	case object:
		if n, ok := v.o.(*namespace); ok {
			valueSize(n.attrs.Value(), left)
		}
	}
}

// binary computes a op b for the arithmetic operators.
func binary(s *state, op string, a, b Value) (Value, error) {
	if op == "%" && a.k == str {
		return percent(s, a, b)
	}
	if a.isNumber() && b.isNumber() {
		return arith(op, a, b)
	}
	if a.k == undefined {
		return Value{}, undefErr(a)
	}
	if b.k == undefined {
		return Value{}, undefErr(b)
	}
	switch op {
	case "+":
		switch {
		case a.k == str && b.k == str:
			return s.join2(a, b)
		case a.isSeq() && a.k == b.k:
			x, y := a.items(), b.items()
			if err := s.alloc((len(x) + len(y)) * valueBytes); err != nil {
				return Value{}, err
			}
			items := make([]Value, 0, len(x)+len(y))
			return Value{k: a.k, o: &seq{append(append(items, x...), y...)}}, nil
		}
	case "*":
		if b.isSeq() || b.k == str {
			a, b = b, a
		}
		if (a.isSeq() || a.k == str) && (b.k == integer || b.k == boolean) {
			return repeat(s, a, b)
		}
	case "-":
		if a.k == view {
			return Value{}, &UnsupportedError{"views of dicts as sets"}
		}
	}
	return Value{}, typeErr("unsupported operand type(s) for %s: '%s' and '%s'", op, a.typeName(), b.typeName())
}

func repeat(s *state, a, times Value) (Value, error) {
	size := len(a.s)
	if a.isSeq() {
		size = len(a.items()) * valueBytes
	}
	n := times.int()
	if times.big() != nil {
		return Value{}, typeErr("cannot fit 'int' into an index-sized integer")
	}
	n = max(n, 0)
	if size > 0 && n > int64(s.limits.Memory/size) {
		return Value{}, errMemory
	}
	if err := s.alloc(size * int(n)); err != nil {
		return Value{}, err
	}
	if a.k == str {
		a.s = strings.Repeat(a.s, int(n))
		return a, nil
	}
	if size == 0 {
		return Value{k: a.k, o: &seq{}}, nil
	}
	items := make([]Value, 0, len(a.items())*int(n))
	for range n {
		items = append(items, a.items()...)
	}
	return Value{k: a.k, o: &seq{items}}, nil
}

// join2 is a + b of strings. Marked text escapes what is added to it.
func (s *state) join2(a, b Value) (Value, error) {
	if a.markup != b.markup {
		if !a.markup {
			a = Value{k: str, s: escapeHTML(a.s), markup: true}
		} else {
			b = Value{k: str, s: escapeHTML(b.s)}
		}
	}
	if err := s.alloc(len(a.s) + len(b.s)); err != nil {
		return Value{}, err
	}
	a.s += b.s
	return a, nil
}

var htmlEscaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

func escapeHTML(s string) string { return htmlEscaper.Replace(s) }

func unary(op string, v Value) (Value, error) {
	switch {
	case v.k == undefined:
		return Value{}, undefErr(v)
	case !v.isNumber():
		return Value{}, typeErr("bad operand type for unary %s: '%s'", op, v.typeName())
	case v.k == float:
		if op == "-" {
			return Float(-v.float()), nil
		}
		return v, nil
	case op == "-":
		return arith("-", Int(0), v)
	case v.k == boolean:
		return Int(v.int()), nil
	}
	return v, nil
}
