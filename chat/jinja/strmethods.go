package jinja

import (
	"math"
	"strings"
	"unicode"
)

// strMethods are the methods of str.
var strMethods map[string]method

func init() {
	strMethods = map[string]method{
		"capitalize": mapped(capitalize), "lower": mapped(lower), "swapcase": mapped(swapcase),
		"title": mapped(title), "upper": mapped(upper),
		"strip": stripped(true, true), "lstrip": stripped(true, false), "rstrip": stripped(false, true),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"removeprefix": remove(strings.TrimPrefix), "removesuffix": remove(strings.TrimSuffix),
		"split": strSplit(false), "rsplit": strSplit(true), "splitlines": strSplitlines,
		"partition": strPartition(false), "rpartition": strPartition(true),
		"replace": strReplace, "join": strJoin, "count": strCount,
		"find": strFind(false, false), "rfind": strFind(true, false), "index": strFind(false, true), "rindex": strFind(true, true),
		"center": strPad(0), "ljust": strPad(-1), "rjust": strPad(1), "zfill": strZfill, "expandtabs": refusedMethod("expandtabs"),
		"format": strFormat, "format_map": refusedMethod("format_map"), "casefold": refusedMethod("casefold"),
		"encode": refusedMethod("encode"), "translate": refusedMethod("translate"), "maketrans": refusedMethod("maketrans"),
		"isidentifier": refusedMethod("isidentifier"),
		"isalnum":      is(func(r rune) bool { return unicode.IsLetter(r) || isNumeric(r) }),
		"isalpha":      is(unicode.IsLetter), "isdecimal": is(unicode.IsDigit), "isdigit": is(isDigitRune), "isnumeric": is(isNumeric),
		"isspace": is(isSpace),
		"isascii": asked(asciiOnly), "isprintable": asked(func(s string) bool { return s == "" || all(s, isPrintable) }),
		"islower": asked(func(s string) bool { return oneCase(s, isLowerRune, isUpperRune) }),
		"isupper": asked(func(s string) bool { return oneCase(s, isUpperRune, isLowerRune) }),
		"istitle": asked(isTitled),
	}
}

// isNumeric is wider than Unicode's categories: some ideographs are numbers.
func isNumeric(r rune) bool {
	return unicode.IsNumber(r) || strings.ContainsRune("一二三四五六七八九十百千万億兆零壹贰叁肆伍陆柒捌玖拾佰仟萬亿〇两兩弍貳参參陸廿卅卌幺弌弎", r)
}

// isDigitRune adds superscripts and the like, which have a digit's value, to decimal digits.
func isDigitRune(r rune) bool {
	return unicode.IsDigit(r) || strings.ContainsRune("²³¹⁰⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉①②③④⑤⑥⑦⑧⑨⑴⑵⑶⑷⑸⑹⑺⑻⑼⒈⒉⒊⒋⒌⒍⒎⒏⒐⓪⓵⓶⓷⓸⓹⓺⓻⓼⓽⓿❶❷❸❹❺❻❼❽❾➀➁➂➃➄➅➆➇➈➊➋➌➍➎➏➐➑➒", r)
}

func refusedMethod(name string) method {
	return func(*state, Value, *args) (Value, error) {
		return Value{}, &UnsupportedError{"the method " + name + " of a str"}
	}
}

// strOut is a string that a method of recv gives: marked as recv is.
func strOut(s *state, recv Value, text string) (Value, error) {
	return Value{k: str, s: text, markup: recv.markup}, s.alloc(len(text))
}

// plain refuses what would need marked text's own rules.
func plain(name string, vals ...Value) error {
	for _, v := range vals {
		if v.markup {
			return &UnsupportedError{"the method " + name + " of marked text"}
		}
	}
	return nil
}

func mapped(f func(string) string) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		if _, err := a.only("the method", 0, 0); err != nil {
			return Value{}, err
		}
		if err := s.charge(len(recv.s) / 8); err != nil {
			return Value{}, err
		}
		return strOut(s, recv, f(recv.s))
	}
}

func asked(f func(string) bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		if _, err := a.only("the method", 0, 0); err != nil {
			return Value{}, err
		}
		return Bool(f(recv.s)), s.charge(len(recv.s) / 8)
	}
}

func is(f func(rune) bool) method { return asked(func(s string) bool { return all(s, f) }) }

func wantStr(fn string, v Value) error {
	if v.k != str {
		return typeErr("%s needs a str, not %s", fn, v.typeName())
	}
	return nil
}

// trim takes characters away at the ends: whitespace, or those in chars.
func trim(text string, left, right bool, chars Value) string {
	in := isSpace
	if chars.k == str {
		if len(chars.s) == 1 {
			for left && len(text) > 0 && text[0] == chars.s[0] {
				text = text[1:]
			}
			for right && len(text) > 0 && text[len(text)-1] == chars.s[0] {
				text = text[:len(text)-1]
			}
			return text
		}
		in = func(r rune) bool { return containsRune(chars.s, r) }
	}
	for left && text != "" {
		r, n := decodeRune(text)
		if !in(r) {
			break
		}
		text = text[n:]
	}
	for right && text != "" {
		i := len(text) - 1
		for i > 0 && text[i]&0xC0 == 0x80 {
			i--
		}
		if r, _ := decodeRune(text[i:]); !in(r) {
			break
		}
		text = text[:i]
	}
	return text
}

func containsRune(s string, r rune) bool {
	for i := 0; i < len(s); {
		x, n := decodeRune(s[i:])
		if x == r {
			return true
		}
		i += n
	}
	return false
}

func stripped(left, right bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.only("strip", 0, 1)
		if err != nil {
			return Value{}, err
		}
		chars := None
		if len(given) == 1 && given[0].k != none {
			chars = given[0]
			if err := wantStr("strip", chars); err != nil {
				return Value{}, err
			}
			if err := s.charge(len(recv.s) / 64 * len(chars.s)); err != nil {
				return Value{}, err
			}
		}
		recv.s = trim(recv.s, left, right, chars)
		return recv, nil
	}
}

// span gives the part of text between start and end, which are indices as of a slice, and
// where it begins; ok is false where start is behind the end of the text.
func span(text string, bounds []Value) (part string, from int, ok bool, err error) {
	if len(bounds) == 0 {
		return text, 0, true, nil
	}
	start, end := bounds[0], None
	if len(bounds) > 1 {
		end = bounds[1]
	}
	n := int64(strLen(text))
	lo, hi, _, err := sliceBounds(n, start, end, None)
	if err != nil {
		return "", 0, false, err
	}
	if start.k != none {
		if i, _ := sliceInt(start); i > n {
			return "", 0, false, nil
		}
	}
	if lo > hi {
		return "", 0, false, nil
	}
	a := strOffset(text, int(lo))
	return text[a : a+strOffset(text[a:], int(hi-lo))], int(lo), true, nil
}

func affix(has func(s, x string) bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.only("startswith", 1, 3)
		if err != nil {
			return Value{}, err
		}
		text, _, ok, err := span(recv.s, given[1:])
		if err != nil {
			return Value{}, err
		}
		options := given[:1]
		if given[0].k == tuple {
			options = given[0].items()
		}
		for _, x := range options {
			if x.k != str {
				return Value{}, typeErr("startswith first arg must be str or a tuple of str, not %s", x.typeName())
			}
			if ok && has(text, x.s) {
				return True, s.step()
			}
		}
		return False, s.step()
	}
}

func remove(f func(s, x string) string) method {
	return func(_ *state, recv Value, a *args) (Value, error) {
		given, err := a.only("removeprefix", 1, 1)
		if err != nil {
			return Value{}, err
		}
		if err := wantStr("removeprefix", given[0]); err != nil {
			return Value{}, err
		}
		recv.s = f(recv.s, given[0].s)
		return recv, nil
	}
}

func wantInt(fn string, v Value) (int64, error) {
	if v.k != integer && v.k != boolean {
		return 0, typeErr("%s: '%s' object cannot be interpreted as an integer", fn, v.typeName())
	}
	if v.o != nil {
		return 0, typeErr("%s: int too large", fn)
	}
	return v.int(), nil
}

func strReplace(s *state, recv Value, a *args) (Value, error) {
	if len(a.pos) == 2 && len(a.kw) == 1 && a.kw[0].name == "count" {
		return Value{}, &UnsupportedError{"replace with count by name, which depends on Python's version"}
	}
	given, err := a.only("replace", 2, 3)
	if err != nil {
		return Value{}, err
	}
	if err := plain("replace", recv, given[0], given[1]); err != nil {
		return Value{}, err
	}
	count := int64(-1)
	if len(given) == 3 {
		if count, err = wantInt("replace", given[2]); err != nil {
			return Value{}, err
		}
	}
	return replaceText(s, recv.s, given[0], given[1], count)
}

func replaceText(s *state, text string, from, to Value, count int64) (Value, error) {
	if from.k != str || to.k != str {
		return Value{}, typeErr("replace needs strs")
	}
	if err := s.charge(len(text) / 16); err != nil {
		return Value{}, err
	}
	n := int64(strings.Count(text, from.s))
	if from.s == "" {
		n = int64(strLen(text)) + 1
	}
	if count >= 0 {
		n = min(n, count)
	}
	if n == 0 {
		return Str(text), nil
	}
	if grow := len(to.s) - len(from.s); grow > 0 && n > int64(s.limits.Memory/grow) {
		return Value{}, errMemory
	}
	if err := s.alloc(len(text) + int(n)*(len(to.s)-len(from.s))); err != nil {
		return Value{}, err
	}
	if err := s.charge(int(n) / 4); err != nil {
		return Value{}, err
	}
	if from.s != "" || validUTF8(text) {
		return Str(strings.Replace(text, from.s, to.s, int(n))), nil
	}
	return Value{}, &UnsupportedError{"replacing nothing in text with surrogates"}
}

func validUTF8(s string) bool { return strings.ToValidUTF8(s, "") == s }

func strJoin(s *state, recv Value, a *args) (Value, error) {
	given, err := a.only("join", 1, 1)
	if err != nil {
		return Value{}, err
	}
	items, err := collect(s, given[0])
	if err != nil {
		return Value{}, err
	}
	if err := plain("join", recv); err != nil { // which joins what is no str, too
		return Value{}, err
	}
	for _, x := range items {
		if x.k != str {
			return Value{}, typeErr("join: a str is expected, not %s", x.typeName())
		}
	}
	return joinText(s, items, recv.s)
}

// joinText joins strings.
func joinText(s *state, items []Value, sep string) (Value, error) {
	size := len(sep) * max(len(items)-1, 0)
	for _, x := range items {
		size += len(x.s)
	}
	if err := s.alloc(size); err != nil {
		return Value{}, err
	}
	var b strings.Builder
	b.Grow(size)
	for i, x := range items {
		if i > 0 {
			b.WriteString(sep)
		}
		b.WriteString(x.s)
	}
	return Str(b.String()), nil
}

func strCount(s *state, recv Value, a *args) (Value, error) {
	given, err := a.only("count", 1, 3)
	if err != nil {
		return Value{}, err
	}
	if err := wantStr("count", given[0]); err != nil {
		return Value{}, err
	}
	text, _, ok, err := span(recv.s, given[1:])
	if err != nil || !ok {
		return Int(0), err
	}
	if given[0].s == "" {
		return Int(int64(strLen(text)) + 1), nil
	}
	return Int(int64(strings.Count(text, given[0].s))), s.charge(len(text) / 16)
}

func strFind(last, must bool) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.only("find", 1, 3)
		if err != nil {
			return Value{}, err
		}
		if err := wantStr("find", given[0]); err != nil {
			return Value{}, err
		}
		text, from, ok, err := span(recv.s, given[1:])
		if err != nil {
			return Value{}, err
		}
		i := -1
		if ok {
			if last {
				i = strings.LastIndex(text, given[0].s)
			} else {
				i = strings.Index(text, given[0].s)
			}
		}
		if i < 0 {
			if must {
				return Value{}, typeErr("substring not found")
			}
			return Int(-1), s.charge(len(text) / 16)
		}
		return Int(int64(from + strLen(text[:i]))), s.charge(len(text) / 16)
	}
}

// strPad is ljust (-1), center (0) and rjust (1).
func strPad(side int) method {
	return func(s *state, recv Value, a *args) (Value, error) {
		given, err := a.only("center", 1, 2)
		if err != nil {
			return Value{}, err
		}
		width, err := wantInt("center", given[0])
		if err != nil {
			return Value{}, err
		}
		fill := Str(" ")
		if len(given) == 2 {
			fill = given[1]
		}
		if recv.markup {
			if fill, err = filterEscape(s, fill, &args{}); err != nil {
				return Value{}, err
			}
		}
		if fill.k != str || strLen(fill.s) != 1 {
			return Value{}, typeErr("the fill character must be exactly one character long")
		}
		return pad(s, recv, width, side, fill.s)
	}
}

func pad(s *state, recv Value, width int64, side int, fill string) (Value, error) {
	need := width - int64(strLen(recv.s))
	if need <= 0 {
		return recv, nil
	}
	if need > int64(s.limits.Memory) || need > math.MaxInt32 {
		return Value{}, errMemory
	}
	left := 0
	switch side {
	case 0: // Python's rule for what cannot be halved
		left = int(need/2 + need&width&1)
	case 1:
		left = int(need)
	}
	if err := s.alloc(int(need) * len(fill)); err != nil {
		return Value{}, err
	}
	return strOut(s, recv, strings.Repeat(fill, left)+recv.s+strings.Repeat(fill, int(need)-left))
}

func strZfill(s *state, recv Value, a *args) (Value, error) {
	given, err := a.only("zfill", 1, 1)
	if err != nil {
		return Value{}, err
	}
	width, err := wantInt("zfill", given[0])
	if err != nil {
		return Value{}, err
	}
	sign := ""
	rest := recv
	if recv.s != "" && (recv.s[0] == '-' || recv.s[0] == '+') {
		sign, rest.s = recv.s[:1], recv.s[1:]
	}
	v, err := pad(s, rest, width-int64(len(sign)), 1, "0")
	if err != nil {
		return v, err
	}
	return strOut(s, recv, sign+v.s)
}
