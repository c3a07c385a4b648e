package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

// verb is one conversion of a format with percent signs.
type verb struct {
	flags     string
	width     int
	precision int // -1 where there is none
	c         byte
}

func (v *verb) has(flag byte) bool { return strings.IndexByte(v.flags, flag) >= 0 }

// maxWidth bounds a field's width.
const maxWidth = 1 << 20

// percent is text % arg.
func percent(s *state, text, arg Value) (Value, error) {
	if text.markup {
		return Value{}, &UnsupportedError{"formatting of marked text"}
	}
	f := &percentFormat{s: s, text: text.s, args: []Value{arg}, mapping: arg}
	if arg.k == tuple {
		f.args = arg.items()
		f.mapping = None
	}
	from := len(s.out)
	err := f.run()
	return s.captured(from, err)
}

type percentFormat struct {
	s       *state
	text    string
	args    []Value
	next    int
	mapping Value
	named   bool
}

func (f *percentFormat) arg() (Value, error) {
	if f.next >= len(f.args) {
		return Value{}, typeErr("not enough arguments for format string")
	}
	f.next++
	return f.args[f.next-1], nil
}

func (f *percentFormat) run() error {
	for {
		i := strings.IndexByte(f.text, '%')
		if i < 0 {
			break
		}
		if err := f.s.write(f.text[:i]); err != nil {
			return err
		}
		f.text = f.text[i+1:]
		if err := f.conversion(); err != nil {
			return err
		}
		if err := f.s.step(); err != nil {
			return err
		}
	}
	if err := f.s.write(f.text); err != nil {
		return err
	}
	// A mapping may have more than was asked for, and to Python all that has items is one.
	if f.next < len(f.args) && !f.named && f.mapping.k != dict && f.mapping.k != list && f.mapping.k != rng && f.mapping.k != undefined {
		return typeErr("not all arguments converted during string formatting")
	}
	return nil
}

func (f *percentFormat) number() (n int, ok bool, err error) {
	if strings.HasPrefix(f.text, "*") {
		f.text = f.text[1:]
		v, err := f.arg()
		if err != nil {
			return 0, false, err
		}
		if v.k != integer && v.k != boolean {
			return 0, false, typeErr("* wants int")
		}
		if v.o != nil || v.int() > maxWidth || v.int() < -maxWidth {
			return 0, false, &LimitError{"a wider field than it may take"}
		}
		return int(v.int()), true, nil
	}
	for f.text != "" && isDigit(f.text[0]) {
		n = n*10 + int(f.text[0]-'0')
		if n > maxWidth {
			return 0, false, &LimitError{"a wider field than it may take"}
		}
		f.text = f.text[1:]
		ok = true
	}
	return n, ok, nil
}

func (f *percentFormat) conversion() error {
	if strings.HasPrefix(f.text, "(") {
		if f.mapping.k != dict {
			return typeErr("format requires a mapping")
		}
		depth, i := 1, 1
		for ; i < len(f.text) && depth > 0; i++ {
			switch f.text[i] {
			case '(':
				depth++
			case ')':
				depth--
			}
		}
		if depth > 0 {
			return typeErr("incomplete format key")
		}
		v := f.mapping.dict().Get(f.text[1 : i-1])
		if v.k == missing {
			return typeErr("the format's key %s is not there", f.text[1:i-1])
		}
		f.text = f.text[i:]
		f.args, f.next, f.named = []Value{v}, 0, true
	}
	v := verb{precision: -1}
	i := 0
	for i < len(f.text) && strings.IndexByte("-+ #0", f.text[i]) >= 0 {
		i++
	}
	v.flags, f.text = f.text[:i], f.text[i:]
	var err error
	if v.width, _, err = f.number(); err != nil {
		return err
	}
	if v.width < 0 {
		v.width, v.flags = -v.width, v.flags+"-"
	}
	if strings.HasPrefix(f.text, ".") {
		f.text = f.text[1:]
		if v.precision, _, err = f.number(); err != nil {
			return err
		}
		v.precision = max(v.precision, 0)
	}
	if f.text != "" && strings.IndexByte("hlL", f.text[0]) >= 0 {
		f.text = f.text[1:]
	}
	if f.text == "" {
		return typeErr("incomplete format")
	}
	v.c, f.text = f.text[0], f.text[1:]
	if v.c == '%' {
		return f.s.write("%")
	}
	arg, err := f.arg()
	if err != nil {
		return err
	}
	out, err := v.format(f.s, arg)
	if err != nil {
		return err
	}
	if err := f.s.alloc(len(out)); err != nil {
		return err
	}
	return f.s.write(out)
}

func (v *verb) format(s *state, arg Value) (string, error) {
	switch v.c {
	case 's', 'r':
		var text string
		if v.c == 's' {
			x, err := softStr(s, arg)
			if err != nil {
				return "", err
			}
			text = x.s
		} else {
			if err := s.beforeText(arg); err != nil {
				return "", err
			}
			b, err := appendRepr(nil, arg, 0)
			if err != nil {
				return "", err
			}
			text = string(b)
		}
		if v.precision >= 0 {
			text = text[:strOffset(text, v.precision)]
		}
		return v.pad("", text, false), nil
	case 'c':
		if arg.k == str && strLen(arg.s) == 1 {
			return v.pad("", arg.s, false), nil
		}
		if arg.k == integer && arg.o == nil && arg.int() >= 0 && arg.int() <= 0x10FFFF {
			return v.pad("", string(appendRune(nil, rune(arg.int()))), false), nil
		}
		return "", typeErr("%%c requires int or char")
	case 'd', 'i', 'u', 'x', 'X', 'o':
		return v.integer(arg)
	case 'f', 'F', 'e', 'E', 'g', 'G':
		if arg.k == undefined {
			return "", undefErr(arg)
		}
		if !arg.isNumber() {
			return "", typeErr("must be real number, not %s", arg.typeName())
		}
		x, err := arg.toFloat()
		if err != nil {
			return "", err
		}
		prec := v.precision
		if prec < 0 {
			prec = 6
		}
		sign, text := floatDigits(x, v.c, prec, v.has('#'))
		return v.pad(v.sign(sign), text, !math.IsInf(x, 0) && !math.IsNaN(x)), nil
	}
	return "", &UnsupportedError{"the conversion %" + string(v.c)}
}

// floatDigits writes |x| as Python's formats e, f and g do, and tells whether x is negative.
func floatDigits(x float64, c byte, prec int, alt bool) (neg bool, text string) {
	neg = math.Signbit(x) && !math.IsNaN(x)
	x = math.Abs(x)
	lower := c | 0x20
	switch {
	case math.IsNaN(x):
		text = "nan"
	case math.IsInf(x, 0):
		text = "inf"
	case lower == 'g':
		if prec == 0 {
			prec = 1
		}
		e := strconv.FormatFloat(x, 'e', prec-1, 64)
		exp, _ := strconv.Atoi(e[strings.IndexByte(e, 'e')+1:])
		if exp < -4 || exp >= prec {
			text = e
		} else {
			text = strconv.FormatFloat(x, 'f', max(prec-1-exp, 0), 64)
		}
		if !alt {
			mant, rest := text, ""
			if i := strings.IndexByte(text, 'e'); i >= 0 {
				mant, rest = text[:i], text[i:]
			}
			if strings.IndexByte(mant, '.') >= 0 {
				mant = strings.TrimSuffix(strings.TrimRight(mant, "0"), ".")
			}
			text = mant + rest
		}
	default:
		text = strconv.FormatFloat(x, lower, prec, 64)
		if alt && prec == 0 {
			if i := strings.IndexByte(text, 'e'); i >= 0 {
				text = text[:i] + "." + text[i:]
			} else {
				text += "."
			}
		}
	}
	if c != lower {
		text = strings.ToUpper(text)
	}
	return neg, text
}

func (v *verb) sign(neg bool) string {
	switch {
	case neg:
		return "-"
	case v.has('+'):
		return "+"
	case v.has(' '):
		return " "
	}
	return ""
}

func (v *verb) integer(arg Value) (string, error) {
	var n *big.Int
	switch {
	case arg.k == undefined:
		return "", undefErr(arg)
	case arg.k == float && strings.IndexByte("diu", v.c) >= 0:
		x, ok := truncFloat(arg.float())
		if !ok {
			return "", typeErr("cannot convert float to integer")
		}
		n = x.toBig()
	case arg.k == integer || arg.k == boolean:
		n = arg.toBig()
	default:
		return "", typeErr("%%%c format: a number is required, not %s", v.c, arg.typeName())
	}
	base, prefix := 10, ""
	switch v.c {
	case 'x', 'X':
		base, prefix = 16, "0"+string(v.c)
	case 'o':
		base, prefix = 8, "0o"
	}
	if n.BitLen() > 4*maxIntDigits {
		return "", errDigits
	}
	text := new(big.Int).Abs(n).Text(base)
	if v.c == 'X' {
		text = strings.ToUpper(text)
	}
	if len(text) < v.precision {
		text = strings.Repeat("0", v.precision-len(text)) + text
	}
	sign := v.sign(n.Sign() < 0)
	if v.has('#') {
		sign += strings.TrimPrefix(prefix, map[bool]string{true: prefix}[base == 10])
	}
	return v.pad(sign, text, true), nil
}

// pad fills a field: zeros go between the sign and a number's digits.
func (v *verb) pad(sign, text string, number bool) string {
	n := v.width - len(sign) - strLen(text)
	switch {
	case n <= 0:
		return sign + text
	case v.has('-'):
		return sign + text + strings.Repeat(" ", n)
	case number && v.has('0'):
		return sign + strings.Repeat("0", n) + text
	}
	return strings.Repeat(" ", n) + sign + text
}
