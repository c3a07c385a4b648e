package jinja

// program is a compiled template. It is never changed: any number of renders use it at once.
type program struct {
	enter   *entering
	body    []stmt
	slots   int
	outside []string // names of what comes from outside, in the order of state.vars
}

// flow is how a statement ended.
type flow uint8

const (
	goOn flow = iota
	breaks
	continues
)

// stmt is a compiled statement.
type stmt interface{ exec(s *state) (flow, error) }

// expr is a compiled expression.
type expr interface{ eval(s *state) (Value, error) }

// emitter is an expression that can write its text itself, without making a value of it.
type emitter interface{ emit(s *state) error }

// target is what gets a value.
type target interface{ set(s *state, v Value) error }

func execAll(s *state, body []stmt) (flow, error) {
	for _, st := range body {
		if err := s.step(); err != nil {
			return goOn, err
		}
		if fl, err := st.exec(s); fl != goOn || err != nil {
			return fl, err
		}
	}
	return goOn, nil
}

type (
	outputStmt   struct{ items []expr }
	breakStmt    struct{}
	continueStmt struct{}
	ifStmt       struct {
		tests  []expr
		bodies [][]stmt
		other  []stmt
	}
	setStmt struct {
		target target
		val    expr
	}
	setBlockStmt struct {
		enter  *entering
		body   []stmt
		target target
		filter expr // may be nil
		text   *textExpr
	}
	filterStmt struct {
		enter  *entering
		body   []stmt
		filter expr
		text   *textExpr
	}
	withStmt struct {
		enter *entering
		sets  []setStmt
		body  []stmt
	}
	macroStmt struct {
		ref  slotRef
		code *macroCode
	}
	generationStmt struct{ code *macroCode }
	callStmt       struct{ call *callExpr }
)

func (st *outputStmt) exec(s *state) (flow, error) {
	for _, x := range st.items {
		if err := emit(s, x); err != nil {
			return goOn, err
		}
	}
	return goOn, nil
}

func emit(s *state, x expr) error {
	if x, ok := x.(emitter); ok {
		return x.emit(s)
	}
	v, err := x.eval(s)
	if err != nil {
		return err
	}
	return s.writeValue(v)
}

func (breakStmt) exec(*state) (flow, error)    { return breaks, nil }
func (continueStmt) exec(*state) (flow, error) { return continues, nil }

func (st *ifStmt) exec(s *state) (flow, error) {
	for i, test := range st.tests {
		ok, err := truth(s, test)
		if err != nil {
			return goOn, err
		}
		if ok {
			return execAll(s, st.bodies[i])
		}
	}
	return execAll(s, st.other)
}

func (st *setStmt) exec(s *state) (flow, error) {
	v, err := st.val.eval(s)
	if err != nil {
		return goOn, err
	}
	return goOn, st.target.set(s, v)
}

func (st *setBlockStmt) exec(s *state) (flow, error) {
	st.enter.enter(s)
	from := len(s.out)
	fl, err := execAll(s, st.body)
	if fl != goOn { // out of a loop: what was written here is nobody's
		s.out = s.out[:from]
		return fl, err
	}
	v, err := s.captured(from, err)
	if err != nil {
		return goOn, err
	}
	if st.filter != nil {
		if v, err = st.text.apply(s, st.filter, v); err != nil {
			return goOn, err
		}
	}
	return goOn, st.target.set(s, v)
}

func (st *filterStmt) exec(s *state) (flow, error) {
	st.enter.enter(s)
	from := len(s.out)
	fl, err := execAll(s, st.body)
	if fl != goOn {
		s.out = s.out[:from]
		return fl, err
	}
	v, err := s.captured(from, err)
	if err != nil {
		return goOn, err
	}
	if v, err = st.text.apply(s, st.filter, v); err != nil {
		return goOn, err
	}
	st.enter.leave(s)
	return goOn, s.writeStr(v)
}

// writeStr writes what a block gives, which, unlike what is printed, must be a string.
func (s *state) writeStr(v Value) error {
	if v.k != str {
		return typeErr("a block gives a %s: expected str", v.typeName())
	}
	return s.write(v.s)
}

func (st *withStmt) exec(s *state) (flow, error) {
	st.enter.enter(s)
	for i := range st.sets {
		if _, err := st.sets[i].exec(s); err != nil {
			return goOn, err
		}
	}
	fl, err := execAll(s, st.body)
	if fl == goOn {
		st.enter.leave(s)
	}
	return fl, err
}

func (st *macroStmt) exec(s *state) (flow, error) {
	*st.ref.at(s.f) = Value{k: object, o: &macro{st.code, s.f}}
	return goOn, nil
}

func (st *callStmt) exec(s *state) (flow, error) {
	v, err := st.call.eval(s)
	if err != nil {
		return goOn, err
	}
	return goOn, s.writeStr(v)
}

func (st *generationStmt) exec(s *state) (flow, error) {
	return goOn, (&macro{st.code, s.f}).run(s, nil)
}

// textExpr stands for the text of a block, to which filters are applied.
type textExpr struct{}

// apply evaluates filter with text in its place. The text is passed in the state, not kept
// here: code is shared by renders.
func (*textExpr) apply(s *state, filter expr, text Value) (Value, error) {
	saved := s.text
	s.text = text
	v, err := filter.eval(s)
	s.text = saved
	return v, err
}

func (*textExpr) eval(s *state) (Value, error) { return s.text, nil }

type nameTarget struct{ ref slotRef }

func (t *nameTarget) set(s *state, v Value) error {
	*t.ref.at(s.f) = v
	return nil
}

type attrTarget struct {
	ref  slotRef
	attr string
}

func (t *attrTarget) set(s *state, v Value) error {
	ns, ok := t.ref.at(s.f).o.(*namespace)
	if !ok {
		return typeErr("cannot assign attribute on non-namespace object")
	}
	return ns.set(t.attr, v)
}

type tupleTarget struct{ items []target }

func (t *tupleTarget) set(s *state, v Value) error {
	var items []Value
	if v.isSeq() {
		items = v.items()
	} else {
		it, err := iterate(v)
		if err != nil {
			return typeErr("cannot unpack non-iterable %s object", v.typeName())
		}
		for len(items) <= len(t.items) {
			x, ok, err := it.next(s)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			items = append(items, x)
		}
	}
	if len(items) != len(t.items) {
		return typeErr("%d values are expected to unpack", len(t.items))
	}
	for i, x := range items {
		if err := t.items[i].set(s, x); err != nil {
			return err
		}
	}
	return nil
}

// namespace is what namespace() makes: the one thing that a template can change.
type namespace struct{ attrs *Dict }

func (n *namespace) set(name string, v Value) error {
	if len(name) > 0 && name[0] == '_' {
		return typeErr("a namespace has no attributes that begin with an underscore")
	}
	n.attrs.Set(name, v)
	return nil
}

// forCode is a loop.
type forCode struct {
	iter       expr
	target     target
	slot       int // of the target where it is one name, else -1
	loop       int // of the variable loop, or -1 where nothing reads it
	test       *testCode
	enter      *entering
	enterOther *entering
	body       []stmt
	other      []stmt
	hasOther   bool
	recursive  bool
	size       int // of its variables, of a recursive one
}

// testCode is a loop's condition.
type testCode struct {
	enter  *entering
	target target
	test   expr
	size   int
}

type forStmt struct{ code *forCode }

func (st *forStmt) exec(s *state) (flow, error) {
	c := st.code
	src, err := c.iter.eval(s)
	if err != nil {
		return goOn, err
	}
	if c.recursive {
		return goOn, c.recurse(s, src, s.f, 0)
	}
	return c.run(s, src, s.f, 0)
}

// recurse runs a recursive loop in variables of its own; what it writes is its value.
func (c *forCode) recurse(s *state, src Value, outer *frame, depth int) error {
	return s.call(c.size, outer, func() error {
		_, err := c.run(s, src, outer, depth)
		return err
	})
}

func (c *forCode) run(s *state, src Value, outer *frame, depth int) (flow, error) {
	if c.test != nil {
		it, err := c.test.filter(src, outer)
		if err != nil {
			return goOn, err
		}
		src = Value{k: iter, o: it}
	}
	var loop *loopObj
	if c.loop >= 0 || !src.isSeq() {
		l, err := newLoop(src)
		if err != nil {
			return goOn, err
		}
		l.depth0, loop = depth, l
		if c.recursive {
			l.code, l.outer = c, outer
		}
	}
	empty := true
	for i := 0; ; i++ {
		var v Value
		if loop != nil {
			var ok bool
			var err error
			if v, ok, err = loop.next(s); err != nil {
				return goOn, err
			}
			if !ok {
				break
			}
		} else {
			items := src.items()
			if i >= len(items) {
				break
			}
			v = items[i]
		}
		fl, err := c.iteration(s, v, loop)
		if err != nil {
			return goOn, err
		}
		if fl == breaks {
			break
		}
		// Whether there was an iteration is noted behind the body, so that one which was
		// broken off or continued is none.
		if fl == goOn {
			empty = false
		}
	}
	c.enter.leave(s)
	if !empty || !c.hasOther {
		return goOn, nil
	}
	c.enterOther.enter(s)
	fl, err := execAll(s, c.other)
	c.enterOther.leave(s)
	return fl, err
}

func (c *forCode) iteration(s *state, v Value, loop *loopObj) (flow, error) {
	if err := s.step(); err != nil {
		return goOn, err
	}
	if c.slot >= 0 {
		s.f.slots[c.slot] = v
	} else if err := c.target.set(s, v); err != nil {
		return goOn, err
	}
	if c.loop >= 0 {
		s.f.slots[c.loop] = Value{k: object, o: loop}
	}
	c.enter.enter(s)
	return execAll(s, c.body)
}

// filter goes through what meets the condition, one by one as it is asked.
func (c *testCode) filter(src Value, outer *frame) (iterator, error) {
	it, err := iterate(src)
	if err != nil {
		return nil, err
	}
	var f *frame
	return &genIter{f: func(s *state) (Value, bool, error) {
		caller := s.f
		defer func() { s.f = caller }()
		if f == nil {
			f = &frame{make([]Value, c.size), outer}
			s.f = f
			c.enter.enter(s)
		}
		s.f = f
		for {
			v, ok, err := it.next(s)
			if !ok || err != nil {
				return v, ok, err
			}
			if err := s.step(); err != nil {
				return v, false, err
			}
			if err := c.target.set(s, v); err != nil {
				return v, false, err
			}
			if ok, err = truth(s, c.test); ok || err != nil {
				return v, ok, err
			}
		}
	}}, nil
}
