package jinja

import (
	"math"
	"strconv"
	"strings"
)

// strFormat is str.format as the sandbox has it: fields are looked up by its rules.
func strFormat(s *state, recv Value, a *args) (Value, error) {
	if recv.markup {
		return Value{}, &UnsupportedError{"formatting of marked text"}
	}
	f := &braceFormat{s: s, a: a, auto: -1}
	from := len(s.out)
	err := f.run(recv.s, 2)
	return s.captured(from, err)
}

type braceFormat struct {
	s      *state
	a      *args
	auto   int // the last number given to a field without one; -1 before
	manual bool
}

func (f *braceFormat) run(text string, depth int) error {
	for text != "" {
		i := strings.IndexAny(text, "{}")
		if i < 0 {
			return f.s.write(text)
		}
		if err := f.s.write(text[:i]); err != nil {
			return err
		}
		c := text[i]
		text = text[i+1:]
		if text != "" && text[0] == c {
			if err := f.s.write(text[:1]); err != nil {
				return err
			}
			text = text[1:]
			continue
		}
		if c == '}' {
			return typeErr("single '}' encountered in format string")
		}
		level, end := 1, -1
		for j := 0; j < len(text); j++ {
			switch text[j] {
			case '[':
				// Brackets hide braces in a field's name; nobody writes such names.
				if k := strings.IndexByte(text[j:], ']'); k >= 0 && strings.ContainsAny(text[j:j+k], "{}") {
					return &UnsupportedError{"braces in a field's name"}
				}
			case '{':
				level++
			case '}':
				level--
			}
			if level == 0 {
				end = j
				break
			}
		}
		if end < 0 {
			return typeErr("expected '}' before end of string")
		}
		if err := f.field(text[:end], depth); err != nil {
			return err
		}
		text = text[end+1:]
		if err := f.s.step(); err != nil {
			return err
		}
	}
	return nil
}

func (f *braceFormat) field(field string, depth int) error {
	if depth < 1 {
		return typeErr("max string recursion exceeded")
	}
	name, spec, conv := field, "", ""
	if i := strings.IndexAny(field, "!:"); i >= 0 {
		name = field[:i]
		rest := field[i:]
		if rest[0] == '!' {
			if len(rest) < 2 || len(rest) > 2 && rest[2] != ':' {
				return typeErr("expected ':' after conversion specifier")
			}
			conv, rest = rest[1:2], rest[2:]
		}
		spec = strings.TrimPrefix(rest, ":")
	}
	v, err := f.lookup(name)
	if err != nil {
		return err
	}
	switch conv {
	case "":
	case "s":
		if v, err = softStr(f.s, v); err != nil {
			return err
		}
	case "r":
		if err := f.s.beforeText(v); err != nil {
			return err
		}
		b, err := appendRepr(nil, v, 0)
		if err != nil {
			return err
		}
		v = Str(string(b))
	default:
		return &UnsupportedError{"the conversion !" + conv}
	}
	if strings.ContainsAny(spec, "{}") {
		from := len(f.s.out)
		err := f.run(spec, depth-1)
		inner, err := f.s.captured(from, err)
		if err != nil {
			return err
		}
		spec = inner.s
	}
	if spec == "" {
		return f.s.writeValue(v)
	}
	out, err := formatSpec(f.s, v, spec)
	if err != nil {
		return err
	}
	if err := f.s.alloc(len(out)); err != nil {
		return err
	}
	return f.s.write(out)
}

func (f *braceFormat) lookup(name string) (Value, error) {
	end := strings.IndexAny(name, ".[")
	first, rest := name, ""
	if end >= 0 {
		first, rest = name[:end], name[end:]
	}
	var v Value
	number := first == "" || strings.Trim(first, "0123456789") == ""
	if number {
		i := 0
		if first == "" {
			if f.manual {
				return v, typeErr("cannot switch from manual field specification to automatic field numbering")
			}
			f.auto++
			i = f.auto
		} else {
			if f.auto >= 0 {
				return v, typeErr("cannot switch from automatic field numbering to manual field specification")
			}
			f.manual = true
			var err error
			if i, err = strconv.Atoi(first); err != nil {
				return v, typeErr("too many decimal digits in format string")
			}
		}
		if i >= len(f.a.pos) {
			return v, typeErr("replacement index %d out of range for positional args tuple", i)
		}
		v = f.a.pos[i]
	} else {
		for _, k := range f.a.kw {
			if k.name == first {
				v = k.val
			}
		}
		if v.k == missing {
			return v, typeErr("the format's field %s is not there", first)
		}
	}
	for rest != "" {
		var err error
		if rest[0] == '.' {
			end := strings.IndexAny(rest[1:], ".[") + 1
			if end == 0 {
				end = len(rest)
			}
			if end == 1 {
				return v, typeErr("empty attribute in format string")
			}
			v, err = newAttrExpr(nil, rest[1:end]).of(f.s, v)
			rest = rest[end:]
		} else {
			end := strings.IndexByte(rest, ']')
			if end < 2 {
				return v, typeErr("missing ']' or empty attribute in format string")
			}
			k := Str(rest[1:end])
			if strings.Trim(k.s, "0123456789") == "" {
				n, err := strconv.ParseInt(k.s, 10, 64)
				if err != nil {
					return v, typeErr("too many decimal digits in format string")
				}
				k = Int(n)
			}
			v, err = getItem(f.s, v, k)
			rest = rest[end+1:]
			if rest != "" && rest[0] != '.' && rest[0] != '[' {
				return v, typeErr("only '.' or '[' may follow ']' in format field specifier")
			}
		}
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

// formatSpec is format(v, spec).
func formatSpec(s *state, v Value, spec string) (string, error) {
	var fill, align string
	if _, n := decodeRune(spec); n < len(spec) && strings.IndexByte("<>=^", spec[n]) >= 0 {
		fill, align, spec = spec[:n], spec[n:n+1], spec[n+1:]
	} else if strings.IndexByte("<>=^", spec[0]) >= 0 {
		align, spec = spec[:1], spec[1:]
	}
	take := func(set string) string {
		if spec != "" && strings.IndexByte(set, spec[0]) >= 0 {
			c := spec[:1]
			spec = spec[1:]
			return c
		}
		return ""
	}
	sign := take("+- ")
	alt := take("#") != ""
	if take("0") != "" && align == "" {
		if v.k == str {
			align = "<"
		} else {
			align = "="
		}
		if fill == "" {
			fill = "0"
		}
	}
	number := func() (int, error) {
		i := 0
		for i < len(spec) && isDigit(spec[i]) {
			i++
		}
		n, err := strconv.Atoi("0" + spec[:i])
		spec = spec[i:]
		if err != nil || n > maxWidth {
			return 0, &LimitError{"a wider field than it may take"}
		}
		return n, nil
	}
	width, err := number()
	if err != nil {
		return "", err
	}
	group := take(",_")
	precision := -1
	if take(".") != "" {
		if spec == "" || !isDigit(spec[0]) {
			return "", typeErr("format specifier missing precision")
		}
		if precision, err = number(); err != nil {
			return "", err
		}
	}
	if len(spec) > 1 {
		return "", typeErr("invalid format specifier")
	}
	verb0 := verb{c: 's', precision: precision}
	if spec != "" {
		verb0.c = spec[0]
	}
	text, lead := "", ""
	switch {
	case v.k == str:
		if verb0.c != 's' || sign != "" || alt || group != "" || align == "=" {
			return "", typeErr("a format that a str does not have")
		}
		if text = v.s; precision >= 0 {
			text = text[:strOffset(text, precision)]
		}
		if align == "" {
			align = "<"
		}
	case v.isNumber() && !alt && group == "" && (spec == "" || strings.Contains("dfFeEgGxXo", spec)) && (v.k != boolean || spec != ""):
		verb0.flags = sign
		if align == "" {
			align = ">"
		}
		if text, lead, err = formatNumber(v, &verb0, spec); err != nil {
			return "", err
		}
	case v.k == undefined:
		return "", typeErr("unsupported format string passed to Undefined.__format__")
	default:
		return "", &UnsupportedError{"the format " + spec + " of a " + v.typeName()}
	}
	if fill == "" {
		fill = " "
	}
	n := width - strLen(text) - len(lead)
	if n <= 0 {
		return lead + text, s.charge(1)
	}
	switch align {
	case "<":
		return lead + text + strings.Repeat(fill, n), nil
	case ">":
		return strings.Repeat(fill, n) + lead + text, nil
	case "=":
		return lead + strings.Repeat(fill, n) + text, nil
	}
	return strings.Repeat(fill, n/2) + lead + text + strings.Repeat(fill, n-n/2), nil
}

func formatNumber(v Value, verb0 *verb, spec string) (text, lead string, err error) {
	float0 := v.k == float || spec != "" && strings.Contains("fFeEgG", spec)
	if !float0 {
		if verb0.precision >= 0 {
			return "", "", typeErr("precision not allowed in integer format specifier")
		}
		if spec == "" {
			verb0.c = 'd'
		}
		text, err = verb0.integer(v)
		if i := strings.IndexFunc(text, func(r rune) bool { return r != '-' && r != '+' && r != ' ' }); i > 0 {
			lead, text = text[:i], text[i:]
		}
		return text, lead, err
	}
	if spec != "" && strings.Contains("dxXo", spec) {
		return "", "", typeErr("unknown format code '%s' for object of type 'float'", spec)
	}
	f, err := v.toFloat()
	if err != nil {
		return "", "", err
	}
	if spec == "" {
		if verb0.precision >= 0 {
			return "", "", &UnsupportedError{"a precision without a conversion"}
		}
		text = floatRepr(math.Abs(f))
		return text, verb0.sign(math.Signbit(f)), nil
	}
	prec := verb0.precision
	if prec < 0 {
		prec = 6
	}
	neg, text := floatDigits(f, verb0.c, prec, false)
	return text, verb0.sign(neg), nil
}
