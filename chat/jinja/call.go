package jinja

import "slices"

// args are the arguments of one call.
type args struct {
	pos []Value
	kw  []kwarg
}

type kwarg struct {
	name string
	val  Value
}

// bind gives the values of the parameters of fn, missing where they are not given.
func (a *args) bind(fn string, names ...string) ([]Value, error) {
	if len(a.pos) > len(names) {
		return nil, typeErr("%s takes at most %d arguments (%d given)", fn, len(names), len(a.pos))
	}
	out := make([]Value, len(names))
	copy(out, a.pos)
	for _, k := range a.kw {
		i := slices.Index(names, k.name)
		if i < 0 || out[i].k != missing {
			return nil, typeErr("%s got an unexpected argument %s", fn, k.name)
		}
		out[i] = k.val
	}
	return out, nil
}

// only gives the values of parameters that are positional only, between least and most.
func (a *args) only(fn string, least, most int) ([]Value, error) {
	if len(a.kw) > 0 {
		return nil, typeErr("%s takes no keyword arguments", fn)
	}
	if len(a.pos) < least || len(a.pos) > most {
		return nil, typeErr("%s takes %d to %d arguments (%d given)", fn, least, most, len(a.pos))
	}
	return a.pos, nil
}

func or(v, def Value) Value {
	if v.k == missing {
		return def
	}
	return v
}

func (a *arguments) eval(s *state, out *args) (err error) {
	if len(a.pos) > 0 {
		out.pos = make([]Value, len(a.pos))
		for i, x := range a.pos {
			if out.pos[i], err = x.eval(s); err != nil {
				return err
			}
		}
	}
	for _, k := range a.kw {
		v, err := k.val.eval(s)
		if err != nil {
			return err
		}
		out.kw = append(out.kw, kwarg{k.name, v})
	}
	if a.dyn != nil {
		v, err := a.dyn.eval(s)
		if err != nil {
			return err
		}
		more, err := collect(s, v)
		if err != nil {
			return err
		}
		out.pos = append(out.pos, more...)
	}
	if a.dynKw != nil {
		v, err := a.dynKw.eval(s)
		if err != nil {
			return err
		}
		if v.k != dict {
			return typeErr("argument after ** must be a mapping, not %s", v.typeName())
		}
		for _, e := range v.dict().entries {
			if e.key.k != str {
				return typeErr("keywords must be strings")
			}
			if slices.ContainsFunc(out.kw, func(k kwarg) bool { return k.name == e.key.s }) {
				return typeErr("the argument %s is given twice", e.key.s)
			}
			out.kw = append(out.kw, kwarg{e.key.s, e.val})
		}
	}
	return nil
}

// callExpr is f(…); caller is the body of a call block.
type callExpr struct {
	f      expr
	args   arguments
	caller *macroCode
}

// prepare evaluates what is called, and the arguments.
func (x *callExpr) prepare(s *state, a *args) (Value, error) {
	f, err := x.f.eval(s)
	if err != nil {
		return f, err
	}
	if err := x.args.eval(s, a); err != nil {
		return f, err
	}
	if x.caller != nil {
		if slices.ContainsFunc(a.kw, func(k kwarg) bool { return k.name == "caller" }) {
			return f, typeErr("the argument caller is given twice")
		}
		a.kw = append(a.kw, kwarg{"caller", Value{k: object, o: &macro{x.caller, s.f}}})
	}
	return f, nil
}

func (x *callExpr) eval(s *state) (Value, error) {
	var a args
	f, err := x.prepare(s, &a)
	if err != nil {
		return f, err
	}
	return call(s, f, &a)
}

// emit writes what a macro gives as it comes.
func (x *callExpr) emit(s *state) error {
	var a args
	f, err := x.prepare(s, &a)
	if err != nil {
		return err
	}
	if m, ok := f.o.(*macro); ok {
		return m.run(s, &a)
	}
	v, err := call(s, f, &a)
	if err != nil {
		return err
	}
	return s.writeValue(v)
}

// call calls f.
func call(s *state, f Value, a *args) (Value, error) {
	if f.k == undefined {
		return Value{}, undefErr(f)
	}
	if err := s.step(); err != nil {
		return Value{}, err
	}
	switch f := f.o.(type) {
	case *bound:
		return f.fn(s, f.recv, a)
	case *builtin:
		return f.fn(s, a)
	case *macro:
		return s.capture(func() error { return f.run(s, a) })
	case *dictType:
		d, err := makeDict(s, a)
		if err != nil {
			return Value{}, err
		}
		return d.Value(), nil
	case *loopObj:
		given, err := a.bind("loop", "iterable")
		if err != nil {
			return Value{}, err
		}
		if given[0].k == missing {
			return Value{}, typeErr("loop needs what to go through")
		}
		if f.code == nil {
			return Value{}, typeErr("the loop must have the 'recursive' marker to be called recursively")
		}
		return s.capture(func() error { return f.code.recurse(s, given[0], f.outer, f.depth0+1) })
	}
	return Value{}, typeErr("'%s' object is not callable", f.typeName())
}

// methodExpr is x.name(…): most often a method, which then is never made a value.
type methodExpr struct {
	f    *attrExpr
	args arguments
}

func (x *methodExpr) eval(s *state) (Value, error) {
	v, err := x.f.x.eval(s)
	if err != nil {
		return v, err
	}
	var a args
	if m := x.f.method(v); m != nil {
		if err := x.args.eval(s, &a); err != nil {
			return v, err
		}
		if err := s.step(); err != nil {
			return v, err
		}
		return m(s, v, &a)
	}
	f, err := x.f.of(s, v)
	if err != nil {
		return v, err
	}
	if err := x.args.eval(s, &a); err != nil {
		return v, err
	}
	return call(s, f, &a)
}

type filter func(s *state, v Value, a *args) (Value, error)

type filterExpr struct {
	f    filter
	x    expr
	args arguments
}

func (x *filterExpr) eval(s *state) (Value, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return v, err
	}
	var a args
	if err := x.args.eval(s, &a); err != nil {
		return v, err
	}
	if err := s.step(); err != nil {
		return v, err
	}
	return x.f(s, v, &a)
}

type test func(s *state, v Value, a *args) (bool, error)

type testExpr struct {
	f    test
	x    expr
	args arguments
}

func (x *testExpr) holds(s *state) (bool, error) {
	v, err := x.x.eval(s)
	if err != nil {
		return false, err
	}
	var a args
	if err := x.args.eval(s, &a); err != nil {
		return false, err
	}
	return x.f(s, v, &a)
}

func (x *testExpr) eval(s *state) (Value, error) {
	ok, err := x.holds(s)
	return Bool(ok), err
}

// macroCode is a macro, or the body of a call block, compiled.
type macroCode struct {
	name           string
	names          []string // of the parameters
	slots          []int
	defaults       []expr // of the last parameters
	caller         int    // the slot of caller where the body reads it, else -1
	kwargs         int
	varargs        int
	wantsCaller    bool
	explicitCaller bool // caller is among the parameters
	enter          *entering
	body           []stmt
	size           int
}

// macro is a macro with the variables around its definition.
type macro struct {
	code  *macroCode
	outer *frame
}

// run writes what the macro gives.
func (m *macro) run(s *state, a *args) error {
	c := m.code
	return s.call(c.size, m.outer, func() error {
		if err := c.bind(s, a); err != nil {
			return err
		}
		c.enter.enter(s)
		first := len(c.slots) - len(c.defaults)
		for i, slot := range c.slots {
			if s.f.slots[slot].k != missing {
				continue
			}
			if i < first {
				s.f.slots[slot] = undef("the parameter " + c.names[i])
				continue
			}
			v, err := c.defaults[i-first].eval(s)
			if err != nil {
				return err
			}
			s.f.slots[slot] = v
		}
		_, err := execAll(s, c.body)
		return err
	})
}

// bind puts arguments where the parameters are.
func (c *macroCode) bind(s *state, a *args) error {
	if a == nil {
		a = &args{}
	}
	slots := s.f.slots
	n := min(len(a.pos), len(c.slots))
	for i, v := range a.pos[:n] {
		slots[c.slots[i]] = v
	}
	kw := slices.Clone(a.kw)
	take := func(name string) Value {
		for i, k := range kw {
			if k.name == name {
				kw = slices.Delete(kw, i, i+1)
				return k.val
			}
		}
		return Value{}
	}
	foundCaller := false
	if n == len(c.slots) {
		foundCaller = c.explicitCaller
	}
	for i := n; i < len(c.slots); i++ {
		slots[c.slots[i]] = take(c.names[i])
		foundCaller = foundCaller || c.names[i] == "caller"
	}
	if c.wantsCaller && !foundCaller {
		v := take("caller")
		if v.k == missing || v.k == none {
			v = undef("the caller")
		}
		if c.caller >= 0 {
			slots[c.caller] = v
		}
	}
	if c.kwargs >= 0 {
		d := NewDict(len(kw))
		for _, k := range kw {
			d.Set(k.name, k.val)
		}
		slots[c.kwargs] = d.Value()
	} else if len(kw) > 0 {
		return typeErr("macro %s takes no argument %s", c.name, kw[0].name)
	}
	if c.varargs >= 0 {
		slots[c.varargs] = tupleOf(a.pos[n:])
	} else if len(a.pos) > len(c.slots) {
		return typeErr("macro %s takes not more than %d arguments", c.name, len(c.slots))
	}
	return nil
}
