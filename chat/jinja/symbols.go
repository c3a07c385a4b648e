package jinja

// Which variable a name means is settled when the template is compiled, and as Jinja
// settles it, whose rules are not those of the text's order: what is set anywhere in a
// block is that block's from its beginning, with the value that the name had outside.

// ident is one variable of a function: a name at a depth of nested blocks. Blocks beside
// one another use the same variable.
type ident struct {
	level int
	name  string
}

type loadKind uint8

const (
	loadParam     loadKind = iota // it gets its value otherwise
	loadResolve                   // from outside of the template
	loadAlias                     // of the block around
	loadUndefined                 // none
)

type loading struct {
	kind  loadKind
	alias ident
	owner *function // of alias
}

// symbols are the names of one block.
type symbols struct {
	level  int
	parent *symbols
	fn     *function // whose variables they are
	refs   map[string]ident
	loads  map[ident]loading
	order  []ident // of loads, as they came
	stores map[string]bool
}

func newSymbols(parent *symbols, fn *function) *symbols {
	s := &symbols{parent: parent, fn: fn, refs: map[string]ident{}, loads: map[ident]loading{}, stores: map[string]bool{}}
	if parent != nil {
		s.level = parent.level + 1
	}
	return s
}

func (s *symbols) clone() *symbols {
	c := newSymbols(s.parent, s.fn)
	c.level = s.level
	c.merge(s)
	return c
}

func (s *symbols) merge(o *symbols) {
	for name, id := range o.refs {
		s.refs[name] = id
	}
	for _, id := range o.order {
		s.setLoad(id, o.loads[id])
	}
	for name := range o.stores {
		s.stores[name] = true
	}
}

func (s *symbols) setLoad(id ident, l loading) {
	if _, ok := s.loads[id]; !ok {
		s.order = append(s.order, id)
	}
	s.loads[id] = l
}

func (s *symbols) define(name string, l loading) ident {
	id := ident{s.level, name}
	s.refs[name] = id
	s.setLoad(id, l)
	return id
}

func (s *symbols) findRef(name string) (ident, bool) {
	id, _, ok := s.lookup(name)
	return id, ok
}

// lookup gives the variable that name means, and the function that has it.
func (s *symbols) lookup(name string) (ident, *function, bool) {
	for ; s != nil; s = s.parent {
		if id, ok := s.refs[name]; ok {
			return id, s.fn, true
		}
	}
	return ident{}, nil, false
}

func (s *symbols) outer(name string) (loading, bool) {
	if s.parent == nil {
		return loading{}, false
	}
	id, fn, ok := s.parent.lookup(name)
	return loading{loadAlias, id, fn}, ok
}

// store notes that the block sets name.
func (s *symbols) store(name string) {
	s.stores[name] = true
	if _, ok := s.refs[name]; ok {
		return
	}
	if l, ok := s.outer(name); ok {
		s.define(name, l)
	} else {
		s.define(name, loading{kind: loadUndefined})
	}
}

func (s *symbols) param(name string) ident {
	s.stores[name] = true
	return s.define(name, loading{kind: loadParam})
}

// load notes that the block reads name.
func (s *symbols) load(name string) {
	if _, ok := s.findRef(name); !ok {
		s.define(name, loading{kind: loadResolve})
	}
}

// join takes in what the branches of an if note: a name that only some of them set has
// what it had before in the others.
func (s *symbols) join(branches ...*symbols) {
	var set []string
	for _, b := range branches {
		for name := range b.stores {
			if !s.stores[name] {
				set = append(set, name)
			}
		}
	}
	for _, b := range branches {
		s.merge(b)
	}
	for _, name := range set {
		id, _ := s.findRef(name)
		if l, ok := s.outer(name); ok {
			s.setLoad(id, l)
		} else {
			s.setLoad(id, loading{kind: loadResolve})
		}
	}
}

// visit notes what a node of the block reads and sets; blocks inside of it are their own.
func (s *symbols) visit(n node, asParam bool) {
	switch n := n.(type) {
	case *nameNode:
		switch {
		case asParam || n.ctx == param:
			s.param(n.name)
		case n.ctx == store:
			s.store(n.name)
		default:
			s.load(n.name)
		}
	case *nsrefNode:
		s.load(n.name)
	case *ifNode:
		s.visit(n.test, asParam)
		branch := func(nodes []node) *symbols {
			c := s.clone()
			for _, x := range nodes {
				c.visit(x, false)
			}
			return c
		}
		s.join(branch(n.body), branch(n.elifs), branch(n.other))
	case *macroNode:
		s.store(n.name)
	case *assignNode:
		s.visit(n.val, false)
		s.visit(n.target, false)
	case *forNode:
		s.visit(n.iter, false)
	case *callBlockNode:
		if n.call != nil {
			s.visit(n.call, false)
		}
	case *filterBlockNode:
		s.visit(n.filter, false)
	case *withNode:
		for _, v := range n.vals {
			s.visit(v, false)
		}
	case *assignBlockNode:
		s.visit(n.target, false)
	case *tupleNode:
		for _, x := range n.items {
			s.visit(x, asParam)
		}
	default:
		n.children(func(c node) { s.visit(c, false) })
	}
}

func (s *symbols) visitAll(lists ...[]node) {
	for _, l := range lists {
		for _, n := range l {
			s.visit(n, false)
		}
	}
}

// undeclared tells which of names are read in nodes before they are set.
func undeclared(nodes []node, names ...string) map[string]bool {
	open, found := map[string]bool{}, map[string]bool{}
	for _, n := range names {
		open[n] = true
	}
	for _, n := range nodes {
		walk(n, func(n node) {
			if n, ok := n.(*nameNode); ok {
				if n.ctx == load && open[n.name] {
					found[n.name] = true
				} else {
					delete(open, n.name)
				}
			}
		})
	}
	return found
}
