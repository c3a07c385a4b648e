package jinja

import "math"

// globals are the names that every template has, unless what is passed in has them too.
func globals() map[string]Value {
	fn := func(name string, f func(s *state, a *args) (Value, error)) Value {
		return Value{k: object, o: &builtin{name, f}}
	}
	return map[string]Value{
		"range":           fn("range", makeRange),
		"dict":            {k: object, o: &dictType{}},
		"namespace":       fn("namespace", makeNamespace),
		"raise_exception": fn("raise_exception", raiseException),
		"strftime_now":    fn("strftime_now", strftimeNow),
		"cycler":          fn("cycler", refusedGlobal("cycler")),
		"joiner":          fn("joiner", makeJoiner),
		"lipsum":          fn("lipsum", refusedGlobal("lipsum")),
	}
}

var allGlobals = globals()

func refusedGlobal(name string) func(*state, *args) (Value, error) {
	return func(*state, *args) (Value, error) { return Value{}, &UnsupportedError{"the function " + name} }
}

// maxRange is the sandbox's bound of a range.
const maxRange = 100000

func makeRange(_ *state, a *args) (Value, error) {
	given, err := a.only("range", 1, 3)
	if err != nil {
		return Value{}, err
	}
	n := make([]int64, len(given))
	for i, v := range given {
		if n[i], err = wantInt("range", v); err != nil {
			return Value{}, err
		}
		if n[i] > math.MaxInt64/4 || n[i] < math.MinInt64/4 {
			return Value{}, &UnsupportedError{"a range of numbers that large"}
		}
	}
	r := &pyRange{0, n[0], 1}
	if len(n) > 1 {
		r.start, r.stop = n[0], n[1]
	}
	if len(n) > 2 {
		if r.step = n[2]; r.step == 0 {
			return Value{}, typeErr("range() arg 3 must not be zero")
		}
	}
	if r.len() > maxRange {
		return Value{}, typeErr("range too big: the sandbox blocks ranges larger than %d", maxRange)
	}
	return Value{k: rng, o: r}, nil
}

func makeNamespace(s *state, a *args) (Value, error) {
	d, err := makeDict(s, a)
	if err != nil {
		return Value{}, err
	}
	for _, e := range d.entries {
		if e.key.k != str {
			continue
		}
		if len(e.key.s) > 0 && e.key.s[0] == '_' {
			return Value{}, typeErr("a namespace has no attributes that begin with an underscore")
		}
	}
	return Value{k: object, o: &namespace{d}}, nil
}

func raiseException(s *state, a *args) (Value, error) {
	given, err := a.bind("raise_exception", "message")
	if err != nil {
		return Value{}, err
	}
	if given[0].k == missing {
		return Value{}, typeErr("raise_exception needs a message")
	}
	msg, err := softStr(s, given[0])
	if err != nil {
		return Value{}, err
	}
	return Value{}, &RaisedError{msg.s}
}

// dictType is dict as templates see it: it is called, and has fromkeys.
type dictType struct{}

func (*dictType) attr(_ *state, name string) (Value, error) {
	if name == "fromkeys" {
		return Value{k: object, o: &builtin{"fromkeys", dictFromKeys}}, nil
	}
	return Value{}, nil
}

// makeJoiner is joiner(sep): a function that gives nothing at first, then the separator.
func makeJoiner(_ *state, a *args) (Value, error) {
	given, err := a.bind("joiner", "sep")
	if err != nil {
		return Value{}, err
	}
	used := false
	return Value{k: object, o: &builtin{"joiner", func(_ *state, a *args) (Value, error) {
		if _, err := a.only("joiner", 0, 0); err != nil {
			return Value{}, err
		}
		if !used {
			used = true
			return Str(""), nil
		}
		return or(given[0], Str(", ")), nil
	}}}, nil
}
