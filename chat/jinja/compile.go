package jinja

import "slices"

// function is a function of the compiled template while it is made: what has variables of
// its own.
type function struct {
	outer *function
	slots map[ident]int
	loops int // around what is compiled now: break and continue need one
}

func newFunction(outer *function) *function {
	return &function{outer: outer, slots: map[ident]int{}}
}

func (f *function) slot(id ident) int {
	i, ok := f.slots[id]
	if !ok {
		i = len(f.slots)
		f.slots[id] = i
	}
	return i
}

// slotRef is a variable as it is found when the template runs.
type slotRef struct{ hops, slot int }

func (r slotRef) at(f *frame) *Value {
	for range r.hops {
		f = f.outer
	}
	return &f.slots[r.slot]
}

// compiler makes code of a syntax tree.
type compiler struct {
	vars     map[string]int // names from outside, by number
	varNames []string
}

// block is a block of statements while it is compiled.
type block struct {
	c   *compiler
	sym *symbols
	// soft: inside of an if, where a filter or test that does not exist is an error only
	// once it is reached.
	soft bool
}

func (b *block) inner(fn *function) *block {
	return &block{c: b.c, sym: newSymbols(b.sym, fn)}
}

func (b *block) softened() *block { return &block{c: b.c, sym: b.sym, soft: true} }

func (b *block) fn() *function { return b.sym.fn }

// place says how id, a variable of owner, is found from the block's function.
func (b *block) place(id ident, owner *function) slotRef {
	hops := 0
	for f := b.fn(); f != owner; f = f.outer {
		hops++
	}
	return slotRef{hops, owner.slot(id)}
}

// ref says how the variable is found that name means.
func (b *block) ref(name string) (slotRef, error) {
	id, owner, ok := b.sym.lookup(name)
	if !ok {
		return slotRef{}, &SyntaxError{0, name + " is read where it cannot be"}
	}
	return b.place(id, owner), nil
}

// outside is the number of a name from outside.
func (c *compiler) outside(name string) int {
	i, ok := c.vars[name]
	if !ok {
		i = len(c.varNames)
		c.vars[name] = i
		c.varNames = append(c.varNames, name)
	}
	return i
}

// entering is what happens when a block begins: its variables get their first values.
type entering struct {
	resolve []resolveSlot
	alias   []aliasSlot
	clear   []int
	all     []int
}

type resolveSlot struct{ slot, outside int }

type aliasSlot struct {
	slot int
	from slotRef
}

func (b *block) entering() *entering {
	e := &entering{}
	for _, id := range b.sym.order {
		l := b.sym.loads[id]
		slot := b.fn().slot(id)
		e.all = append(e.all, slot)
		switch l.kind {
		case loadResolve:
			e.resolve = append(e.resolve, resolveSlot{slot, b.c.outside(id.name)})
		case loadAlias:
			e.alias = append(e.alias, aliasSlot{slot, b.place(l.alias, l.owner)})
		case loadUndefined:
			e.clear = append(e.clear, slot)
		}
	}
	return e
}

func (e *entering) enter(s *state) {
	slots := s.f.slots
	for _, r := range e.resolve {
		slots[r.slot] = s.vars[r.outside]
	}
	for _, a := range e.alias {
		slots[a.slot] = *a.from.at(s.f)
	}
	for _, i := range e.clear {
		slots[i] = Value{}
	}
}

// leave takes the block's variables away: a macro that was made inside may outlive it.
func (e *entering) leave(s *state) {
	for _, i := range e.all {
		s.f.slots[i] = Value{}
	}
}

// compile makes code of a template.
func compile(t *templateNode) (*program, error) {
	c := &compiler{vars: map[string]int{}}
	if undeclared(t.body, "self")["self"] {
		return nil, &UnsupportedError{"the variable self"}
	}
	fn := newFunction(nil)
	b := &block{c: c, sym: newSymbols(nil, fn)}
	b.sym.visitAll(t.body)
	// The numbers of slots are given as code is made, the last of them at the end.
	enter := b.entering()
	body, err := b.statements(t.body)
	if err != nil {
		return nil, err
	}
	return &program{enter: enter, body: body, slots: len(fn.slots), outside: c.varNames}, nil
}

func (b *block) statements(nodes []node) ([]stmt, error) {
	var out []stmt
	for _, n := range nodes {
		st, err := b.statement(n)
		if err != nil {
			return nil, err
		}
		if st != nil {
			out = append(out, st)
		}
	}
	return out, nil
}

func (b *block) statement(n node) (stmt, error) {
	switch n := n.(type) {
	case *outputNode:
		return b.output(n)
	case *ifNode:
		return b.ifStmt(n)
	case *forNode:
		return b.forStmt(n)
	case *assignNode:
		val, err := b.expr(n.val)
		if err != nil {
			return nil, err
		}
		t, err := b.target(n.target)
		return &setStmt{t, val}, err
	case *assignBlockNode:
		return b.setBlock(n)
	case *macroNode:
		code, err := b.macro(n)
		if err != nil {
			return nil, err
		}
		ref, err := b.ref(n.name)
		return &macroStmt{ref, code}, err
	case *callBlockNode:
		code, err := b.macro(&n.macro)
		if err != nil {
			return nil, err
		}
		if n.call == nil {
			return &generationStmt{code}, nil
		}
		call, err := b.call(n.call, code)
		return &callStmt{call}, err
	case *filterBlockNode:
		in := b.inner(b.fn())
		in.sym.visitAll(n.body, []node{n.filter})
		st := &filterStmt{enter: in.entering()}
		var err error
		if st.body, err = in.statements(n.body); err != nil {
			return nil, err
		}
		st.filter, st.text, err = in.filterChain(n.filter)
		return st, err
	case *withNode:
		return b.with(n)
	case *breakNode:
		if b.fn().loops == 0 {
			return nil, &SyntaxError{n.line, "break outside of a loop"}
		}
		return breakStmt{}, nil
	case *continueNode:
		if b.fn().loops == 0 {
			return nil, &SyntaxError{n.line, "continue outside of a loop"}
		}
		return continueStmt{}, nil
	}
	return nil, &UnsupportedError{"a statement of this kind"}
}

func (b *block) output(n *outputNode) (stmt, error) {
	st := &outputStmt{}
	for _, x := range n.items {
		e, err := b.expr(x)
		if err != nil {
			return nil, err
		}
		st.items = append(st.items, e)
	}
	return st, nil
}

func (b *block) ifStmt(n *ifNode) (stmt, error) {
	in := b.softened()
	st := &ifStmt{}
	for _, part := range slices.Concat([]node{n}, n.elifs) {
		p := part.(*ifNode)
		test, err := in.expr(p.test)
		if err != nil {
			return nil, err
		}
		body, err := in.statements(p.body)
		if err != nil {
			return nil, err
		}
		st.tests, st.bodies = append(st.tests, test), append(st.bodies, body)
	}
	var err error
	st.other, err = in.statements(n.other)
	return st, err
}

func (b *block) with(n *withNode) (stmt, error) {
	in := b.inner(b.fn())
	in.sym.visitAll(n.targets, n.body)
	st := &withStmt{enter: in.entering()}
	for i := range n.targets {
		val, err := b.expr(n.vals[i])
		if err != nil {
			return nil, err
		}
		t, err := in.target(n.targets[i])
		if err != nil {
			return nil, err
		}
		st.sets = append(st.sets, setStmt{t, val})
	}
	var err error
	st.body, err = in.statements(n.body)
	return st, err
}

func (b *block) setBlock(n *assignBlockNode) (stmt, error) {
	in := b.inner(b.fn())
	in.sym.visitAll(n.body)
	st := &setBlockStmt{enter: in.entering()}
	var err error
	if st.body, err = in.statements(n.body); err != nil {
		return nil, err
	}
	if st.target, err = b.target(n.target); err != nil {
		return nil, err
	}
	if n.filter != nil {
		st.filter, st.text, err = in.filterChain(n.filter)
	}
	return st, err
}

// filterChain compiles the filters of a block, and gives where the block's text is put.
func (b *block) filterChain(n node) (expr, *textExpr, error) {
	text := &textExpr{}
	first := n.(*filterNode)
	for {
		f, ok := first.x.(*filterNode)
		if !ok {
			break
		}
		first = f
	}
	e, err := b.filterOver(n.(*filterNode), first, text)
	return e, text, err
}

// target compiles what gets a value.
func (b *block) target(n node) (target, error) {
	switch n := n.(type) {
	case *nameNode:
		ref, err := b.ref(n.name)
		return &nameTarget{ref}, err
	case *nsrefNode:
		ref, err := b.ref(n.name)
		return &attrTarget{ref, n.attr}, err
	case *tupleNode:
		t := &tupleTarget{}
		for _, x := range n.items {
			sub, err := b.target(x)
			if err != nil {
				return nil, err
			}
			t.items = append(t.items, sub)
		}
		return t, nil
	}
	return nil, &UnsupportedError{"a target of this kind"}
}

// macro compiles a macro, or the body of a call block.
func (b *block) macro(n *macroNode) (*macroCode, error) {
	fn := newFunction(b.fn())
	in := b.inner(fn)
	analyse := func() {
		for _, p := range n.params {
			in.sym.visit(p, false)
		}
		in.sym.visitAll(n.defaults, n.body)
	}
	analyse()
	code := &macroCode{name: n.name}
	explicit := -1
	own := map[string]bool{}
	for i, p := range n.params {
		if p.name == "caller" {
			explicit = i
		}
		own[p.name] = true
		code.names = append(code.names, p.name)
		ref, err := in.ref(p.name)
		if err != nil {
			return nil, err
		}
		code.slots = append(code.slots, ref.slot)
	}
	special := undeclared(n.body, "caller", "kwargs", "varargs")
	code.caller, code.kwargs, code.varargs = -1, -1, -1
	if special["caller"] {
		code.wantsCaller = true
		if explicit < 0 {
			code.caller = fn.slot(in.sym.param("caller"))
		} else if explicit < len(n.params)-len(n.defaults) {
			return nil, &SyntaxError{n.line, "the parameter caller needs a default"}
		}
	}
	code.explicitCaller = own["caller"]
	if special["kwargs"] && !own["kwargs"] {
		code.kwargs = fn.slot(in.sym.param("kwargs"))
	}
	if special["varargs"] && !own["varargs"] {
		code.varargs = fn.slot(in.sym.param("varargs"))
	}
	analyse()
	code.enter = in.entering()
	for _, d := range n.defaults {
		e, err := in.expr(d)
		if err != nil {
			return nil, err
		}
		code.defaults = append(code.defaults, e)
	}
	var err error
	if code.body, err = in.statements(n.body); err != nil {
		return nil, err
	}
	code.size = len(fn.slots)
	return code, nil
}

// forStmt compiles a loop.
func (b *block) forStmt(n *forNode) (stmt, error) {
	fn := b.fn()
	if n.recursive {
		fn = newFunction(b.fn())
	}
	in, other := b.inner(fn), b.inner(fn)
	code := &forCode{loop: -1, recursive: n.recursive}
	if n.recursive || undeclared(n.body, "loop")["loop"] {
		code.loop = fn.slot(in.sym.param("loop"))
	}
	in.sym.visit(n.target, true)
	in.sym.visitAll(n.body)
	other.sym.visitAll(n.other)
	var assigned error
	walk(n, func(x node) {
		if x, ok := x.(*nameNode); ok && x.ctx == store && x.name == "loop" {
			assigned = &SyntaxError{x.line, "the variable loop cannot be set inside of a loop"}
		}
	})
	if assigned != nil {
		return nil, assigned
	}
	var err error
	if n.test != nil {
		if code.test, err = b.loopTest(n); err != nil {
			return nil, err
		}
	}
	if code.iter, err = b.expr(n.iter); err != nil {
		return nil, err
	}
	if code.target, err = in.target(n.target); err != nil {
		return nil, err
	}
	code.enter, code.enterOther = in.entering(), other.entering()
	fn.loops++
	code.body, err = in.statements(n.body)
	fn.loops--
	if err != nil {
		return nil, err
	}
	if code.other, err = other.statements(n.other); err != nil {
		return nil, err
	}
	code.hasOther = n.other != nil
	if t, ok := code.target.(*nameTarget); ok && t.ref.hops == 0 {
		code.slot = t.ref.slot
	} else {
		code.slot = -1
	}
	code.size = len(fn.slots)
	return &forStmt{code}, nil
}

// loopTest compiles a loop's condition, a function of its own.
func (b *block) loopTest(n *forNode) (*testCode, error) {
	fn := newFunction(b.fn())
	in := b.inner(fn)
	in.sym.visit(n.target, true)
	in.sym.visit(n.test, false)
	code := &testCode{enter: in.entering()}
	var err error
	if code.target, err = in.target(n.target); err != nil {
		return nil, err
	}
	code.test, err = in.expr(n.test)
	code.size = len(fn.slots)
	return code, err
}
