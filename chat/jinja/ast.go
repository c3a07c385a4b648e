package jinja

// node is a node of a template's syntax tree. Statements and expressions are of one kind, so
// that what walks over all of them (which names are read and set) is written once.
type node interface {
	// children calls f for each node below, in the order in which Jinja's own tree has them:
	// what a name refers to depends on it.
	children(f func(node))
}

type nameCtx uint8

const (
	load nameCtx = iota
	store
	param
)

type (
	nameNode struct {
		name string
		ctx  nameCtx
		line int
	}
	// nsrefNode is the target of an assignment to an attribute of a namespace.
	nsrefNode struct {
		name, attr string
		line       int
	}
	constNode struct{ val Value }
	dataNode  struct{ text string }
	tupleNode struct {
		items []node
		list  bool // [a, b], not (a, b)
	}
	dictNode struct{ keys, vals []node }
	condNode struct{ test, then, other node } // other may be nil
	binNode  struct {
		op          string
		left, right node
	}
	unaryNode struct {
		op string // not + -
		x  node
	}
	concatNode  struct{ items []node }
	compareNode struct {
		first node
		ops   []string
		rest  []node
	}
	attrNode struct {
		x    node
		name string
	}
	itemNode struct{ x, key node }
	// sliceNode's parts may be nil.
	sliceNode struct{ from, to, step node }
	kwNode    struct {
		name string
		val  node
	}
	callNode struct {
		x    node
		args args0
		line int
	}
	filterNode struct {
		x    node // nil where the filter is of a block
		name string
		args args0
		line int
	}
	testNode struct {
		x    node
		name string
		args args0
		line int
	}
	// args0 are a call's arguments; dyn and dynKw may be nil.
	args0 struct {
		pos   []node
		kw    []kwNode
		dyn   node
		dynKw node
	}
)

type (
	templateNode struct{ body []node }
	outputNode   struct{ items []node }
	forNode      struct {
		target, iter node
		body, other  []node
		test         node // may be nil
		recursive    bool
		line         int
	}
	ifNode struct {
		test  node
		body  []node
		elifs []node // ifNodes
		other []node
	}
	macroNode struct {
		name     string
		params   []*nameNode
		defaults []node // of the last parameters
		body     []node
		line     int
	}
	// callBlockNode's call is nil for {% generation %}, whose text is its body's.
	callBlockNode struct {
		macro macroNode
		call  *callNode
	}
	filterBlockNode struct {
		body   []node
		filter node
	}
	withNode struct {
		targets, vals []node
		body          []node
	}
	assignNode      struct{ target, val node }
	assignBlockNode struct {
		target node
		filter node // may be nil
		body   []node
	}
	breakNode    struct{ line int }
	continueNode struct{ line int }
)

func each(f func(node), lists ...[]node) {
	for _, l := range lists {
		for _, n := range l {
			if n != nil {
				f(n)
			}
		}
	}
}

func (n *nameNode) children(func(node))    {}
func (n *nsrefNode) children(func(node))   {}
func (n *constNode) children(func(node))   {}
func (n *dataNode) children(func(node))    {}
func (n *tupleNode) children(f func(node)) { each(f, n.items) }
func (n *dictNode) children(f func(node)) {
	for i := range n.keys {
		f(n.keys[i])
		f(n.vals[i])
	}
}
func (n *condNode) children(f func(node))    { each(f, []node{n.test, n.then, n.other}) }
func (n *binNode) children(f func(node))     { each(f, []node{n.left, n.right}) }
func (n *unaryNode) children(f func(node))   { f(n.x) }
func (n *concatNode) children(f func(node))  { each(f, n.items) }
func (n *compareNode) children(f func(node)) { each(f, []node{n.first}, n.rest) }
func (n *attrNode) children(f func(node))    { f(n.x) }
func (n *itemNode) children(f func(node))    { each(f, []node{n.x, n.key}) }
func (n *sliceNode) children(f func(node))   { each(f, []node{n.from, n.to, n.step}) }

func (a *args0) children(f func(node)) {
	each(f, a.pos)
	for _, k := range a.kw {
		f(k.val)
	}
	each(f, []node{a.dyn, a.dynKw})
}
func (n *callNode) children(f func(node)) { f(n.x); n.args.children(f) }
func (n *filterNode) children(f func(node)) {
	each(f, []node{n.x})
	n.args.children(f)
}
func (n *testNode) children(f func(node)) { f(n.x); n.args.children(f) }

func (n *templateNode) children(f func(node)) { each(f, n.body) }
func (n *outputNode) children(f func(node))   { each(f, n.items) }
func (n *forNode) children(f func(node)) {
	each(f, []node{n.target, n.iter}, n.body, n.other, []node{n.test})
}
func (n *ifNode) children(f func(node)) { each(f, []node{n.test}, n.body, n.elifs, n.other) }
func (n *macroNode) children(f func(node)) {
	for _, p := range n.params {
		f(p)
	}
	each(f, n.defaults, n.body)
}
func (n *callBlockNode) children(f func(node)) {
	if n.call != nil {
		f(n.call)
	}
	n.macro.children(f)
}
func (n *filterBlockNode) children(f func(node)) { each(f, n.body, []node{n.filter}) }
func (n *withNode) children(f func(node))        { each(f, n.targets, n.vals, n.body) }
func (n *assignNode) children(f func(node))      { each(f, []node{n.target, n.val}) }
func (n *assignBlockNode) children(f func(node)) { each(f, []node{n.target, n.filter}, n.body) }
func (n *breakNode) children(func(node))         {}
func (n *continueNode) children(func(node))      {}

// each skips nil interfaces; a typed nil never gets into a tree.

// walk calls f for n and all nodes below.
func walk(n node, f func(node)) {
	f(n)
	n.children(func(c node) { walk(c, f) })
}
