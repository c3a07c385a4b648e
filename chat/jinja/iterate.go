package jinja

// iterator gives one value after the other; ok is false at the end.
type iterator interface {
	next(s *state) (v Value, ok bool, err error)
}

type sliceIter struct {
	items []Value
	i     int
}

func (it *sliceIter) next(*state) (Value, bool, error) {
	if it.i >= len(it.items) {
		return Value{}, false, nil
	}
	it.i++
	return it.items[it.i-1], true, nil
}

type strIter struct {
	s string
}

func (it *strIter) next(*state) (Value, bool, error) {
	if it.s == "" {
		return Value{}, false, nil
	}
	n := runeSize(it.s, 0)
	v := Value{k: str, s: it.s[:n]}
	it.s = it.s[n:]
	return v, true, nil
}

type viewIter struct {
	w *dictView
	i int
}

func (it *viewIter) next(*state) (Value, bool, error) {
	if it.i >= it.w.d.Len() {
		return Value{}, false, nil
	}
	it.i++
	return it.w.at(it.i - 1), true, nil
}

type rangeIter struct {
	r *pyRange
	i int64
}

func (it *rangeIter) next(*state) (Value, bool, error) {
	if it.i >= it.r.len() {
		return Value{}, false, nil
	}
	it.i++
	return it.r.at(it.i - 1), true, nil
}

// funcIter is an iterator as a function.
type funcIter func(s *state) (Value, bool, error)

func (f funcIter) next(s *state) (Value, bool, error) { return f(s) }

// iterate begins to go through v.
func iterate(v Value) (iterator, error) {
	switch v.k {
	case list, tuple:
		return &sliceIter{items: v.items()}, nil
	case str:
		return &strIter{s: v.s}, nil
	case dict:
		return &viewIter{w: &dictView{v.dict(), viewKeys}}, nil
	case view:
		return &viewIter{w: v.o.(*dictView)}, nil
	case rng:
		return &rangeIter{r: v.o.(*pyRange)}, nil
	case iter:
		return v.o.(iterator), nil
	case undefined:
		return &sliceIter{}, nil
	}
	if l, ok := v.o.(*loopObj); ok {
		return funcIter(func(s *state) (Value, bool, error) {
			x, ok, err := l.next(s)
			return tupleOf([]Value{x, v}), ok, err
		}), nil
	}
	return nil, typeErr("'%s' object is not iterable", v.typeName())
}

// collect gives all values of v as a slice, which may be v's own.
func collect(s *state, v Value) ([]Value, error) {
	if v.isSeq() {
		return v.items(), nil
	}
	it, err := iterate(v)
	if err != nil {
		return nil, err
	}
	var items []Value
	for {
		x, ok, err := it.next(s)
		if !ok || err != nil {
			return items, err
		}
		if err := s.alloc(valueBytes); err != nil {
			return nil, err
		}
		if err := s.step(); err != nil {
			return nil, err
		}
		items = append(items, x)
	}
}

// generator makes a Value of a function that gives one value after the other.
func generator(f funcIter) Value { return Value{k: iter, o: iterator(&genIter{f: f})} }

// genIter is a generator: at its end, or after an error, it stays there.
type genIter struct {
	f    funcIter
	done bool
}

func (g *genIter) next(s *state) (Value, bool, error) {
	if g.done {
		return Value{}, false, nil
	}
	v, ok, err := g.f(s)
	g.done = !ok || err != nil
	return v, ok, err
}

// loopObj is the variable loop.
type loopObj struct {
	it      iterator
	src     Value // what is gone through, for its length
	index0  int
	depth0  int
	count   int // the length once known, else -1
	before  Value
	cur     Value
	after   Value
	peeked  bool // after is the next value, or missing at the end
	changed []Value
	seen    bool // changed was called
	code    *forCode
	outer   *frame // of a recursive loop: the frame around it
}

func newLoop(src Value) (*loopObj, error) {
	it, err := iterate(src)
	return &loopObj{it: it, src: src, index0: -1, count: -1}, err
}

func (l *loopObj) next(s *state) (Value, bool, error) {
	var v Value
	var ok bool
	var err error
	if l.peeked && l.after.k != missing {
		v, ok = l.after, true
		l.after, l.peeked = Value{}, false
	} else {
		v, ok, err = l.it.next(s)
	}
	if !ok || err != nil {
		return Value{}, false, err
	}
	l.index0++
	l.before, l.cur = l.cur, v
	return v, true, nil
}

func (l *loopObj) peek(s *state) (Value, error) {
	if l.peeked && l.after.k != missing {
		return l.after, nil
	}
	v, ok, err := l.it.next(s)
	if err != nil {
		return v, err
	}
	if !ok {
		v = Value{}
	}
	l.after, l.peeked = v, true
	return v, nil
}

// len is the number of values in all; those of an iterator are taken out for it, which
// needs a state.
func (l *loopObj) len(s *state) (int, error) {
	if l.count >= 0 {
		return l.count, nil
	}
	if n, ok, err := length(s, l.src); ok || err != nil {
		l.count = n
		return n, err
	}
	if s == nil {
		return 0, &UnsupportedError{"a loop over an iterator as text inside of another value"}
	}
	var rest []Value
	for {
		v, ok, err := l.it.next(s)
		if err != nil {
			return 0, err
		}
		if !ok {
			break
		}
		if err := s.alloc(valueBytes); err != nil {
			return 0, err
		}
		rest = append(rest, v)
	}
	l.it = &sliceIter{items: rest}
	l.count = len(rest) + l.index0 + 1
	if l.peeked && l.after.k != missing {
		l.count++
	}
	return l.count, nil
}
