package jinja

import (
	"errors"
	"slices"
)

func (b *block) expr(n node) (expr, error) {
	switch n := n.(type) {
	case *constNode:
		return &constExpr{n.val}, nil
	case *dataNode:
		return &constExpr{Str(n.text)}, nil
	case *nameNode:
		ref, err := b.ref(n.name)
		if err == nil && ref.hops == 0 {
			return &localExpr{ref.slot, n.name}, nil
		}
		return &nameExpr{ref, n.name}, err
	case *tupleNode:
		items, err := b.exprs(n.items)
		return &seqExpr{items, n.list}, err
	case *dictNode:
		keys, err := b.exprs(n.keys)
		if err != nil {
			return nil, err
		}
		vals, err := b.exprs(n.vals)
		return &dictExpr{keys, vals}, err
	case *condNode:
		return b.cond(n)
	case *binNode:
		return b.binary(n)
	case *unaryNode:
		x, err := b.expr(n.x)
		if err != nil {
			return nil, err
		}
		if n.op == "not" {
			return &notExpr{x}, nil
		}
		return &unaryExpr{n.op, x}, nil
	case *concatNode:
		items, err := b.exprs(n.items)
		return &concatExpr{items}, err
	case *compareNode:
		first, err := b.expr(n.first)
		if err != nil {
			return nil, err
		}
		if c, ok := n.rest[0].(*constNode); ok && len(n.ops) == 1 && c.val.k == str && (n.ops[0] == "==" || n.ops[0] == "!=") {
			return &isTextExpr{first, c.val.s, n.ops[0] == "!="}, nil
		}
		rest, err := b.exprs(n.rest)
		return &compareExpr{first, n.ops, rest}, err
	case *attrNode:
		x, err := b.expr(n.x)
		return newAttrExpr(x, n.name), err
	case *itemNode:
		return b.item(n)
	case *filterNode:
		return b.filter(n)
	case *testNode:
		return b.test(n)
	case *callNode:
		return b.callOrMethod(n)
	}
	return nil, &UnsupportedError{"an expression of this kind"}
}

func (b *block) exprs(nodes []node) ([]expr, error) {
	out := make([]expr, len(nodes))
	for i, n := range nodes {
		var err error
		if out[i], err = b.expr(n); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// optional compiles n, where nil stands for None.
func (b *block) optional(n node) (expr, error) {
	if n == nil {
		return &constExpr{None}, nil
	}
	return b.expr(n)
}

func (b *block) cond(n *condNode) (expr, error) {
	in := b.softened()
	test, err := in.expr(n.test)
	if err != nil {
		return nil, err
	}
	then, err := in.expr(n.then)
	if err != nil {
		return nil, err
	}
	if n.other == nil {
		return &condExpr{test, then, &constExpr{undef("the other branch of an if without else")}}, nil
	}
	other, err := in.expr(n.other)
	return &condExpr{test, then, other}, err
}

func (b *block) binary(n *binNode) (expr, error) {
	if n.op == "+" {
		// A sum of many becomes one node, which joins strings at once.
		var terms []node
		var x node = n
		for {
			sum, ok := x.(*binNode)
			if !ok || sum.op != "+" {
				break
			}
			terms = append(terms, sum.right)
			x = sum.left
		}
		terms = append(terms, x)
		slices.Reverse(terms)
		items, err := b.exprs(terms)
		return &sumExpr{items}, err
	}
	left, err := b.expr(n.left)
	if err != nil {
		return nil, err
	}
	right, err := b.expr(n.right)
	if wrong := (*SyntaxError)(nil); errors.As(err, &wrong) && (n.op == "and" || n.op == "or") {
		// Behind a constant that decides, Jinja never looks at it.
		err = &UnsupportedError{err.Error()}
	}
	switch n.op {
	case "and":
		return &andExpr{left, right}, err
	case "or":
		return &orExpr{left, right}, err
	}
	return &binExpr{n.op, left, right}, err
}

func (b *block) item(n *itemNode) (expr, error) {
	x, err := b.expr(n.x)
	if err != nil {
		return nil, err
	}
	switch k := n.key.(type) {
	case *sliceNode:
		var parts [3]expr
		for i, p := range []node{k.from, k.to, k.step} {
			if parts[i], err = b.optional(p); err != nil {
				return nil, err
			}
		}
		return &sliceExpr{x, parts, mayBeConstant(n.x)}, nil
	case *constNode:
		if k.val.k == str {
			return &fieldExpr{x, k.val.s}, nil
		}
	}
	key, err := b.expr(n.key)
	return &itemExpr{x, key}, err
}

// mayBeConstant tells whether Jinja may know n before it renders: what stands in a constant it knows, too.
func mayBeConstant(n node) bool {
	for {
		switch x := n.(type) {
		case *nameNode, *callNode:
			return false
		case *attrNode:
			n = x.x
		case *itemNode:
			n = x.x
		default:
			return true
		}
	}
}

// arguments are a call's arguments, compiled.
type arguments struct {
	pos   []expr
	kw    []kwExpr
	dyn   expr
	dynKw expr
}

type kwExpr struct {
	name string
	val  expr
}

func (b *block) arguments(a *args0) (out arguments, err error) {
	if out.pos, err = b.exprs(a.pos); err != nil {
		return
	}
	for _, k := range a.kw {
		v, err := b.expr(k.val)
		if err != nil {
			return out, err
		}
		out.kw = append(out.kw, kwExpr{k.name, v})
	}
	if a.dyn != nil {
		if out.dyn, err = b.expr(a.dyn); err != nil {
			return
		}
	}
	if a.dynKw != nil {
		out.dynKw, err = b.expr(a.dynKw)
	}
	return
}

func (b *block) callOrMethod(n *callNode) (expr, error) {
	at, ok := n.x.(*attrNode)
	if !ok {
		return b.call(n, nil)
	}
	args, err := b.arguments(&n.args)
	if err != nil {
		return nil, err
	}
	x, err := b.expr(at.x)
	return &methodExpr{newAttrExpr(x, at.name), args}, err
}

// call compiles a call; caller is the body of a call block, or nil.
func (b *block) call(n *callNode, caller *macroCode) (*callExpr, error) {
	args, err := b.arguments(&n.args)
	if err != nil {
		return nil, err
	}
	f, err := b.expr(n.x)
	return &callExpr{f, args, caller}, err
}

func (b *block) filter(n *filterNode) (expr, error) { return b.filterOver(n, nil, nil) }

// filterOver compiles a chain of filters, the first of them over text where it is given.
func (b *block) filterOver(n, first *filterNode, text *textExpr) (expr, error) {
	var x expr
	var err error
	switch {
	case n == first:
		x = text
	case first != nil:
		x, err = b.filterOver(n.x.(*filterNode), first, text)
	default:
		x, err = b.expr(n.x)
	}
	if err != nil {
		return nil, err
	}
	given, err := b.arguments(&n.args)
	if err != nil {
		return nil, err
	}
	f, ok := filters[n.name]
	if !ok {
		if refusedFilters[n.name] {
			return nil, &UnsupportedError{"the filter " + n.name}
		}
		if !b.soft {
			return nil, &SyntaxError{n.line, "there is no filter " + n.name}
		}
		f = func(*state, Value, *args) (Value, error) {
			return Value{}, &Error{"there is no filter " + n.name}
		}
	}
	if n.name == "tojson" && given.plain() && len(given.pos) == 0 && len(given.kw) == 0 {
		return &tojsonExpr{filterExpr{f, x, given}}, nil
	}
	return &filterExpr{f, x, given}, nil
}

func (a *arguments) plain() bool { return a.dyn == nil && a.dynKw == nil }

func (b *block) test(n *testNode) (expr, error) {
	x, err := b.expr(n.x)
	if err != nil {
		return nil, err
	}
	given, err := b.arguments(&n.args)
	if err != nil {
		return nil, err
	}
	f, ok := tests[n.name]
	if !ok {
		if !b.soft {
			return nil, &SyntaxError{n.line, "there is no test " + n.name}
		}
		f = func(*state, Value, *args) (bool, error) {
			return false, &Error{"there is no test " + n.name}
		}
	}
	return &testExpr{f, x, given}, nil
}
