package jinja

import (
	"slices"
	"strconv"
	"strings"
)

// getter looks something up in an item of a sequence.
type getter func(s *state, item Value) (Value, error)

// attrGetter makes a getter of an attribute's path, such as "function.name" or "0"; nil
// where there is none.
func attrGetter(attr Value) (getter, error) {
	var parts []Value
	switch attr.k {
	case missing, none:
		return nil, nil
	case str:
		for _, p := range strings.Split(attr.s, ".") {
			if p != "" && all(p, isDigitRune) {
				n, err := strconv.ParseInt(p, 10, 64)
				if err != nil {
					return nil, &UnsupportedError{"the index " + p}
				}
				parts = append(parts, Int(n))
			} else {
				parts = append(parts, Str(p))
			}
		}
	default:
		parts = []Value{attr}
	}
	return func(s *state, item Value) (v Value, err error) {
		v = item
		for _, p := range parts {
			if v, err = getItem(s, v, p); err != nil {
				return v, err
			}
		}
		return v, nil
	}, nil
}

// caseless makes a key for sorting of a value: strings in lower case unless told otherwise.
func caseless(v Value, sensitive bool) Value {
	if v.k == str && !sensitive {
		v.s = lower(v.s)
	}
	return v
}

// sortBy sorts items by keys, stable in both directions.
func sortBy(s *state, items, keys []Value, reverse bool) ([]Value, error) {
	if err := s.alloc(2 * len(items) * valueBytes); err != nil {
		return nil, err
	}
	order0 := make([]int, len(items))
	for i := range order0 {
		order0[i] = i
	}
	var failed error
	slices.SortStableFunc(order0, func(i, j int) int {
		if failed != nil {
			return 0
		}
		if reverse {
			i, j = j, i
		}
		if failed = s.step(); failed != nil {
			return 0
		}
		less, err := order(s, "<", keys[i], keys[j])
		if err != nil {
			failed = err
			return 0
		}
		if less {
			return -1
		}
		if less, err = order(s, "<", keys[j], keys[i]); err != nil {
			failed = err
		}
		if less {
			return 1
		}
		return 0
	})
	if failed != nil {
		return nil, failed
	}
	out := make([]Value, len(items))
	for i, j := range order0 {
		out[i] = items[j]
	}
	return out, nil
}

func sortedByKey(s *state, entries []entry) ([]entry, error) {
	out := slices.Clone(entries)
	var failed error
	slices.SortStableFunc(out, func(a, b entry) int {
		less, err := order(s, "<", a.key, b.key)
		if err != nil {
			failed = err
			return 0
		}
		if less {
			return -1
		}
		if less, _ = order(s, "<", b.key, a.key); less {
			return 1
		}
		return 0
	})
	return out, failed
}

func filterSort(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("sort", "reverse", "case_sensitive", "attribute")
	if err != nil {
		return v, err
	}
	items, err := collect(s, v)
	if err != nil {
		return v, err
	}
	var getters []getter
	paths := []Value{or(given[2], None)}
	if given[2].k == str {
		paths = nil
		for _, p := range strings.Split(given[2].s, ",") {
			paths = append(paths, Str(p))
		}
	}
	for _, p := range paths {
		g, err := attrGetter(p)
		if err != nil {
			return v, err
		}
		getters = append(getters, g)
	}
	if err := s.alloc(len(items) * (len(getters) + 1) * valueBytes); err != nil {
		return v, err
	}
	keys := make([]Value, len(items))
	for i, x := range items {
		parts := make([]Value, len(getters))
		for j, g := range getters {
			k := x
			if g != nil {
				if k, err = g(s, x); err != nil {
					return v, err
				}
			}
			parts[j] = caseless(k, given[1].Truth())
		}
		keys[i] = List(parts...)
	}
	out, err := sortBy(s, items, keys, given[0].Truth())
	return List(out...), err
}

func filterDictsort(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("dictsort", "case_sensitive", "by", "reverse")
	if err != nil {
		return v, err
	}
	by := or(given[1], Str("key"))
	if by.k != str || by.s != "key" && by.s != "value" {
		return v, typeErr("dictsort sorts by key or by value")
	}
	switch v.k {
	case dict:
	case undefined:
		return v, undefErr(v)
	default:
		return v, typeErr("'%s' object has no attribute 'items'", v.typeName())
	}
	d := v.dict()
	if err := s.alloc(4 * d.Len() * valueBytes); err != nil {
		return v, err
	}
	items, keys := make([]Value, d.Len()), make([]Value, d.Len())
	for i, e := range d.entries {
		items[i] = tupleOf([]Value{e.key, e.val})
		keys[i] = e.key
		if by.s == "value" {
			keys[i] = e.val
		}
		keys[i] = caseless(keys[i], given[0].Truth())
	}
	out, err := sortBy(s, items, keys, given[2].Truth())
	return List(out...), err
}

func filterUnique(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("unique", "case_sensitive", "attribute")
	if err != nil {
		return v, err
	}
	seen := map[key]bool{}
	var it iterator
	var get getter
	return generator(func(s *state) (Value, bool, error) {
		if it == nil {
			if get, err = attrGetter(given[1]); err != nil {
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
			k := x
			if get != nil {
				if k, err = get(s, x); err != nil {
					return x, false, err
				}
			}
			h, err := caseless(k, given[0].Truth()).hash()
			if err != nil {
				return x, false, err
			}
			if err := s.alloc(valueBytes); err != nil {
				return x, false, err
			}
			if err := s.step(); err != nil {
				return x, false, err
			}
			if !seen[h] {
				seen[h] = true
				return x, true, nil
			}
		}
	}), nil
}

// filterExtreme is min (<) and max (>): the first of those that no other goes before.
func filterExtreme(op string) filter {
	return func(s *state, v Value, a *args) (Value, error) {
		given, err := a.bind("min", "case_sensitive", "attribute")
		if err != nil {
			return v, err
		}
		items, err := collect(s, v)
		if err != nil {
			return v, err
		}
		if len(items) == 0 {
			return undef("the extreme of nothing"), nil
		}
		get, err := attrGetter(given[1])
		if err != nil {
			return v, err
		}
		var best, bestKey Value
		for i, x := range items {
			k := x
			if get != nil {
				if k, err = get(s, x); err != nil {
					return v, err
				}
			}
			k = caseless(k, given[0].Truth())
			if i > 0 {
				if before, err := order(s, op, k, bestKey); err != nil {
					return v, err
				} else if !before {
					continue
				}
			}
			best, bestKey = x, k
		}
		return best, s.charge(len(items))
	}
}

func filterList(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("list", 0, 0); err != nil {
		return v, err
	}
	items, err := collect(s, v)
	if err == nil && v.isSeq() {
		items = slices.Clone(items)
		err = s.alloc(len(items) * valueBytes)
	}
	return List(items...), err
}

func filterFirst(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("first", 0, 0); err != nil {
		return v, err
	}
	it, err := iterate(v)
	if err != nil {
		return v, err
	}
	x, ok, err := it.next(s)
	if !ok {
		x = undef("the first of nothing")
	}
	return x, err
}

// reversed goes through v from the end; ok is false where v cannot.
func reversed(s *state, v Value) (items []Value, ok bool, err error) {
	switch v.k {
	case list, tuple, dict, rng, view:
		if items, err = collect(s, v); err == nil {
			items = slices.Clone(items)
			err = s.alloc(len(items) * valueBytes)
		}
	case str:
		for i := 0; i < len(v.s); i += runeSize(v.s, i) {
			items = append(items, Value{k: str, s: v.s[i : i+runeSize(v.s, i)], markup: v.markup})
		}
		err = s.alloc(len(items) * valueBytes)
	default:
		return nil, false, nil
	}
	slices.Reverse(items)
	return items, true, err
}

func filterLast(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("last", 0, 0); err != nil {
		return v, err
	}
	if v.isSeq() {
		if items := v.items(); len(items) > 0 {
			return items[len(items)-1], nil
		}
		return undef("the last of nothing"), nil
	}
	if v.k == undefined {
		// reversed() of what is undefined asks for its items by number.
		return undef("the last of nothing"), nil
	}
	items, ok, err := reversed(s, v)
	if err != nil {
		return v, err
	}
	if !ok {
		return v, typeErr("'%s' object is not reversible", v.typeName())
	}
	if len(items) == 0 {
		return undef("the last of nothing"), nil
	}
	return items[0], nil
}

func filterReverse(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("reverse", 0, 0); err != nil {
		return v, err
	}
	if v.k == str {
		return getSlice(s, v, None, None, Int(-1))
	}
	items, ok, err := reversed(s, v)
	if err != nil {
		return v, err
	}
	if ok {
		it := &sliceIter{items: items}
		return generator(it.next), nil
	}
	all, err := collect(s, v)
	if err != nil {
		return v, err
	}
	all = slices.Clone(all)
	slices.Reverse(all)
	if v.k == undefined {
		return generator((&sliceIter{}).next), nil
	}
	return List(all...), nil
}
