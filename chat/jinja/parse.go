package jinja

import "fmt"

// parser makes a syntax tree of tokens.
type parser struct {
	tokens []token
	pos    int
	depth  int // of nested statements and expressions
}

// maxNesting bounds how deep statements and expressions may stand in one another; the
// deepest of real templates have 14.
const maxNesting = 150

func parse(src string) (*templateNode, error) {
	tokens, err := lex(src)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens}
	body, err := p.statements(nil)
	if err != nil {
		return nil, err
	}
	return &templateNode{body}, nil
}

func (p *parser) cur() *token { return &p.tokens[p.pos] }

func (p *parser) next() *token {
	t := &p.tokens[p.pos]
	if t.kind != tokEOF {
		p.pos++
	}
	return t
}

func (p *parser) look() *token { return &p.tokens[min(p.pos+1, len(p.tokens)-1)] }

func (t *token) isName(s string) bool { return t.kind == tokName && t.text == s }
func (t *token) isOp(s string) bool   { return t.kind == tokOp && t.text == s }

func (p *parser) skipName(s string) bool {
	if p.cur().isName(s) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) skipOp(s string) bool {
	if p.cur().isOp(s) {
		p.pos++
		return true
	}
	return false
}

func (p *parser) fail(format string, args ...any) error {
	return &SyntaxError{p.cur().line, fmt.Sprintf(format, args...)}
}

func (p *parser) expect(k tokenKind, what string) (*token, error) {
	if p.cur().kind != k {
		return nil, p.fail("%s is expected, not %s", what, p.cur())
	}
	return p.next(), nil
}

func (p *parser) expectOp(op string) error {
	if !p.skipOp(op) {
		return p.fail("%s is expected, not %s", op, p.cur())
	}
	return nil
}

func (p *parser) expectName(name string) error {
	if !p.skipName(name) {
		return p.fail("%s is expected, not %s", name, p.cur())
	}
	return nil
}

// enter counts one level of nesting; the caller leaves it with p.depth--.
func (p *parser) enter() error {
	if p.depth++; p.depth > maxNesting {
		return p.fail("more than %d levels in one another", maxNesting)
	}
	return nil
}

// statements reads up to one of the tags end, of which it leaves the name to be read, or to
// the end of the template where there are none.
func (p *parser) statements(end []string) ([]node, error) {
	if err := p.enter(); err != nil {
		return nil, err
	}
	defer func() { p.depth-- }()
	var body, out []node
	flush := func() {
		if len(out) > 0 {
			body = append(body, &outputNode{out})
			out = nil
		}
	}
	for {
		switch t := p.cur(); t.kind {
		case tokEOF:
			if end != nil {
				return nil, p.fail("the template ends where %s is expected", end[len(end)-1])
			}
			flush()
			return body, nil
		case tokData:
			p.next()
			out = append(out, &dataNode{t.text})
		case tokVarBegin:
			p.next()
			x, err := p.tuple(tupleOpts{cond: true})
			if err != nil {
				return nil, err
			}
			out = append(out, x)
			if _, err := p.expect(tokVarEnd, "}}"); err != nil {
				return nil, err
			}
		default: // only tokBlockBegin stands between tags
			flush()
			p.next()
			for _, name := range end {
				if p.cur().isName(name) {
					return body, nil
				}
			}
			n, err := p.statement()
			if err != nil {
				return nil, err
			}
			if n != nil {
				body = append(body, n)
			}
			if _, err := p.expect(tokBlockEnd, "%}"); err != nil {
				return nil, err
			}
		}
	}
}

// body reads what a statement has inside, up to one of end, whose name it returns. A colon
// may stand before it.
func (p *parser) body(end ...string) ([]node, string, error) {
	p.skipOp(":")
	if _, err := p.expect(tokBlockEnd, "%}"); err != nil {
		return nil, "", err
	}
	body, err := p.statements(end)
	if err != nil {
		return nil, "", err
	}
	return body, p.next().text, nil
}

func (p *parser) statement() (node, error) {
	t := p.cur()
	if t.kind != tokName {
		return nil, p.fail("the name of a tag is expected, not %s", t)
	}
	switch t.text {
	case "for":
		return p.parseFor()
	case "if":
		return p.parseIf()
	case "set":
		return p.parseSet()
	case "macro":
		return p.parseMacro()
	case "call":
		return p.parseCallBlock()
	case "filter":
		return p.parseFilterBlock()
	case "with":
		return p.parseWith()
	case "print":
		return p.parsePrint()
	case "generation":
		p.next()
		n := &callBlockNode{macro: macroNode{line: t.line}}
		var err error
		n.macro.body, _, err = p.body("endgeneration")
		return n, err
	case "break":
		p.next()
		return &breakNode{t.line}, nil
	case "continue":
		p.next()
		return &continueNode{t.line}, nil
	case "block", "extends", "include", "from", "import", "autoescape":
		return nil, &UnsupportedError{"{% " + t.text + " %}"}
	}
	return nil, p.fail("unknown tag %q", t.text)
}

func (p *parser) parseFor() (node, error) {
	n := &forNode{line: p.next().line}
	var err error
	if n.target, err = p.assignTarget("in", false); err != nil {
		return nil, err
	}
	if err := p.expectName("in"); err != nil {
		return nil, err
	}
	if n.iter, err = p.tuple(tupleOpts{end: "recursive"}); err != nil {
		return nil, err
	}
	if p.skipName("if") {
		if n.test, err = p.expression(true); err != nil {
			return nil, err
		}
	}
	n.recursive = p.skipName("recursive")
	var end string
	if n.body, end, err = p.body("else", "endfor"); err != nil {
		return nil, err
	}
	if end == "else" {
		if n.other, _, err = p.body("endfor"); err != nil {
			return nil, err
		}
	}
	return n, nil
}

func (p *parser) parseIf() (node, error) {
	p.next()
	n := &ifNode{}
	part := n
	for {
		var err error
		if part.test, err = p.tuple(tupleOpts{}); err != nil {
			return nil, err
		}
		var end string
		if part.body, end, err = p.body("elif", "else", "endif"); err != nil {
			return nil, err
		}
		switch end {
		case "elif":
			part = &ifNode{}
			n.elifs = append(n.elifs, part)
			continue
		case "else":
			if n.other, _, err = p.body("endif"); err != nil {
				return nil, err
			}
		}
		return n, nil
	}
}

func (p *parser) parseSet() (node, error) {
	p.next()
	target, err := p.assignTarget("", true)
	if err != nil {
		return nil, err
	}
	if p.skipOp("=") {
		val, err := p.tuple(tupleOpts{cond: true})
		return &assignNode{target, val}, err
	}
	n := &assignBlockNode{target: target}
	if n.filter, err = p.filters(nil, false); err != nil {
		return nil, err
	}
	n.body, _, err = p.body("endset")
	return n, err
}

func (p *parser) parseWith() (node, error) {
	p.next()
	n := &withNode{}
	for p.cur().kind != tokBlockEnd {
		if len(n.targets) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		target, err := p.assignTarget("", false)
		if err != nil {
			return nil, err
		}
		setCtx(target, param)
		if err := p.expectOp("="); err != nil {
			return nil, err
		}
		val, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.targets, n.vals = append(n.targets, target), append(n.vals, val)
	}
	var err error
	n.body, _, err = p.body("endwith")
	return n, err
}

func (p *parser) parsePrint() (node, error) {
	p.next()
	n := &outputNode{}
	for p.cur().kind != tokBlockEnd {
		if len(n.items) > 0 {
			if err := p.expectOp(","); err != nil {
				return nil, err
			}
		}
		x, err := p.expression(true)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, x)
	}
	return n, nil
}

// signature reads the parameters of a macro or a call block.
func (p *parser) signature(n *macroNode) error {
	if err := p.expectOp("("); err != nil {
		return err
	}
	for !p.cur().isOp(")") {
		if len(n.params) > 0 {
			if err := p.expectOp(","); err != nil {
				return err
			}
		}
		name, err := p.targetName()
		if err != nil {
			return err
		}
		name.ctx = param
		if p.skipOp("=") {
			d, err := p.expression(true)
			if err != nil {
				return err
			}
			n.defaults = append(n.defaults, d)
		} else if len(n.defaults) > 0 {
			return p.fail("a parameter without a default behind one with a default")
		}
		for _, other := range n.params {
			if other.name == name.name {
				return p.fail("two parameters are named %s", name.name)
			}
		}
		n.params = append(n.params, name)
	}
	return p.expectOp(")")
}

func (p *parser) parseMacro() (node, error) {
	n := &macroNode{line: p.next().line}
	name, err := p.targetName()
	if err != nil {
		return nil, err
	}
	n.name = name.name
	if err := p.signature(n); err != nil {
		return nil, err
	}
	n.body, _, err = p.body("endmacro")
	return n, err
}

func (p *parser) parseCallBlock() (node, error) {
	n := &callBlockNode{macro: macroNode{line: p.next().line}}
	if p.cur().isOp("(") {
		if err := p.signature(&n.macro); err != nil {
			return nil, err
		}
	}
	x, err := p.expression(true)
	if err != nil {
		return nil, err
	}
	call, ok := x.(*callNode)
	if !ok {
		return nil, p.fail("a call is expected")
	}
	n.call = call
	n.macro.body, _, err = p.body("endcall")
	return n, err
}

func (p *parser) parseFilterBlock() (node, error) {
	p.next()
	f, err := p.filters(nil, true)
	if err != nil {
		return nil, err
	}
	n := &filterBlockNode{filter: f}
	n.body, _, err = p.body("endfilter")
	return n, err
}

// targetName reads a name that gets a value.
func (p *parser) targetName() (*nameNode, error) {
	t, err := p.expect(tokName, "a name")
	if err != nil {
		return nil, err
	}
	n := &nameNode{t.text, store, t.line}
	if reserved(n.name) {
		return nil, p.fail("%s cannot be set", n.name)
	}
	return n, nil
}

func reserved(name string) bool {
	switch name {
	case "true", "false", "none", "True", "False", "None":
		return true
	}
	return false
}

// assignTarget reads what gets values: a name, names in a tuple, attributes of namespaces.
func (p *parser) assignTarget(end string, ns bool) (node, error) {
	t, err := p.tuple(tupleOpts{targets: true, end: end, ns: ns})
	if err != nil {
		return nil, err
	}
	if !canAssign(t) {
		return nil, p.fail("that cannot be set")
	}
	setCtx(t, store)
	return t, nil
}

func canAssign(n node) bool {
	switch n := n.(type) {
	case *nameNode:
		return !reserved(n.name)
	case *nsrefNode:
		return true
	case *tupleNode:
		for _, x := range n.items {
			if !canAssign(x) {
				return false
			}
		}
		return !n.list
	}
	return false
}

func setCtx(n node, ctx nameCtx) {
	walk(n, func(n node) {
		if n, ok := n.(*nameNode); ok {
			n.ctx = ctx
		}
	})
}
