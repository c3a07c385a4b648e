package mptest

import (
	"encoding/binary"
	"math"
)

// Map is an object: keys and values in turn.
type Map []any

// Raw is a value that is msgpack already.
type Raw []byte

// Encode returns v as msgpack. It knows nil, bool, int, uint32, uint64,
// float64, string, []byte (binary), []any, []uint32, []uint64, Map and Raw;
// anything else becomes a byte that no reader accepts.
func Encode(v any) []byte { return appendValue(nil, v) }

func appendValue(b []byte, v any) []byte {
	list := func(n int) { b = binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n)) }
	switch v := v.(type) {
	case nil:
		return append(b, 0xc0)
	case bool:
		if v {
			return append(b, 0xc3)
		}
		return append(b, 0xc2)
	case int:
		return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
	case uint32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), v)
	case uint64:
		return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	case float64:
		return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		return append(binary.BigEndian.AppendUint16(append(b, 0xda), uint16(len(v))), v...)
	case []byte:
		return append(binary.BigEndian.AppendUint16(append(b, 0xc5), uint16(len(v))), v...)
	case []any:
		list(len(v))
		for _, e := range v {
			b = appendValue(b, e)
		}
		return b
	case []uint32:
		list(len(v))
		for _, e := range v {
			b = appendValue(b, e)
		}
		return b
	case []uint64:
		list(len(v))
		for _, e := range v {
			b = appendValue(b, e)
		}
		return b
	case Map:
		b = binary.BigEndian.AppendUint16(append(b, 0xde), uint16(len(v)/2))
		for _, e := range v {
			b = appendValue(b, e)
		}
		return b
	case Raw:
		return append(b, v...)
	}
	return append(b, 0xc1) // the byte that is never msgpack
}
