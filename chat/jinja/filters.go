package jinja

import "strings"

// filters are the filters by name, and refusedFilters those that Jinja has besides.
var filters map[string]filter

var refusedFilters = setOf("filesizeformat groupby pprint random striptags urlencode urlize wordcount wordwrap xmlattr")

func init() {
	filters = map[string]filter{
		"abs": filterAbs, "attr": filterAttr, "batch": filterBatch, "capitalize": textFilter(capitalize),
		"center": filterCenter, "count": filterLength, "d": filterDefault, "default": filterDefault, "dictsort": filterDictsort,
		"e": filterEscape, "escape": filterEscape, "first": filterFirst, "float": filterFloat, "forceescape": filterForceEscape,
		"format": filterFormat, "indent": filterIndent, "int": filterInt, "items": filterItems, "join": filterJoin,
		"last": filterLast, "length": filterLength, "list": filterList, "lower": textFilter(lower), "map": filterMap,
		"max": filterExtreme(">"), "min": filterExtreme("<"), "reject": filterSelect(false, false),
		"rejectattr": filterSelect(false, true), "replace": filterReplace, "reverse": filterReverse, "round": filterRound,
		"safe": filterSafe, "select": filterSelect(true, false), "selectattr": filterSelect(true, true), "slice": filterSlice,
		"sort": filterSort, "string": filterString, "sum": filterSum, "title": filterTitle, "tojson": filterToJSON,
		"trim": filterTrim, "truncate": filterTruncate, "unique": filterUnique, "upper": textFilter(upper),
	}
}

// softStr is v as a string; marked text stays so.
func softStr(s *state, v Value) (Value, error) {
	if v.k == str {
		return v, nil
	}
	if err := s.beforeText(v); err != nil {
		return v, err
	}
	text, err := toStr(v)
	if err != nil {
		return v, err
	}
	return Str(text), s.alloc(len(text))
}

func textFilter(f func(string) string) filter {
	return func(s *state, v Value, a *args) (Value, error) {
		if _, err := a.only("the filter", 0, 0); err != nil {
			return v, err
		}
		v, err := softStr(s, v)
		if err != nil {
			return v, err
		}
		if err := s.charge(len(v.s) / 8); err != nil {
			return v, err
		}
		return strOut(s, v, f(v.s))
	}
}

// filterTitle joins its words anew, so that marked text is not marked any more.
func filterTitle(s *state, v Value, a *args) (Value, error) {
	v, err := textFilter(titleWords)(s, v, a)
	v.markup = false
	return v, err
}

// titleWords is the filter title, whose words begin behind other characters than str.title's.
func titleWords(text string) string {
	start := true
	b := make([]byte, 0, len(text))
	word := func(w string) {
		if w == "" {
			return
		}
		_, n := decodeRune(w)
		b = append(b, upper(w[:n])...)
		b = append(b, lower(w[n:])...)
	}
	from := 0
	for i := 0; i < len(text); {
		r, n := decodeRune(text[i:])
		delim := isSpace(r) || strings.ContainsRune("-({[<", r)
		if delim != start {
			if delim {
				word(text[from:i])
			} else {
				b = append(b, text[from:i]...)
			}
			from, start = i, delim
		}
		i += n
	}
	if start {
		b = append(b, text[from:]...)
	} else {
		word(text[from:])
	}
	return string(b)
}

func filterString(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("string", 0, 0); err != nil {
		return v, err
	}
	return softStr(s, v)
}

func filterSafe(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("safe", 0, 0); err != nil {
		return v, err
	}
	v, err := softStr(s, v)
	v.markup = true
	return v, err
}

func filterEscape(s *state, v Value, a *args) (Value, error) {
	if v.markup {
		return v, nil
	}
	return filterForceEscape(s, v, a)
}

func filterForceEscape(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("escape", 0, 0); err != nil {
		return v, err
	}
	v, err := softStr(s, v)
	if err != nil {
		return v, err
	}
	if err := s.alloc(5 * len(v.s)); err != nil {
		return v, err
	}
	return Value{k: str, s: escapeHTML(v.s), markup: true}, nil
}

func filterTrim(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("trim", "chars")
	if err != nil {
		return v, err
	}
	chars := or(given[0], None)
	if chars.k != none {
		if err := wantStr("trim", chars); err != nil {
			return v, err
		}
	}
	if v, err = softStr(s, v); err != nil {
		return v, err
	}
	if err := s.charge(len(chars.s) * len(v.s) / 64); err != nil {
		return v, err
	}
	v.s = trim(v.s, true, true, chars)
	return v, nil
}

func filterReplace(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("replace", "old", "new", "count")
	if err != nil {
		return v, err
	}
	if given[0].k == missing || given[1].k == missing {
		return v, typeErr("replace needs what is replaced, and by what")
	}
	count := int64(-1)
	if c := or(given[2], None); c.k != none {
		if count, err = wantInt("replace", c); err != nil {
			return v, err
		}
	}
	for _, p := range []*Value{&v, &given[0], &given[1]} {
		if *p, err = softStr(s, *p); err != nil {
			return v, err
		}
	}
	return replaceText(s, v.s, given[0], given[1], count)
}

func filterDefault(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("default", "default_value", "boolean")
	if err != nil {
		return v, err
	}
	if v.k == undefined || given[1].Truth() && !v.Truth() {
		return or(given[0], Str("")), nil
	}
	return v, nil
}

func filterLength(s *state, v Value, a *args) (Value, error) {
	if _, err := a.only("length", 0, 0); err != nil {
		return v, err
	}
	n, ok, err := length(s, v)
	if err != nil {
		return v, err
	}
	if !ok {
		return v, typeErr("object of type '%s' has no len()", v.typeName())
	}
	return Int(int64(n)), nil
}

func filterItems(_ *state, v Value, a *args) (Value, error) {
	if _, err := a.only("items", 0, 0); err != nil {
		return v, err
	}
	var it iterator
	return generator(func(s *state) (Value, bool, error) {
		if it == nil {
			switch v.k {
			case undefined:
				return Value{}, false, nil
			case dict:
				it = &viewIter{w: &dictView{v.dict(), viewItems}}
			default:
				return Value{}, false, typeErr("can only get item pairs from a mapping")
			}
		}
		return it.next(s)
	}), nil
}

func filterCenter(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("center", "width")
	if err != nil {
		return v, err
	}
	width, err := wantInt("center", or(given[0], Int(80)))
	if err != nil {
		return v, err
	}
	if v, err = softStr(s, v); err != nil {
		return v, err
	}
	return pad(s, v, width, 0, " ")
}

func filterFormat(s *state, v Value, a *args) (Value, error) {
	if len(a.pos) > 0 && len(a.kw) > 0 {
		return v, typeErr("can't handle positional and keyword arguments at the same time")
	}
	v, err := softStr(s, v)
	if err != nil {
		return v, err
	}
	if len(a.kw) > 0 {
		d := NewDict(len(a.kw))
		for _, k := range a.kw {
			d.Set(k.name, k.val)
		}
		return percent(s, v, d.Value())
	}
	return percent(s, v, tupleOf(a.pos))
}

func filterIndent(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("indent", "width", "first", "blank")
	if err != nil {
		return v, err
	}
	width := or(given[0], Int(4))
	by := width.s
	if width.k != str {
		n, err := wantInt("indent", width)
		if err != nil {
			return v, err
		}
		if n > 10000 {
			return v, &LimitError{"a wider indent than it may take"}
		}
		by = strings.Repeat(" ", int(max(n, 0)))
	}
	if v.k == undefined {
		return v, undefErr(v)
	}
	if err := wantStr("indent", v); err != nil {
		return v, err
	}
	if err := plain("indent", v, width); err != nil {
		return v, err
	}
	parts := lines(v.s+"\n", false)
	if err := s.alloc(len(v.s) + len(parts)*(len(by)+1)); err != nil {
		return v, err
	}
	if err := s.charge(len(v.s)/4 + len(parts)); err != nil {
		return v, err
	}
	var b strings.Builder
	if given[1].Truth() {
		b.WriteString(by)
	}
	for i, line := range parts {
		if i > 0 {
			b.WriteByte('\n')
			if line != "" || given[2].Truth() {
				b.WriteString(by)
			}
		}
		b.WriteString(line)
	}
	return Str(b.String()), nil
}

func filterTruncate(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("truncate", "length", "killwords", "end", "leeway")
	if err != nil {
		return v, err
	}
	end := or(given[2], Str("..."))
	if v.k != str || end.k != str || v.markup || end.markup {
		return v, &UnsupportedError{"truncate of what is not a plain str"}
	}
	most, err := wantInt("truncate", or(given[0], Int(255)))
	if err != nil {
		return v, err
	}
	leeway := int64(5)
	if l := or(given[3], None); l.k != none {
		if leeway, err = wantInt("truncate", l); err != nil {
			return v, err
		}
	}
	endLen := int64(strLen(end.s))
	if most < endLen || leeway < 0 {
		return v, typeErr("truncate: a length or leeway too small")
	}
	if int64(strLen(v.s)) <= most+leeway {
		return v, nil
	}
	text := v.s[:strOffset(v.s, int(most-endLen))]
	if !given[1].Truth() {
		if i := strings.LastIndexByte(text, ' '); i >= 0 {
			text = text[:i]
		}
	}
	return strOut(s, v, text+end.s)
}

func filterJoin(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("join", "d", "attribute")
	if err != nil {
		return v, err
	}
	sep, err := softStr(s, or(given[0], Str("")))
	if err != nil {
		return v, err
	}
	items, err := collect(s, v)
	if err != nil {
		return v, err
	}
	get, err := attrGetter(given[1])
	if err != nil {
		return v, err
	}
	if err := s.alloc(len(items) * valueBytes); err != nil {
		return v, err
	}
	texts := make([]Value, len(items))
	for i, x := range items {
		if get != nil {
			if x, err = get(s, x); err != nil {
				return v, err
			}
		}
		if texts[i], err = softStr(s, x); err != nil {
			return v, err
		}
		if err := s.step(); err != nil {
			return v, err
		}
	}
	return joinText(s, texts, sep.s)
}
