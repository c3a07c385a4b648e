package jinja

import (
	"math/big"
)

// kind is what a Value is, in Python's terms.
type kind uint8

const (
	missing kind = iota // no value at all: a variable that was never set, an argument not given
	undefined
	none
	boolean
	integer
	float
	str
	list
	tuple
	dict
	view   // keys, values or items of a dict
	rng    // range(…)
	iter   // an iterator, as filters such as map and select give
	object // everything that is called or only has attributes: o says what
)

// Value is one of Python's values as templates know them. The zero Value is no value.
// Values are immutable, but for namespaces, which only a render has, so that they can be
// shared by renders at the same time.
type Value struct {
	k      kind
	markup bool // of a str: it came from |safe
	n      uint64
	s      string // of a str; of undefined, what is undefined
	o      any
}

// The constants of Python.
var (
	None  = Value{k: none}
	True  = Value{k: boolean, n: 1}
	False = Value{k: boolean}
)

// Str is a string. It is taken as it is: valid UTF-8, in which lone surrogates may be
// written as three bytes.
func Str(s string) Value { return Value{k: str, s: s} }

// Int is an integer.
func Int(i int64) Value { return Value{k: integer, n: uint64(i)} }

// Bool is True or False.
func Bool(b bool) Value {
	if b {
		return True
	}
	return False
}

// List is a list of items, which belong to it from then on.
func List(items ...Value) Value { return Value{k: list, o: &seq{items}} }

func tupleOf(items []Value) Value { return Value{k: tuple, o: &seq{items}} }

// seq is what lists and tuples hold.
type seq struct{ items []Value }

func (v Value) int() int64     { return int64(v.n) }
func (v Value) big() *big.Int  { b, _ := v.o.(*big.Int); return b }
func (v Value) items() []Value { return v.o.(*seq).items }
func (v Value) dict() *Dict    { return v.o.(*Dict) }
func (v Value) isSeq() bool    { return v.k == list || v.k == tuple }
func undef(what string) Value  { return Value{k: undefined, s: what} }
func (v Value) isNumber() bool { return v.k == integer || v.k == float || v.k == boolean }

// bigValue is b as a Value, which keeps b only if it has more than 64 bits.
func bigValue(b *big.Int) Value {
	if b.IsInt64() {
		return Int(b.Int64())
	}
	return Value{k: integer, o: b}
}

// toBig gives an integer or boolean of any size.
func (v Value) toBig() *big.Int {
	if b := v.big(); b != nil {
		return b
	}
	return big.NewInt(v.int())
}

// IsMissing tells whether v is no value at all, as Get answers for what is not there.
func (v Value) IsMissing() bool { return v.k == missing }

// IsNone tells whether v is None.
func (v Value) IsNone() bool { return v.k == none }

// AsString gives a string's text, and whether v is one.
func (v Value) AsString() (string, bool) { return v.s, v.k == str }

// AsList gives a list's items, and whether v is one. They are not the caller's to change.
func (v Value) AsList() ([]Value, bool) {
	if v.k != list {
		return nil, false
	}
	return v.items(), true
}

// AsDict gives a dict, and whether v is one.
func (v Value) AsDict() (*Dict, bool) {
	if v.k != dict {
		return nil, false
	}
	return v.dict(), true
}

// Truth is Python's bool(v).
func (v Value) Truth() bool {
	switch v.k {
	case missing, undefined, none:
		return false
	case boolean:
		return v.n != 0
	case integer:
		return v.o != nil || v.n != 0
	case float:
		return v.float() != 0
	case str:
		return v.s != ""
	case list, tuple:
		return len(v.items()) > 0
	case dict:
		return v.dict().Len() > 0
	case view:
		return v.o.(*dictView).d.Len() > 0
	case rng:
		return v.o.(*pyRange).len() > 0
	}
	return true
}

// typeName is the name of v's type in errors.
func (v Value) typeName() string {
	switch v.k {
	case missing, undefined:
		return "Undefined"
	case none:
		return "NoneType"
	case boolean:
		return "bool"
	case integer:
		return "int"
	case float:
		return "float"
	case str:
		return "str"
	case list:
		return "list"
	case tuple:
		return "tuple"
	case dict:
		return "dict"
	case view:
		return "dict_" + v.o.(*dictView).what.String()
	case rng:
		return "range"
	case iter:
		return "generator"
	}
	switch v.o.(type) {
	case *macro:
		return "Macro"
	case *loopObj:
		return "LoopContext"
	case *namespace:
		return "Namespace"
	}
	return "function"
}

// key is what makes two values the same key of a dict: numbers are equal across types.
type key struct {
	k kind
	n uint64
	s string
}

// maxKey bounds a tuple as a key.
const maxKey = 1 << 16

// hash gives v as a key, or says that a value of its type cannot be one.
func (v Value) hash() (key, error) {
	switch v.k {
	case str:
		return key{k: str, s: v.s}, nil
	case none:
		return key{k: none}, nil
	case undefined:
		return key{k: undefined}, nil
	case boolean, integer:
		if b := v.big(); b != nil {
			return key{k: integer, n: 1, s: b.String()}, nil
		}
		return key{k: integer, n: v.n}, nil
	case float:
		f := v.float()
		if f == float64(int64(f)) && f >= -1<<62 && f <= 1<<62 {
			return key{k: integer, n: uint64(int64(f))}, nil
		}
		return key{k: float, n: v.n}, nil
	case tuple:
		var b []byte
		for _, x := range v.items() {
			h, err := x.hash()
			if err != nil {
				return h, err
			}
			b = append(b, byte(h.k))
			for i := range 8 {
				b = append(b, byte(h.n>>(8*i)))
			}
			b = append(appendInt(b, int64(len(h.s))), ':')
			b = append(b, h.s...)
			if len(b) > maxKey {
				return key{}, &LimitError{"a longer key than it may have"}
			}
		}
		return key{k: tuple, s: string(b)}, nil
	case list, dict, view:
		return key{}, typeErr("unhashable type: '%s'", v.typeName())
	}
	return key{}, &UnsupportedError{"a " + v.typeName() + " as key"}
}

// same tells whether two values are one object, as far as Python's identity can be told
// from the outside.
func same(a, b Value) bool {
	if a.k != b.k {
		return false
	}
	switch a.k {
	case none, undefined:
		return true
	case boolean, integer, float:
		return a.n == b.n && a.o == nil && b.o == nil
	case str:
		return a.s == b.s
	}
	return a.o == b.o
}
