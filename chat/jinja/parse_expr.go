package jinja

// tupleOpts says what tuple reads.
type tupleOpts struct {
	targets bool   // names and literals only, as they stand left of an assignment
	ns      bool   // of those, attributes of namespaces too
	cond    bool   // a if b else c
	end     string // a name that ends the tuple
	parens  bool   // the tuple stands in parentheses, and may be empty
}

// tuple reads one expression, or several with commas between them.
func (p *parser) tuple(o tupleOpts) (node, error) {
	var items []node
	for {
		if len(items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		t := p.cur()
		if t.kind == tokVarEnd || t.kind == tokBlockEnd || t.isOp(")") || o.end != "" && t.isName(o.end) {
			if len(items) == 0 && !o.parens {
				return nil, p.fail("an expression is expected, not %s", t)
			}
			return &tupleNode{items: items}, nil
		}
		var x node
		var err error
		if o.targets {
			x, err = p.primary(o.ns)
		} else {
			x, err = p.expression(o.cond)
		}
		if err != nil {
			return nil, err
		}
		items = append(items, x)
		if !p.cur().isOp(",") {
			if len(items) == 1 {
				return x, nil
			}
			return &tupleNode{items: items}, nil
		}
	}
}

// expression reads one; with cond it may be a if b else c.
func (p *parser) expression(cond bool) (node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	x, err := p.or()
	if err != nil || !cond {
		return x, err
	}
	for p.skipName("if") {
		c := &condNode{then: x}
		if c.test, err = p.or(); err != nil {
			return nil, err
		}
		if p.skipName("else") {
			if c.other, err = p.expression(true); err != nil {
				return nil, err
			}
		}
		x = c
		// Each level of a chain is one of the tree that is walked when it is rendered.
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer func() { p.depth-- }() //nolint:revive // as deep as the chain is long, until it returns
	}
	return x, nil
}

// maxTerms bounds the operands of one sum.
const maxTerms = 4096

// binary reads operands of one level, combined from the left.
func (p *parser) binary(sub func() (node, error), op func(*token) string) (node, error) {
	x, err := sub()
	depth := p.depth
	defer func() { p.depth = depth }()
	for n := 0; err == nil; n++ {
		if n > maxTerms {
			return nil, p.fail("more than %d operands", maxTerms)
		}
		o := op(p.cur())
		if o == "" {
			return x, nil
		}
		p.next()
		var right node
		if right, err = sub(); err != nil {
			break
		}
		// A sum of many is one node when it is compiled; other chains are as deep as long.
		if o != "+" {
			if err := p.enter(); err != nil {
				return nil, err
			}
		}
		x = &binNode{o, x, right}
	}
	return nil, err
}

func nameOp(name string) func(*token) string {
	return func(t *token) string {
		if t.isName(name) {
			return name
		}
		return ""
	}
}

func (p *parser) or() (node, error)  { return p.binary(p.and, nameOp("or")) }
func (p *parser) and() (node, error) { return p.binary(p.not, nameOp("and")) }

func (p *parser) not() (node, error) {
	if p.skipName("not") {
		if err := p.enter(); err != nil {
			return nil, err
		}
		defer func() { p.depth-- }()
		x, err := p.not()
		return &unaryNode{"not", x}, err
	}
	return p.compare()
}

func (p *parser) compare() (node, error) {
	x, err := p.math1()
	if err != nil {
		return nil, err
	}
	n := &compareNode{first: x}
	for {
		t := p.cur()
		switch {
		case t.kind == tokOp && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="),
			t.isName("in"):
			n.ops = append(n.ops, t.text)
			p.next()
		case t.isName("not") && p.look().isName("in"):
			n.ops = append(n.ops, "not in")
			p.pos += 2
		default:
			if n.ops == nil {
				return x, nil
			}
			return n, nil
		}
		right, err := p.math1()
		if err != nil {
			return nil, err
		}
		n.rest = append(n.rest, right)
	}
}

func opIn(ops ...string) func(*token) string {
	return func(t *token) string {
		if t.kind == tokOp {
			for _, o := range ops {
				if t.text == o {
					return o
				}
			}
		}
		return ""
	}
}

var (
	addOps = opIn("+", "-")
	mulOps = opIn("*", "/", "//", "%")
	powOps = opIn("**")
)

func (p *parser) math1() (node, error) { return p.binary(p.concat, addOps) }

func (p *parser) concat() (node, error) {
	x, err := p.math2()
	if err != nil || !p.cur().isOp("~") {
		return x, err
	}
	n := &concatNode{items: []node{x}}
	for p.skipOp("~") {
		if x, err = p.math2(); err != nil {
			return nil, err
		}
		n.items = append(n.items, x)
	}
	return n, nil
}

func (p *parser) math2() (node, error) { return p.binary(p.pow, mulOps) }
func (p *parser) pow() (node, error) {
	return p.binary(func() (node, error) { return p.unary(true) }, powOps)
}

func (p *parser) unary(filters bool) (node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var x node
	var err error
	switch {
	case p.skipOp("-"):
		x, err = p.unary(false)
		x = &unaryNode{"-", x}
	case p.skipOp("+"):
		x, err = p.unary(false)
		x = &unaryNode{"+", x}
	default:
		x, err = p.primary(false)
	}
	if err == nil {
		x, err = p.postfix(x)
	}
	if err != nil || !filters {
		return x, err
	}
	depth := p.depth
	defer func() { p.depth = depth }()
	for {
		if err := p.enter(); err != nil {
			return nil, err
		}
		switch t := p.cur(); {
		case t.isOp("|"):
			x, err = p.filters(x, false)
		case t.isName("is"):
			x, err = p.test(x)
		case t.isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) primary(ns bool) (node, error) {
	t := p.cur()
	switch t.kind {
	case tokName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constNode{True}, nil
		case "false", "False":
			return &constNode{False}, nil
		case "none", "None":
			return &constNode{None}, nil
		}
		if ns && p.skipOp(".") {
			attr, err := p.expect(tokName, "a name")
			if err != nil {
				return nil, err
			}
			return &nsrefNode{t.text, attr.text, t.line}, nil
		}
		return &nameNode{t.text, load, t.line}, nil
	case tokString:
		text := ""
		for p.cur().kind == tokString {
			text += p.next().text
		}
		return &constNode{Str(text)}, nil
	case tokInt, tokFloat:
		p.next()
		return &constNode{t.num}, nil
	}
	switch {
	case p.skipOp("("):
		x, err := p.tuple(tupleOpts{cond: true, parens: true})
		if err != nil {
			return nil, err
		}
		return x, p.expectOp(")")
	case p.skipOp("["):
		n := &tupleNode{list: true}
		for !p.cur().isOp("]") {
			if len(n.items) > 0 {
				if err := p.expectOp(","); err != nil {
					return nil, err
				}
				if p.cur().isOp("]") {
					break
				}
			}
			x, err := p.expression(true)
			if err != nil {
				return nil, err
			}
			n.items = append(n.items, x)
		}
		return n, p.expectOp("]")
	case p.skipOp("{"):
		n := &dictNode{}
		for !p.cur().isOp("}") {
			if len(n.keys) > 0 {
				if err := p.expectOp(","); err != nil {
					return nil, err
				}
				if p.cur().isOp("}") {
					break
				}
			}
			k, err := p.expression(true)
			if err != nil {
				return nil, err
			}
			if err := p.expectOp(":"); err != nil {
				return nil, err
			}
			v, err := p.expression(true)
			if err != nil {
				return nil, err
			}
			n.keys, n.vals = append(n.keys, k), append(n.vals, v)
		}
		return n, p.expectOp("}")
	}
	return nil, p.fail("unexpected %s", t)
}

// postfix reads attributes, subscripts and calls behind x.
func (p *parser) postfix(x node) (node, error) {
	depth := p.depth
	defer func() { p.depth = depth }()
	for {
		if err := p.enter(); err != nil {
			return nil, err
		}
		var err error
		switch {
		case p.skipOp("."):
			switch t := p.next(); t.kind {
			case tokName:
				x = &attrNode{x, t.text}
			case tokInt:
				x = &itemNode{x, &constNode{t.num}}
			default:
				return nil, p.fail("a name or a number is expected behind a dot")
			}
		case p.skipOp("["):
			x, err = p.subscript(x)
		case p.cur().isOp("("):
			x, err = p.call(x)
		default:
			return x, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (p *parser) subscript(x node) (node, error) {
	var keys []node
	for !p.cur().isOp("]") {
		if len(keys) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		k, err := p.sliceOrKey()
		if err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	p.next()
	if len(keys) == 1 {
		return &itemNode{x, keys[0]}, nil
	}
	for _, k := range keys {
		if _, ok := k.(*sliceNode); ok {
			return nil, &UnsupportedError{"several slices in one subscript"}
		}
	}
	return &itemNode{x, &tupleNode{items: keys}}, nil
}

func (p *parser) sliceOrKey() (node, error) {
	n := &sliceNode{}
	var err error
	if !p.cur().isOp(":") {
		if n.from, err = p.expression(true); err != nil {
			return nil, err
		}
		if !p.cur().isOp(":") {
			return n.from, nil
		}
	}
	p.next()
	if t := p.cur(); !t.isOp(":") && !t.isOp("]") && !t.isOp(",") {
		if n.to, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	if p.skipOp(":") {
		if t := p.cur(); !t.isOp("]") && !t.isOp(",") {
			if n.step, err = p.expression(true); err != nil {
				return nil, err
			}
		}
	}
	return n, nil
}
