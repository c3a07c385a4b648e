package jinja

import (
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"
)

// Float is a float.
func Float(f float64) Value { return Value{k: float, n: math.Float64bits(f)} }

func (v Value) float() float64 { return math.Float64frombits(v.n) }

// toFloat is float(v) of a number.
func (v Value) toFloat() (float64, error) {
	if v.k == float {
		return v.float(), nil
	}
	if b := v.big(); b != nil {
		f, _ := new(big.Float).SetInt(b).Float64()
		if math.IsInf(f, 0) {
			return 0, typeErr("int too large to convert to float")
		}
		return f, nil
	}
	return float64(v.int()), nil
}

func isRange(err error) bool { return errors.Is(err, strconv.ErrRange) }

func appendInt(b []byte, i int64) []byte { return strconv.AppendInt(b, i, 10) }

// appendFloat writes a float as Python's repr does: the shortest digits that give it
// again, with an exponent below 1e-4 and from 1e16.
func appendFloat(b []byte, f float64) []byte {
	switch {
	case math.IsNaN(f):
		return append(b, "nan"...)
	case math.IsInf(f, 1):
		return append(b, "inf"...)
	case math.IsInf(f, -1):
		return append(b, "-inf"...)
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.AppendFloat(b, f, 'e', -1, 64)
	}
	from := len(b)
	b = strconv.AppendFloat(b, f, 'f', -1, 64)
	for _, c := range b[from:] {
		if c == '.' {
			return b
		}
	}
	return append(b, ".0"...)
}

func floatRepr(f float64) string { return string(appendFloat(nil, f)) }

// appendInteger writes an integer of any size.
func appendInteger(b []byte, v Value) ([]byte, error) {
	if n := v.big(); n != nil {
		// Digits are four bits each at the least, so that the long ones are never made.
		if n.BitLen() > 4*maxIntDigits {
			return b, errDigits
		}
		s := n.String()
		if len(strings.TrimPrefix(s, "-")) > maxIntDigits {
			return b, errDigits
		}
		return append(b, s...), nil
	}
	return appendInt(b, v.int()), nil
}

var errDigits error = &Error{"an integer of more than 4300 digits cannot be written"}

// maxBits bounds the integers that templates compute.
const maxBits = 1 << 16

var errHuge error = &LimitError{"an integer of more than 65536 bits"}

func checkBig(b *big.Int) (Value, error) {
	if b.BitLen() > maxBits {
		return Value{}, errHuge
	}
	return bigValue(b), nil
}

// arith computes with numbers.
func arith(op string, a, b Value) (Value, error) {
	if a.k == float || b.k == float {
		x, err := a.toFloat()
		if err != nil {
			return Value{}, err
		}
		y, err := b.toFloat()
		if err != nil {
			return Value{}, err
		}
		return floatArith(op, x, y)
	}
	if op == "/" {
		return trueDiv(a, b)
	}
	if a.big() == nil && b.big() == nil {
		if v, ok := smallArith(op, a.int(), b.int()); ok {
			return v, nil
		}
	}
	x, y, z := a.toBig(), b.toBig(), new(big.Int)
	switch op {
	case "+":
		return checkBig(z.Add(x, y))
	case "-":
		return checkBig(z.Sub(x, y))
	case "*":
		return checkBig(z.Mul(x, y))
	case "//", "%":
		if y.Sign() == 0 {
			return Value{}, typeErr("integer division or modulo by zero")
		}
		m := new(big.Int)
		z.QuoRem(x, y, m)
		if m.Sign() != 0 && m.Sign() != y.Sign() {
			z.Sub(z, big.NewInt(1))
			m.Add(m, y)
		}
		if op == "%" {
			z = m
		}
		return checkBig(z)
	}
	// **
	if y.Sign() < 0 {
		fx, err := a.toFloat()
		if err != nil {
			return Value{}, err
		}
		fy, err := b.toFloat()
		if err != nil {
			return Value{}, err
		}
		return floatArith(op, fx, fy)
	}
	if x.BitLen() > 1 && (!y.IsInt64() || int64(x.BitLen()-1)*min(y.Int64(), maxBits+1) > maxBits) {
		return Value{}, errHuge
	}
	if x.BitLen() <= 1 { // -1, 0, 1: only the exponent's last bit says anything
		y = new(big.Int).SetBit(new(big.Int).And(y, big.NewInt(1)), 1, btoi(y.Sign() > 0))
	}
	return checkBig(z.Exp(x, y, nil))
}

func btoi(b bool) uint {
	if b {
		return 1
	}
	return 0
}

// smallArith computes what fits into 64 bits.
func smallArith(op string, x, y int64) (Value, bool) {
	switch op {
	case "+":
		if z := x + y; (z > x) == (y > 0) {
			return Int(z), true
		}
	case "-":
		if z := x - y; (z < x) == (y > 0) {
			return Int(z), true
		}
	case "*":
		if x > -1<<31 && x < 1<<31 && y > -1<<31 && y < 1<<31 {
			return Int(x * y), true
		}
	case "//", "%":
		if y == 0 || x == math.MinInt64 {
			return Value{}, false
		}
		q, m := x/y, x%y
		if m != 0 && (m < 0) != (y < 0) {
			q, m = q-1, m+y
		}
		if op == "%" {
			return Int(m), true
		}
		return Int(q), true
	}
	return Value{}, false
}

// trueDiv is a / b of integers, rounded once.
func trueDiv(a, b Value) (Value, error) {
	x, y := a.toBig(), b.toBig()
	if y.Sign() == 0 {
		return Value{}, typeErr("division by zero")
	}
	f, _ := new(big.Rat).SetFrac(x, y).Float64()
	if math.IsInf(f, 0) {
		return Value{}, typeErr("integer division result too large for a float")
	}
	if f == 0 && (x.Sign() < 0) != (y.Sign() < 0) {
		f = math.Copysign(0, -1) // the divisor's sign shows, even of a zero
	}
	return Float(f), nil
}

func floatArith(op string, x, y float64) (Value, error) {
	switch op {
	case "+":
		return Float(x + y), nil
	case "-":
		return Float(x - y), nil
	case "*":
		return Float(x * y), nil
	case "**":
		if x == 0 && y < 0 {
			return Value{}, typeErr("0.0 cannot be raised to a negative power")
		}
		if x < 0 && !math.IsInf(x, 0) && y != math.Trunc(y) && !math.IsInf(y, 0) {
			return Value{}, &UnsupportedError{"complex numbers"}
		}
		z := math.Pow(x, y)
		if math.IsInf(z, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
			return Value{}, typeErr("numerical result out of range")
		}
		return Float(z), nil
	}
	if y == 0 {
		return Value{}, typeErr("float division by zero")
	}
	switch op {
	case "/":
		return Float(x / y), nil
	}
	// Python's divmod of floats: the remainder has the divisor's sign.
	mod := math.Mod(x, y)
	div := (x - mod) / y
	if mod != 0 {
		if (y < 0) != (mod < 0) {
			mod += y
			div--
		}
	} else {
		mod = math.Copysign(0, y)
	}
	if op == "%" {
		return Float(mod), nil
	}
	if div != 0 {
		floor := math.Floor(div)
		if div-floor > 0.5 {
			floor++
		}
		return Float(floor), nil
	}
	return Float(math.Copysign(0, x/y)), nil
}

// compareNumbers returns -1, 0 or 1, exactly; ok is false where one is not a number.
func compareNumbers(a, b Value) (c int, ok bool) {
	if a.k != float && b.k != float {
		if a.o == nil && b.o == nil {
			x, y := a.int(), b.int()
			switch {
			case x < y:
				return -1, true
			case x > y:
				return 1, true
			}
			return 0, true
		}
		return a.toBig().Cmp(b.toBig()), true
	}
	if a.k == float && math.IsNaN(a.float()) || b.k == float && math.IsNaN(b.float()) {
		return 0, false
	}
	return bigFloat(a).Cmp(bigFloat(b)), true
}

func bigFloat(v Value) *big.Float {
	if v.k == float {
		return new(big.Float).SetFloat64(v.float())
	}
	return new(big.Float).SetInt(v.toBig())
}
