package jinja

// tests are the tests that stand behind is, by name.
var tests map[string]test

func init() {
	kindTest := func(f func(v Value) bool) test {
		return func(_ *state, v Value, a *args) (bool, error) {
			_, err := a.only("the test", 0, 0)
			return f(v), err
		}
	}
	ofKind := func(k kind) test { return kindTest(func(v Value) bool { return v.k == k }) }
	compare := func(op string) test {
		return func(s *state, v Value, a *args) (bool, error) {
			given, err := a.only("the test", 1, 1)
			if err != nil {
				return false, err
			}
			return compareOp(s, op, v, given[0])
		}
	}
	tests = map[string]test{
		"defined": kindTest(func(v Value) bool { return v.k != undefined }), "undefined": ofKind(undefined),
		"none": ofKind(none), "boolean": ofKind(boolean), "string": ofKind(str), "mapping": ofKind(dict),
		"integer": ofKind(integer), "float": ofKind(float), "number": kindTest(Value.isNumber),
		"true":  kindTest(func(v Value) bool { return v.k == boolean && v.n != 0 }),
		"false": kindTest(func(v Value) bool { return v.k == boolean && v.n == 0 }),
		"sequence": kindTest(func(v Value) bool {
			return v.isSeq() || v.k == str || v.k == dict || v.k == rng || v.k == undefined
		}),
		"iterable": kindTest(func(v Value) bool {
			_, err := iterate(v)
			return err == nil
		}),
		"callable": kindTest(callable), "escaped": kindTest(func(v Value) bool { return v.markup }),
		"odd": modulo(Int(2), Int(1)), "even": modulo(Int(2), Int(0)), "divisibleby": modulo(Value{}, Int(0)),
		"lower": cased(isLowerRune, isUpperRune), "upper": cased(isUpperRune, isLowerRune),
		"sameas": sameAs, "in": compare("in"),
		"filter": known(func(name string) bool { return filters[name] != nil || refusedFilters[name] }),
		"test":   known(func(name string) bool { return tests[name] != nil }),
		"==":     compare("=="), "eq": compare("=="), "equalto": compare("=="), "!=": compare("!="), "ne": compare("!="),
		">": compare(">"), "gt": compare(">"), "greaterthan": compare(">"), ">=": compare(">="), "ge": compare(">="),
		"<": compare("<"), "lt": compare("<"), "lessthan": compare("<"), "<=": compare("<="), "le": compare("<="),
	}
}

func callable(v Value) bool {
	switch v.o.(type) {
	case *bound, *builtin, *macro, *loopObj, *dictType:
		return true
	}
	return v.k == undefined
}

// modulo tells whether the value divided by n leaves rest; n is an argument where it is missing.
func modulo(n, rest Value) test {
	return func(s *state, v Value, a *args) (bool, error) {
		by := n
		want := 0
		if n.k == missing {
			want = 1
		}
		given, err := a.bind("the test", []string{"num"}[:want]...)
		if err != nil {
			return false, err
		}
		if want == 1 {
			if by = given[0]; by.k == missing {
				return false, typeErr("divisibleby needs a number")
			}
		}
		m, err := binary(s, "%", v, by)
		if err != nil {
			return false, err
		}
		return equal(s, m, rest)
	}
}

func cased(want, other func(rune) bool) test {
	return func(s *state, v Value, a *args) (bool, error) {
		if _, err := a.only("the test", 0, 0); err != nil {
			return false, err
		}
		v, err := softStr(s, v)
		return oneCase(v.s, want, other), err
	}
}

// sameAs is Python's is, which for equal numbers and strings depends on how they came to be.
func sameAs(_ *state, v Value, a *args) (bool, error) {
	given, err := a.bind("sameas", "other")
	if err != nil {
		return false, err
	}
	o := given[0]
	if o.k == missing {
		return false, typeErr("sameas needs another value")
	}
	if v.k != o.k {
		return false, nil
	}
	switch v.k {
	case none, boolean:
		return v.n == o.n, nil
	case integer, float, str, tuple, undefined, rng:
		return false, &UnsupportedError{"sameas of a " + v.typeName()}
	}
	return v.o == o.o, nil
}

func known(has func(string) bool) test {
	return func(_ *state, v Value, a *args) (bool, error) {
		if _, err := a.only("the test", 0, 0); err != nil {
			return false, err
		}
		if v.k == str {
			return has(v.s), nil
		}
		_, err := v.hash()
		return false, err
	}
}
