package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

func filterAbs(_ *state, v Value, a *args) (Value, error) {
	if _, err := a.only("abs", 0, 0); err != nil {
		return v, err
	}
	switch {
	case v.k == float:
		return Float(math.Abs(v.float())), nil
	case v.isNumber():
		if v.toBig().Sign() < 0 {
			return arith("-", Int(0), v)
		}
		return unary("+", v)
	}
	return v, typeErr("bad operand type for abs(): '%s'", v.typeName())
}

func filterAttr(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("attr", "name")
	if err != nil {
		return v, err
	}
	if err := wantStr("attr", given[0]); err != nil {
		return v, err
	}
	r, err := attribute(s, v, given[0].s)
	if r.k == missing && err == nil {
		r = undef(given[0].s)
	}
	return r, err
}

func filterBatch(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("batch", "linecount", "fill_with")
	if err != nil {
		return v, err
	}
	n, err := wantInt("batch", given[0])
	if err != nil {
		return v, err
	}
	if n < 1 || n > 1<<20 {
		return v, &UnsupportedError{"batches of such a size"}
	}
	fill := or(given[1], None)
	var it iterator
	return generator(func(s *state) (Value, bool, error) {
		if it == nil {
			var err error
			if it, err = iterate(v); err != nil {
				return v, false, err
			}
		}
		var row []Value
		for int64(len(row)) < n {
			x, ok, err := it.next(s)
			if err != nil {
				return x, false, err
			}
			if !ok {
				break
			}
			if err := s.alloc(valueBytes); err != nil {
				return x, false, err
			}
			row = append(row, x)
		}
		if len(row) == 0 {
			return Value{}, false, nil
		}
		if fill.k != none {
			if err := s.alloc((int(n) - len(row)) * valueBytes); err != nil {
				return v, false, err
			}
			for int64(len(row)) < n {
				row = append(row, fill)
			}
		}
		return List(row...), true, s.step()
	}), nil
}

func filterSlice(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("slice", "slices", "fill_with")
	if err != nil {
		return v, err
	}
	n, err := wantInt("slice", given[0])
	if err != nil {
		return v, err
	}
	if n < 1 {
		return v, &UnsupportedError{"slices of such a number"}
	}
	fill := or(given[1], None)
	var items []Value
	started, i, offset := false, int64(0), int64(0)
	return generator(func(s *state) (Value, bool, error) {
		if !started {
			started = true
			var err error
			if items, err = collect(s, v); err != nil {
				return v, false, err
			}
		}
		if i >= n {
			return Value{}, false, nil
		}
		per, extra := int64(len(items))/n, int64(len(items))%n
		from := offset + i*per
		if i < extra {
			offset++
		}
		row := append([]Value(nil), items[from:offset+(i+1)*per]...)
		if fill.k != none && i >= extra {
			row = append(row, fill)
		}
		i++
		if err := s.alloc((len(row) + 1) * valueBytes); err != nil {
			return v, false, err
		}
		return List(row...), true, s.step()
	}), nil
}

// parseInt is int(text, base) of Python; ok is false where it raises ValueError.
func parseInt(text string, base int64) (v Value, ok bool, err error) {
	text = trim(text, true, true, None)
	if !asciiOnly(text) {
		return v, false, &UnsupportedError{"numbers in other than ASCII digits"}
	}
	if base != 0 && (base < 2 || base > 36) {
		return v, false, nil
	}
	sign := ""
	if text != "" && (text[0] == '-' || text[0] == '+') {
		sign, text = text[:1], text[1:]
	}
	if len(text) > 1 && text[0] == '0' {
		at := strings.IndexByte("box", text[1]|0x20)
		if at >= 0 {
			if b := []int64{2, 8, 16}[at]; base == b || base == 0 {
				base, text = b, strings.TrimPrefix(text[2:], "_")
			}
		} else if base == 0 && strings.Trim(text, "0_") != "" {
			return v, false, nil
		}
	}
	if base == 0 {
		base = 10
	}
	if text == "" || strings.HasPrefix(text, "_") || strings.HasSuffix(text, "_") || strings.Contains(text, "__") || strings.ContainsAny(text, "+-") {
		return v, false, nil
	}
	text = strings.ReplaceAll(text, "_", "")
	if len(text) > maxIntDigits {
		return v, false, nil
	}
	n, ok := new(big.Int).SetString(strings.TrimPrefix(sign, "+")+text, int(base))
	if !ok {
		return v, false, nil
	}
	return bigValue(n), true, nil
}

// parseFloat is float(text) of Python.
func parseFloat(text string) (f float64, ok bool, err error) {
	text = trim(text, true, true, None)
	if !asciiOnly(text) {
		return 0, false, &UnsupportedError{"numbers in other than ASCII digits"}
	}
	for i := 0; i < len(text); i++ {
		if text[i] == '_' && (i == 0 || i+1 == len(text) || !isDigit(text[i-1]) || !isDigit(text[i+1])) || text[i]|0x20 == 'x' {
			return 0, false, nil
		}
	}
	f, perr := strconv.ParseFloat(strings.ReplaceAll(text, "_", ""), 64)
	return f, perr == nil || isRange(perr), nil
}

// truncFloat is int(f); ok is false for what is no number.
func truncFloat(f float64) (Value, bool) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return Value{}, false
	}
	n, _ := big.NewFloat(f).Int(nil)
	return bigValue(n), true
}

func filterInt(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("int", "default", "base")
	if err != nil {
		return v, err
	}
	def := or(given[0], Int(0))
	switch {
	case v.k == float:
		if math.IsInf(v.float(), 0) {
			return v, typeErr("cannot convert float infinity to integer")
		}
		if n, ok := truncFloat(v.float()); ok {
			return n, nil
		}
		return def, nil
	case v.isNumber():
		return unary("+", v)
	case v.k == undefined:
		return v, undefErr(v)
	case v.k == str:
		base, err := wantInt("int", or(given[1], Int(10)))
		if err != nil {
			base = -1
		}
		n, ok, err := parseInt(v.s, base)
		if ok || err != nil {
			return n, err
		}
		f, ok, err := parseFloat(v.s)
		if err != nil {
			return v, err
		}
		if ok {
			if n, ok := truncFloat(f); ok {
				return n, nil
			}
		}
	}
	return def, nil
}

func filterFloat(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("float", "default")
	if err != nil {
		return v, err
	}
	switch {
	case v.isNumber():
		f, err := v.toFloat()
		return Float(f), err
	case v.k == undefined:
		return v, undefErr(v)
	case v.k == str:
		f, ok, err := parseFloat(v.s)
		if err != nil {
			return v, err
		}
		if ok {
			return Float(f), nil
		}
	}
	return or(given[0], Float(0)), nil
}

// roundFloat is round(f, digits): to the nearest, the even of two as near, decided by the
// exact value.
func roundFloat(f float64, digits int) float64 {
	if math.IsNaN(f) || math.IsInf(f, 0) || digits > 300 {
		return f
	}
	if digits >= 0 {
		r, _ := strconv.ParseFloat(strconv.FormatFloat(f, 'f', digits, 64), 64)
		return r
	}
	if digits < -308 {
		return math.Copysign(0, f)
	}
	p := math.Pow(10, float64(-digits))
	return math.RoundToEven(f/p) * p
}

func filterRound(_ *state, v Value, a *args) (Value, error) {
	given, err := a.bind("round", "precision", "method")
	if err != nil {
		return v, err
	}
	how := or(given[1], Str("common"))
	if how.k != str || how.s != "common" && how.s != "ceil" && how.s != "floor" {
		return v, typeErr("method must be common, ceil or floor")
	}
	precision := or(given[0], Int(0))
	if v.k == undefined {
		return v, undefErr(v)
	}
	if !v.isNumber() {
		return v, typeErr("type %s doesn't define __round__ method", v.typeName())
	}
	if how.s != "common" {
		p, err := arith("**", Int(10), precision)
		if err != nil {
			return v, err
		}
		x, err := arith("*", v, p)
		if err != nil {
			return v, err
		}
		f, err := x.toFloat()
		if err != nil {
			return v, err
		}
		if x.k != float {
			return arith("/", x, p)
		}
		if how.s == "ceil" {
			f = math.Ceil(f)
		} else {
			f = math.Floor(f)
		}
		n, ok := truncFloat(f)
		if !ok {
			return v, typeErr("cannot convert float to integer")
		}
		return arith("/", n, p)
	}
	if precision.k == none {
		return v, &UnsupportedError{"rounding to None"}
	}
	digits, err := wantInt("round", precision)
	if err != nil {
		return v, err
	}
	digits = max(min(digits, 400), -400)
	if v.k == float {
		return Float(roundFloat(v.float(), int(digits))), nil
	}
	if digits >= 0 {
		return unary("+", v)
	}
	return v, &UnsupportedError{"rounding integers to tens"}
}

func filterSum(s *state, v Value, a *args) (Value, error) {
	given, err := a.bind("sum", "attribute", "start")
	if err != nil {
		return v, err
	}
	total := or(given[1], Int(0))
	if total.k == str {
		return v, typeErr("sum() can't sum strings")
	}
	get, err := attrGetter(given[0])
	if err != nil {
		return v, err
	}
	items, err := collect(s, v)
	if err != nil {
		return v, err
	}
	for _, x := range items {
		if x.k == float && len(items) > 1 {
			// From 3.12 on Python adds floats with compensation.
			return v, &UnsupportedError{"the sum of floats, which depends on Python's version"}
		}
		if get != nil {
			if x, err = get(s, x); err != nil {
				return v, err
			}
		}
		if total, err = binary(s, "+", total, x); err != nil {
			return v, err
		}
		if err := s.step(); err != nil {
			return v, err
		}
	}
	return total, nil
}
