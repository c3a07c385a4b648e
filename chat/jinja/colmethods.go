package jinja

var dictMethods map[string]method

// listMethods are those of lists; tuples have them but for copy.
var listMethods map[string]method

func init() {
	dictMethods = map[string]method{
		"get": dictGet, "items": dictViewOf(viewItems), "keys": dictViewOf(viewKeys), "values": dictViewOf(viewValues),
		"copy":     dictCopy,
		"fromkeys": func(s *state, _ Value, a *args) (Value, error) { return dictFromKeys(s, a) },
	}
	listMethods = map[string]method{"copy": listCopy, "count": listCount, "index": listIndex}
}

func dictGet(_ *state, recv Value, a *args) (Value, error) {
	given, err := a.only("get", 1, 2)
	if err != nil {
		return Value{}, err
	}
	v, err := recv.dict().lookup(given[0])
	if err != nil || v.k != missing {
		return v, err
	}
	if len(given) == 2 {
		return given[1], nil
	}
	return None, nil
}

func dictViewOf(what viewKind) method {
	return func(_ *state, recv Value, a *args) (Value, error) {
		if _, err := a.only(what.String(), 0, 0); err != nil {
			return Value{}, err
		}
		return Value{k: view, o: &dictView{recv.dict(), what}}, nil
	}
}

func dictCopy(s *state, recv Value, a *args) (Value, error) {
	if _, err := a.only("copy", 0, 0); err != nil {
		return Value{}, err
	}
	d := recv.dict()
	if err := s.alloc(2 * d.Len() * valueBytes); err != nil {
		return Value{}, err
	}
	return d.clone(0).Value(), nil
}

func dictFromKeys(s *state, a *args) (Value, error) {
	given, err := a.only("fromkeys", 1, 2)
	if err != nil {
		return Value{}, err
	}
	val := None
	if len(given) == 2 {
		val = given[1]
	}
	keys, err := collect(s, given[0])
	if err != nil {
		return Value{}, err
	}
	if err := s.alloc(2 * len(keys) * valueBytes); err != nil {
		return Value{}, err
	}
	d := NewDict(len(keys))
	for _, k := range keys {
		if err := d.setAny(k, val); err != nil {
			return Value{}, err
		}
	}
	return d.Value(), nil
}

// makeDict is dict(…).
func makeDict(s *state, a *args) (*Dict, error) {
	if len(a.pos) > 1 {
		return nil, typeErr("dict expected at most 1 argument, got %d", len(a.pos))
	}
	d := NewDict(len(a.kw))
	if len(a.pos) == 1 {
		if v := a.pos[0]; v.k == dict {
			if err := s.alloc(2 * v.dict().Len() * valueBytes); err != nil {
				return nil, err
			}
			d = v.dict().clone(len(a.kw))
		} else {
			items, err := collect(s, v)
			if err != nil {
				return nil, err
			}
			for _, x := range items {
				pair, err := collect(s, x)
				if err != nil {
					return nil, err
				}
				if len(pair) != 2 {
					return nil, typeErr("dictionary update sequence element has length %d; 2 is required", len(pair))
				}
				if err := s.alloc(2 * valueBytes); err != nil {
					return nil, err
				}
				if err := d.setAny(pair[0], pair[1]); err != nil {
					return nil, err
				}
			}
		}
	}
	for _, k := range a.kw {
		d.Set(k.name, k.val)
	}
	return d, s.alloc(2 * len(a.kw) * valueBytes)
}

func listCopy(_ *state, recv Value, a *args) (Value, error) {
	if _, err := a.only("copy", 0, 0); err != nil {
		return Value{}, err
	}
	return List(recv.items()...), nil
}

func listCount(s *state, recv Value, a *args) (Value, error) {
	given, err := a.only("count", 1, 1)
	if err != nil {
		return Value{}, err
	}
	n := int64(0)
	for _, x := range recv.items() {
		eq, err := equal(s, x, given[0])
		if err != nil {
			return Value{}, err
		}
		if eq {
			n++
		}
	}
	return Int(n), s.charge(len(recv.items()))
}

func listIndex(s *state, recv Value, a *args) (Value, error) {
	given, err := a.only("index", 1, 3)
	if err != nil {
		return Value{}, err
	}
	bounds := []Value{None, None}
	copy(bounds, given[1:])
	for _, b := range given[1:] {
		if _, err := wantInt("index", b); err != nil {
			return Value{}, err
		}
	}
	items := recv.items()
	lo, hi, _, err := sliceBounds(int64(len(items)), bounds[0], bounds[1], None)
	if err != nil {
		return Value{}, err
	}
	for i := lo; i < hi; i++ {
		eq, err := equal(s, items[i], given[0])
		if err != nil {
			return Value{}, err
		}
		if eq {
			return Int(i), s.charge(int(i))
		}
	}
	return Value{}, typeErr("the value is not in the list")
}
