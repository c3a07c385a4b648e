package jinja

// callArgs reads the arguments of a call, a filter or a test.
func (p *parser) callArgs() (a args0, err error) {
	if err := p.expectOp("("); err != nil {
		return a, err
	}
	ensure := func(ok bool) error {
		if !ok {
			return p.fail("arguments in an order that a call cannot have")
		}
		return nil
	}
	for comma := false; !p.cur().isOp(")"); comma = true {
		if comma {
			if err := p.expectOp(","); err != nil {
				return a, err
			}
			if p.cur().isOp(")") {
				break
			}
		}
		switch t := p.cur(); {
		case p.skipOp("*"):
			if err := ensure(a.dyn == nil && a.dynKw == nil); err != nil {
				return a, err
			}
			a.dyn, err = p.expression(true)
		case p.skipOp("**"):
			if err := ensure(a.dynKw == nil); err != nil {
				return a, err
			}
			a.dynKw, err = p.expression(true)
		case t.kind == tokName && p.look().isOp("="):
			if err := ensure(a.dynKw == nil); err != nil {
				return a, err
			}
			p.pos += 2
			k := kwNode{name: t.text}
			for _, other := range a.kw {
				if other.name == k.name {
					return a, p.fail("the argument %s is given twice", k.name)
				}
			}
			k.val, err = p.expression(true)
			a.kw = append(a.kw, k)
		default:
			if err := ensure(a.dyn == nil && a.dynKw == nil && a.kw == nil); err != nil {
				return a, err
			}
			var x node
			x, err = p.expression(true)
			a.pos = append(a.pos, x)
		}
		if err != nil {
			return a, err
		}
	}
	p.next()
	return a, nil
}

func (p *parser) call(x node) (node, error) {
	line := p.cur().line
	args, err := p.callArgs()
	return &callNode{x, args, line}, err
}

// dotted reads the name of a filter or test.
func (p *parser) dotted() (string, error) {
	t, err := p.expect(tokName, "a name")
	if err != nil {
		return "", err
	}
	name := t.text
	for p.skipOp(".") {
		if t, err = p.expect(tokName, "a name"); err != nil {
			return "", err
		}
		name += "." + t.text
	}
	return name, nil
}

// filters reads the filters behind x; inline, the first stands without a bar.
func (p *parser) filters(x node, inline bool) (node, error) {
	depth := p.depth
	defer func() { p.depth = depth }()
	for inline || p.skipOp("|") {
		inline = false
		if err := p.enter(); err != nil {
			return nil, err
		}
		f := &filterNode{x: x, line: p.cur().line}
		var err error
		if f.name, err = p.dotted(); err != nil {
			return nil, err
		}
		if p.cur().isOp("(") {
			if f.args, err = p.callArgs(); err != nil {
				return nil, err
			}
		}
		x = f
	}
	return x, nil
}

func (p *parser) test(x node) (node, error) {
	n := &testNode{x: x, line: p.next().line}
	negated := p.skipName("not")
	var err error
	if n.name, err = p.dotted(); err != nil {
		return nil, err
	}
	switch t := p.cur(); {
	case t.isOp("("):
		n.args, err = p.callArgs()
	case t.kind == tokName && (t.text == "else" || t.text == "or" || t.text == "and"):
	case t.isName("is"):
		err = p.fail("tests cannot be chained with is")
	case t.kind == tokName || t.kind == tokString || t.kind == tokInt || t.kind == tokFloat || t.isOp("[") || t.isOp("{"):
		var arg node
		if arg, err = p.primary(false); err == nil {
			arg, err = p.postfix(arg)
		}
		n.args.pos = []node{arg}
	}
	if err != nil {
		return nil, err
	}
	if negated {
		return &unaryNode{"not", n}, nil
	}
	return n, nil
}
