package jinja

import (
	"errors"
	"strings"
)

type (
	constExpr struct{ val Value }
	localExpr struct {
		slot int
		name string
	}
	nameExpr struct {
		ref  slotRef
		name string
	}
	seqExpr struct {
		items []expr
		list  bool
	}
	dictExpr   struct{ keys, vals []expr }
	condExpr   struct{ test, then, other expr }
	sumExpr    struct{ items []expr }
	concatExpr struct{ items []expr }
	andExpr    struct{ left, right expr }
	orExpr     struct{ left, right expr }
	notExpr    struct{ x expr }
	unaryExpr  struct {
		op string
		x  expr
	}
	binExpr struct {
		op          string
		left, right expr
	}
	compareExpr struct {
		first expr
		ops   []string
		rest  []expr
	}
	itemExpr  struct{ x, key expr }
	sliceExpr struct {
		x     expr
		parts [3]expr
		// constant: it may be of a constant. Jinja computes such a slice, where it can, by
		// other rules, which give something undefined for an error.
		constant bool
	}
)

func (x *constExpr) eval(*state) (Value, error) { return x.val, nil }

func (x *constExpr) emit(s *state) error { return s.writeValue(x.val) }

func (x *localExpr) eval(s *state) (Value, error) {
	v := s.f.slots[x.slot]
	if v.k == missing {
		v = undef(x.name)
	}
	return v, nil
}

func (x *nameExpr) eval(s *state) (Value, error) {
	v := *x.ref.at(s.f)
	if v.k == missing {
		v = undef(x.name)
	}
	return v, nil
}

func evalAll(s *state, xs []expr) ([]Value, error) {
	if len(xs) == 0 {
		return nil, nil
	}
	out := make([]Value, len(xs))
	for i, x := range xs {
		var err error
		if out[i], err = x.eval(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (x *seqExpr) eval(s *state) (Value, error) {
	if err := s.alloc(len(x.items) * valueBytes); err != nil {
		return Value{}, err
	}
	items, err := evalAll(s, x.items)
	if x.list {
		return List(items...), err
	}
	return tupleOf(items), err
}

func (x *dictExpr) eval(s *state) (Value, error) {
	if err := s.alloc(2 * len(x.keys) * valueBytes); err != nil {
		return Value{}, err
	}
	d := NewDict(len(x.keys))
	for i := range x.keys {
		k, err := x.keys[i].eval(s)
		if err != nil {
			return Value{}, err
		}
		v, err := x.vals[i].eval(s)
		if err != nil {
			return Value{}, err
		}
		if err := d.setAny(k, v); err != nil {
			return Value{}, err
		}
	}
	return d.Value(), nil
}

// truth is whether an expression's value is true.
func truth(s *state, x expr) (bool, error) {
	switch x := x.(type) {
	case *notExpr:
		ok, err := truth(s, x.x)
		return !ok, err
	case *testExpr:
		return x.holds(s)
	case *compareExpr:
		return x.holds(s)
	case *isTextExpr:
		return x.holds(s)
	case *andExpr:
		ok, err := truth(s, x.left)
		if !ok || err != nil {
			return false, err
		}
		return truth(s, x.right)
	case *orExpr:
		ok, err := truth(s, x.left)
		if ok || err != nil {
			return ok, err
		}
		return truth(s, x.right)
	}
	v, err := x.eval(s)
	return v.Truth(), err
}

// isTextExpr is x == 'text', or x != 'text', of which templates are full.
type isTextExpr struct {
	x    expr
	text string
	not  bool
}

func (x *isTextExpr) holds(s *state) (bool, error) {
	v, err := x.x.eval(s)
	return (v.k == str && v.s == x.text) != x.not, err
}

func (x *isTextExpr) eval(s *state) (Value, error) {
	ok, err := x.holds(s)
	return Bool(ok), err
}

func (x *condExpr) choose(s *state) (expr, error) {
	ok, err := truth(s, x.test)
	if ok {
		return x.then, err
	}
	return x.other, err
}

func (x *condExpr) eval(s *state) (Value, error) {
	c, err := x.choose(s)
	if err != nil {
		return Value{}, err
	}
	return c.eval(s)
}

func (x *condExpr) emit(s *state) error {
	c, err := x.choose(s)
	if err != nil {
		return err
	}
	return emit(s, c)
}

func (x *andExpr) eval(s *state) (Value, error) {
	v, err := x.left.eval(s)
	if err != nil || !v.Truth() {
		return v, err
	}
	return x.right.eval(s)
}

func (x *orExpr) eval(s *state) (Value, error) {
	v, err := x.left.eval(s)
	if err != nil || v.Truth() {
		return v, err
	}
	return x.right.eval(s)
}

func (x *notExpr) eval(s *state) (Value, error) {
	ok, err := truth(s, x.x)
	return Bool(!ok), err
}

func (x *unaryExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	return unary(x.op, v)
}

func (x *binExpr) eval(s *state) (Value, error) {
	a, err := x.left.eval(s)
	if err != nil {
		return a, err
	}
	b, err := x.right.eval(s)
	if err != nil {
		return b, err
	}
	return binary(s, x.op, a, b)
}

// fewTerms is as many terms of a sum as are kept without an allocation.
const fewTerms = 8

// terms evaluates a sum's terms, into buf where they fit, and tells whether all are plain
// strings.
func (x *sumExpr) terms(s *state, buf []Value) (vals []Value, plain bool, err error) {
	if vals = buf[:0]; len(x.items) > len(buf) {
		vals = make([]Value, 0, len(x.items))
	}
	plain = true
	for _, t := range x.items {
		v, err := t.eval(s)
		if err != nil {
			return nil, false, err
		}
		if v.k != str || v.markup {
			plain = false
		}
		vals = append(vals, v)
	}
	return vals, plain, nil
}

func (x *sumExpr) eval(s *state) (Value, error) {
	var buf [fewTerms]Value
	vals, plain, err := x.terms(s, buf[:])
	if err != nil {
		return Value{}, err
	}
	if !plain {
		return sum(s, vals)
	}
	n := 0
	for i := range vals {
		n += len(vals[i].s)
	}
	if err := s.alloc(n); err != nil {
		return Value{}, err
	}
	var b strings.Builder
	b.Grow(n)
	for i := range vals {
		b.WriteString(vals[i].s)
	}
	return Str(b.String()), nil
}

// sum adds from the left.
func sum(s *state, vals []Value) (v Value, err error) {
	v = vals[0]
	for _, x := range vals[1:] {
		if v, err = binary(s, "+", v, x); err != nil {
			return v, err
		}
	}
	return v, nil
}

func (x *sumExpr) emit(s *state) error {
	var buf [fewTerms]Value
	vals, plain, err := x.terms(s, buf[:])
	if err != nil {
		return err
	}
	if !plain {
		v, err := sum(s, vals)
		if err != nil {
			return err
		}
		return s.writeValue(v)
	}
	for i := range vals {
		if err := s.write(vals[i].s); err != nil {
			return err
		}
	}
	return nil
}

func (x *concatExpr) eval(s *state) (Value, error) {
	from := len(s.out)
	return s.captured(from, x.emit(s))
}

func (x *concatExpr) emit(s *state) error {
	for _, e := range x.items {
		if err := emit(s, e); err != nil {
			return err
		}
	}
	return nil
}

func (x *compareExpr) holds(s *state) (bool, error) {
	a, err := x.first.eval(s)
	if err != nil {
		return false, err
	}
	for i, op := range x.ops {
		b, err := x.rest[i].eval(s)
		if err != nil {
			return false, err
		}
		ok, err := compareOp(s, op, a, b)
		if !ok || err != nil {
			return false, err
		}
		a = b
	}
	return true, nil
}

func (x *compareExpr) eval(s *state) (Value, error) {
	ok, err := x.holds(s)
	return Bool(ok), err
}

func (x *itemExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	k, err := x.key.eval(s)
	if err != nil {
		return v, err
	}
	return getItem(s, v, k)
}

func (x *sliceExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	var parts [3]Value
	for i, p := range x.parts {
		if parts[i], err = p.eval(s); err != nil {
			return v, err
		}
	}
	r, err := getSlice(s, v, parts[0], parts[1], parts[2])
	if err == nil || !x.constant {
		return r, err
	}
	if wrong := (*Error)(nil); errors.As(err, &wrong) {
		err = &UnsupportedError{"a slice of a constant that has none"}
	}
	return r, err
}
