package jinja

import "strings"

// method is a method of a builtin type.
type method func(s *state, recv Value, a *args) (Value, error)

// bound is a method with what it is of.
type bound struct {
	name string
	recv Value
	fn   method
}

// builtin is a function.
type builtin struct {
	name string
	fn   func(s *state, a *args) (Value, error)
}

// unsafeAttr stands where Python's types have an attribute that the sandbox keeps back.
func unsafeAttr(name string) Value { return undef("the attribute " + name + ", which is not safe,") }

// everyObject are attributes that all of Python's objects have.
var everyObject = setOf(`__class__ __delattr__ __dir__ __doc__ __eq__ __format__ __ge__ __getattribute__ __getstate__
	__gt__ __hash__ __init__ __init_subclass__ __le__ __lt__ __ne__ __new__ __reduce__ __reduce_ex__ __repr__
	__setattr__ __sizeof__ __str__ __subclasshook__`)

// moreDunder are those that only some types have; templates have no reason to ask.
var moreDunder = map[kind]map[string]bool{
	str:  setOf("__add__ __contains__ __getitem__ __getnewargs__ __iter__ __len__ __mod__ __mul__ __rmod__ __rmul__"),
	dict: setOf("__class_getitem__ __contains__ __delitem__ __getitem__ __ior__ __iter__ __len__ __or__ __reversed__ __ror__ __setitem__"),
	list: setOf("__add__ __class_getitem__ __contains__ __delitem__ __getitem__ __iadd__ __imul__ __iter__ __len__ __mul__ __reversed__ __rmul__ __setitem__"),
}

func setOf(words string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// dictChanging and listChanging are methods that the sandbox keeps back.
var (
	dictChanging = setOf("clear pop popitem setdefault update")
	listChanging = setOf("append clear pop reverse insert sort extend remove")
)

// otherAttrs are attributes of types that no template was seen to use.
var otherAttrs = map[kind]map[string]bool{
	integer: setOf("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"),
	boolean: setOf("as_integer_ratio bit_count bit_length conjugate denominator from_bytes imag is_integer numerator real to_bytes"),
	float:   setOf("as_integer_ratio conjugate fromhex hex imag is_integer real"),
	view:    setOf("isdisjoint mapping"),
	rng:     setOf("count index start step stop"),
	iter:    setOf("close gi_code gi_frame gi_running gi_suspended gi_yieldfrom send throw"),
}

// markupAttrs are attributes that marked text has besides those of a str.
var markupAttrs = setOf("escape striptags unescape")

// attribute is what getattr(v, name) gives in the sandbox, or a missing Value where v has
// no such attribute.
func attribute(s *state, v Value, name string) (Value, error) {
	if strings.HasPrefix(name, "__") && (everyObject[name] || moreDunder[v.k][name]) {
		return unsafeAttr(name), nil
	}
	var fn method
	switch v.k {
	case undefined:
		return Value{}, undefErr(v)
	case str:
		if fn = strMethods[name]; v.markup && markupAttrs[name] {
			return Value{}, &UnsupportedError{"the attribute " + name + " of marked text"}
		}
	case dict:
		if dictChanging[name] {
			return unsafeAttr(name), nil
		}
		fn = dictMethods[name]
	case list:
		if listChanging[name] {
			return unsafeAttr(name), nil
		}
		fn = listMethods[name]
	case tuple:
		if name != "copy" {
			fn = listMethods[name]
		}
	case object:
		if o, ok := v.o.(interface {
			attr(s *state, name string) (Value, error)
		}); ok {
			return o.attr(s, name)
		}
	default:
		if otherAttrs[v.k][name] {
			return Value{}, &UnsupportedError{"the attribute " + name + " of a " + v.typeName()}
		}
	}
	if fn == nil {
		return Value{}, nil
	}
	return Value{k: object, o: &bound{name, v, fn}}, nil
}

// attrExpr is x.name.
type attrExpr struct {
	x    expr
	name string
	// What the name is of the three types that are asked most, looked up once.
	strMethod, listMethod, dictMethod method
	dictAttr                          bool // no key of a dict is found by x.name
}

func newAttrExpr(x expr, name string) *attrExpr {
	return &attrExpr{
		x, name, strMethods[name], listMethods[name], dictMethods[name],
		dictMethods[name] != nil || dictChanging[name] || everyObject[name] || moreDunder[dict][name],
	}
}

func (x *attrExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	return x.of(s, v)
}

func (x *attrExpr) of(s *state, v Value) (Value, error) {
	if v.k == dict && !x.dictAttr {
		r := v.dict().Get(x.name)
		if r.k == missing {
			r = undef(x.name)
		}
		return r, nil
	}
	r, err := attribute(s, v, x.name)
	if r.k == missing && err == nil {
		r = undef(x.name)
	}
	return r, err
}

// method gives the method of that name of a builtin value, if it has one.
func (x *attrExpr) method(v Value) method {
	switch v.k {
	case str:
		return x.strMethod
	case dict:
		return x.dictMethod
	case list:
		return x.listMethod
	}
	return nil
}

// fieldExpr is x['name'].
type fieldExpr struct {
	x    expr
	name string
}

func (x *fieldExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	if v.k == dict {
		if r := v.dict().Get(x.name); r.k != missing {
			return r, nil
		}
	}
	return getItem(s, v, Str(x.name))
}

func (n *namespace) attr(_ *state, name string) (Value, error) {
	return n.attrs.Get(name), nil
}

func (m *macro) attr(_ *state, name string) (Value, error) {
	switch name {
	case "name":
		if m.code.name == "" {
			return None, nil
		}
		return Str(m.code.name), nil
	case "arguments":
		names := make([]Value, len(m.code.names))
		for i, n := range m.code.names {
			names[i] = Str(n)
		}
		return tupleOf(names), nil
	case "catch_kwargs":
		return Bool(m.code.kwargs >= 0), nil
	case "catch_varargs":
		return Bool(m.code.varargs >= 0), nil
	case "caller":
		return Bool(m.code.wantsCaller), nil
	case "explicit_caller":
		return Bool(m.code.explicitCaller), nil
	}
	return Value{}, nil
}

func (l *loopObj) attr(s *state, name string) (Value, error) {
	num := func(n int, err error) (Value, error) { return Int(int64(n)), err }
	switch name {
	case "index":
		return num(l.index0+1, nil)
	case "index0":
		return num(l.index0, nil)
	case "first":
		return Bool(l.index0 == 0), nil
	case "last":
		if l.count >= 0 && l.src.isSeq() {
			return Bool(l.index0+1 == l.count), nil
		}
		v, err := l.peek(s)
		return Bool(v.k == missing), err
	case "length":
		return num(l.len(s))
	case "revindex":
		n, err := l.len(s)
		return num(n-l.index0, err)
	case "revindex0":
		n, err := l.len(s)
		return num(n-l.index0-1, err)
	case "depth":
		return num(l.depth0+1, nil)
	case "depth0":
		return num(l.depth0, nil)
	case "previtem":
		if l.index0 == 0 {
			return undef("the item before the first"), nil
		}
		return l.before, nil
	case "nextitem":
		v, err := l.peek(s)
		if v.k == missing {
			v = undef("the item behind the last")
		}
		return v, err
	case "cycle":
		return Value{k: object, o: &builtin{"cycle", l.cycle}}, nil
	case "changed":
		return Value{k: object, o: &builtin{"changed", l.hasChanged}}, nil
	}
	return Value{}, nil
}

func (l *loopObj) cycle(_ *state, a *args) (Value, error) {
	if len(a.kw) > 0 || len(a.pos) == 0 {
		return Value{}, typeErr("cycle takes items")
	}
	i := l.index0 % len(a.pos)
	return a.pos[max(i, 0)], nil
}

func (l *loopObj) hasChanged(s *state, a *args) (Value, error) {
	if len(a.kw) > 0 {
		return Value{}, typeErr("changed takes no keyword arguments")
	}
	eq, err := equal(s, tupleOf(l.changed), tupleOf(a.pos))
	if err != nil {
		return Value{}, err
	}
	if l.seen && eq {
		return False, nil
	}
	l.changed, l.seen = a.pos, true
	return True, nil
}
