package jinja

import "strings"

// pieces makes a list of parts of recv, which share its bytes.
func pieces(s *state, recv Value, parts []string) (Value, error) {
	if err := s.alloc(len(parts) * valueBytes); err != nil {
		return Value{}, err
	}
	out := make([]Value, len(parts))
	for i, p := range parts {
		out[i] = Value{k: str, s: p, markup: recv.markup}
	}
	return List(out...), nil
}

func strSplit(right bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.bind("split", "sep", "maxsplit")
		if err != nil {
			return Value{}, err
		}
		sep, most := or(given[0], None), int64(-1)
		if given[1].k != missing {
			if most, err = wantInt("split", given[1]); err != nil {
				return Value{}, err
			}
		}
		if most < 0 || most > int64(len(recv.s)) {
			most = int64(len(recv.s)) + 1
		}
		if err := s.charge(len(recv.s) / 16); err != nil {
			return Value{}, err
		}
		if sep.k == none {
			return pieces(s, recv, splitSpace(recv.s, int(most), right))
		}
		if err := wantStr("split", sep); err != nil {
			return Value{}, err
		}
		if sep.s == "" {
			return Value{}, typeErr("empty separator")
		}
		if n := strings.Count(recv.s, sep.s); n > (s.limits.Memory-s.memory)/valueBytes {
			return Value{}, errMemory
		}
		if !right {
			return pieces(s, recv, strings.SplitN(recv.s, sep.s, int(most)+1))
		}
		var parts []string
		rest := recv.s
		for ; most > 0; most-- {
			i := strings.LastIndex(rest, sep.s)
			if i < 0 {
				break
			}
			parts = append(parts, rest[i+len(sep.s):])
			rest = rest[:i]
		}
		parts = append(parts, rest)
		for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
			parts[i], parts[j] = parts[j], parts[i]
		}
		return pieces(s, recv, parts)
	}
}

// splitSpace splits at runs of whitespace, at most most times.
func splitSpace(text string, most int, right bool) []string {
	if !right {
		var parts []string
		for text = trim(text, true, false, None); text != ""; text = trim(text, true, false, None) {
			i := strings.IndexFunc(text, isSpace)
			if i < 0 || len(parts) == most {
				i = len(text)
			}
			parts = append(parts, text[:i])
			text = text[i:]
		}
		return parts
	}
	var parts []string
	for text = trim(text, false, true, None); text != ""; text = trim(text, false, true, None) {
		if len(parts) == most {
			parts = append(parts, text)
			break
		}
		i := 0
		if at := strings.LastIndexFunc(text, isSpace); at >= 0 {
			i = at + runeSize(text, at)
		}
		parts = append(parts, text[i:])
		text = text[:i]
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return parts
}

func isLineEnd(r rune) bool {
	switch r {
	case '\n', '\r', '\v', '\f', 0x1C, 0x1D, 0x1E, 0x85, 0x2028, 0x2029:
		return true
	}
	return false
}

// lines splits text as str.splitlines does, which knows more ends of lines than \n.
func lines(text string, keep bool) []string {
	var parts []string
	for text != "" {
		i := strings.IndexFunc(text, isLineEnd)
		if i < 0 {
			return append(parts, text)
		}
		end := i + runeSize(text, i)
		if text[i] == '\r' && end < len(text) && text[end] == '\n' {
			end++
		}
		if keep {
			i = end
		}
		parts = append(parts, text[:i])
		text = text[end:]
	}
	return parts
}

func strSplitlines(s *state, recv Value, a *args) (Value, error) {
	given, err := a.bind("splitlines", "keepends")
	if err != nil {
		return Value{}, err
	}
	if err := s.charge(len(recv.s) / 4); err != nil {
		return Value{}, err
	}
	return pieces(s, recv, lines(recv.s, or(given[0], False).Truth()))
}

func strPartition(right bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.only("partition", 1, 1)
		if err != nil {
			return Value{}, err
		}
		if err := wantStr("partition", given[0]); err != nil {
			return Value{}, err
		}
		if err := plain("partition", recv, given[0]); err != nil {
			return Value{}, err
		}
		sep := given[0].s
		if sep == "" {
			return Value{}, typeErr("empty separator")
		}
		if err := s.charge(len(recv.s) / 16); err != nil {
			return Value{}, err
		}
		i := strings.Index(recv.s, sep)
		if right {
			i = strings.LastIndex(recv.s, sep)
		}
		three := []Value{recv, Str(""), Str("")}
		switch {
		case i >= 0:
			three = []Value{Str(recv.s[:i]), given[0], Str(recv.s[i+len(sep):])}
		case right:
			three = []Value{Str(""), Str(""), recv}
		}
		return tupleOf(three), nil
	}
}
