package jinja

import (
	"slices"
	"strings"
)

// mapper gives one value for each of a sequence, when it is asked for.
func mapper(v Value, prepare func() (getter, error)) Value {
	var it iterator
	var f getter
	return generator(func(s *state) (Value, bool, error) {
		if it == nil {
			if !v.Truth() {
				return Value{}, false, nil
			}
			var err error
			if f, err = prepare(); err != nil {
				return v, false, err
			}
			if it, err = iterate(v); err != nil {
				return v, false, err
			}
		}
		x, ok, err := it.next(s)
		if !ok || err != nil {
			return x, false, err
		}
		if err := s.step(); err != nil {
			return x, false, err
		}
		x, err = f(s, x)
		return x, true, err
	})
}

func filterMap(_ *state, v Value, a *args) (Value, error) {
	given := *a
	return mapper(v, func() (getter, error) {
		if len(given.pos) == 0 && slices.ContainsFunc(given.kw, func(k kwarg) bool { return k.name == "attribute" }) {
			bound, err := given.bind("map", "attribute", "default")
			if err != nil {
				return nil, err
			}
			get, err := attrGetter(bound[0])
			if err != nil || get == nil {
				return func(_ *state, x Value) (Value, error) { return x, nil }, err
			}
			if def := or(bound[1], None); def.k != none {
				// The default takes the place of each part of the path that is not there.
				return defaulted(bound[0], def)
			}
			return get, nil
		}
		if len(given.pos) == 0 {
			return nil, typeErr("map requires a filter argument")
		}
		name := given.pos[0]
		f, ok := filters[name.s]
		if name.k != str || !ok {
			if refusedFilters[name.s] {
				return nil, &UnsupportedError{"the filter " + name.s}
			}
			return nil, typeErr("there is no filter %s", name.s)
		}
		return func(s *state, x Value) (Value, error) {
			return f(s, x, &args{given.pos[1:], slices.Clone(given.kw)})
		}, nil
	}), nil
}

func defaulted(path, def Value) (getter, error) {
	var steps []getter
	parts := []Value{path}
	if path.k == str {
		parts = nil
		for _, p := range strings.Split(path.s, ".") {
			parts = append(parts, Str(p))
		}
	}
	for _, p := range parts {
		g, err := attrGetter(p)
		if err != nil {
			return nil, err
		}
		steps = append(steps, g)
	}
	return func(s *state, x Value) (v Value, err error) {
		v = x
		for _, g := range steps {
			if v, err = g(s, v); err != nil {
				return v, err
			}
			if v.k == undefined {
				v = def
			}
		}
		return v, nil
	}, nil
}

// filterSelect is select, reject, selectattr and rejectattr.
func filterSelect(want, byAttr bool) filter {
	return func(_ *state, v Value, a *args) (Value, error) {
		given := *a
		var it iterator
		var holds func(s *state, x Value) (bool, error)
		return generator(func(s *state) (Value, bool, error) {
			if it == nil {
				if !v.Truth() {
					return Value{}, false, nil
				}
				var err error
				if holds, err = selector(given, byAttr); err != nil {
					return v, false, err
				}
				if it, err = iterate(v); err != nil {
					return v, false, err
				}
			}
			for {
				x, ok, err := it.next(s)
				if !ok || err != nil {
					return x, false, err
				}
				if err := s.step(); err != nil {
					return x, false, err
				}
				ok, err = holds(s, x)
				if err != nil || ok == want {
					return x, err == nil, err
				}
			}
		}), nil
	}
}

func selector(a args, byAttr bool) (func(s *state, x Value) (bool, error), error) {
	get := func(_ *state, x Value) (Value, error) { return x, nil }
	rest := a.pos
	if byAttr {
		if len(rest) == 0 {
			return nil, typeErr("missing parameter for attribute name")
		}
		g, err := attrGetter(rest[0])
		if err != nil {
			return nil, err
		}
		if g != nil {
			get = g
		}
		rest = rest[1:]
	}
	if len(rest) == 0 {
		return func(s *state, x Value) (bool, error) {
			v, err := get(s, x)
			return v.Truth(), err
		}, nil
	}
	f, ok := tests[rest[0].s]
	if rest[0].k != str {
		ok = false
	}
	return func(s *state, x Value) (bool, error) {
		v, err := get(s, x)
		if err != nil {
			return false, err
		}
		if !ok {
			return false, typeErr("there is no test %s", rest[0].s)
		}
		return f(s, v, &args{rest[1:], a.kw})
	}, nil
}
