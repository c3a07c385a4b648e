package msgpack

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
)

func TestIntegersOfEveryWidth(t *testing.T) {
	for _, c := range []struct {
		b    string
		want int64 // as two's complement
	}{
		{"\x00", 0}, {"\x7f", 127}, {"\xff", -1}, {"\xe0", -32},
		{"\xcc\xff", 255}, {"\xcd\xff\xff", 65535}, {"\xce\xff\xff\xff\xff", 1<<32 - 1}, {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", math.MaxInt64},
		{"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", -1}, // 2^64-1
		{"\xd0\x80", -128}, {"\xd0\x7f", 127}, {"\xd1\x80\x00", -32768}, {"\xd2\x80\x00\x00\x00", math.MinInt32}, {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", math.MinInt64}, {"\xd3\x00\x00\x00\x00\x00\x00\x00\x05", 5},
	} {
		r := NewReader([]byte(c.b))
		if got := r.Bits64(); r.Err() != nil || int64(got) != c.want || r.Len() != 0 {
			t.Errorf("%x: %d, %v, %d bytes left", c.b, int64(got), r.Err(), r.Len())
		}
		r = NewReader([]byte(c.b))
		if got := r.Hash(); r.Err() != nil || int64(got) != c.want {
			t.Errorf("%x as a hash: %d, %v", c.b, int64(got), r.Err())
		}
		r = NewReader([]byte(c.b))
		got := r.Uint64()
		if negative := c.want < 0 && c.b[0] != 0xcf; (r.Err() != nil) != negative || (!negative && got != uint64(c.want)) {
			t.Errorf("%x unsigned: %d, %v", c.b, got, r.Err())
		}
		for n := range len(c.b) {
			r = NewReader([]byte(c.b[:n]))
			if r.Bits64(); !errors.Is(r.Err(), ErrTruncated) {
				t.Errorf("%x: %v", c.b[:n], r.Err())
			}
		}
	}
}

func TestHashesAsBinary(t *testing.T) {
	digest := make([]byte, 32)
	copy(digest[24:], "\x01\x02\x03\x04\x05\x06\x07\x08")
	for _, b := range [][]byte{
		append([]byte{0xc4, 32}, digest...), append([]byte{0xc5, 0, 16}, digest[16:]...), append([]byte{0xc6, 0, 0, 0, 8}, digest[24:]...),
	} {
		r := NewReader(b)
		if got := r.Hash(); r.Err() != nil || got != 0x0102030405060708 {
			t.Errorf("%x: %x, %v", b, got, r.Err())
		}
	}
	for _, b := range []string{"\xc4\x071234567", "\xa8abcdefgh", "\xc0", "\xcb12345678"} {
		r := NewReader([]byte(b))
		if r.Hash(); !errors.Is(r.Err(), ErrType) {
			t.Errorf("%x: %v", b, r.Err())
		}
	}
}

func TestUint32sOfMixedWidths(t *testing.T) {
	b := []byte("\xdc\x00\x0a\x05\xcc\xc8\xcd\x01\x2c\xce\x00\x01\x11\x70\xcf\x00\x00\x00\x00\xff\xff\xff\xff\xd0\x07\xd1\x00\x08\xd2\x00\x00\x00\x09\xd3\x00\x00\x00\x00\x00\x00\x00\x0a\x7f")
	want := []uint32{99, 5, 200, 300, 70000, 1<<32 - 1, 7, 8, 9, 10, 127}
	r := NewReader(b)
	if got := r.AppendUint32s([]uint32{99}); r.Err() != nil || !slices.Equal(got, want) || r.Len() != 0 {
		t.Errorf("%v, %v", got, r.Err())
	}
	for n := range b {
		r := NewReader(b[:n])
		if got := r.AppendUint32s([]uint32{99}); !errors.Is(r.Err(), ErrTruncated) || !slices.Equal(got, want[:1]) {
			t.Errorf("first %d bytes: %v, %v", n, got, r.Err())
		}
	}
	for _, bad := range []string{"\x91\xff", "\x96\xff\x00\x00\x00\x00\x00", "\x91\xa1x", "\x91\xcf\x00\x00\x00\x01\x00\x00\x00\x00", "\x05"} {
		r := NewReader([]byte(bad))
		if r.AppendUint32s(nil); !errors.Is(r.Err(), ErrType) {
			t.Errorf("%x: %v", bad, r.Err())
		}
	}
	r = NewReader([]byte("\xc0\x01"))
	if got := r.AppendUint32s(nil); len(got) != 0 || r.Err() != nil || r.Len() != 1 {
		t.Errorf("nil: %v, %v", got, r.Err())
	}
}

// everyType is one array with a value of each type.
var everyType = "\xdc\x00\x19" +
	"\xc0\xc2\xc3\x01\xff\xcc\x01\xcd\x01\x02\xd0\x01" + // 8
	"\xca1234\xcb12345678" + // 10
	"\xa1x\xd9\x01x\xda\x00\x01x\xdb\x00\x00\x00\x01x" + // 14
	"\xc4\x01x\xc5\x00\x01x\xc6\x00\x00\x00\x01x" + // 17
	"\xd4tx\xd8t0123456789abcdef\xc7\x01tx\xc9\x00\x00\x00\x01tx" + // 21
	"\x92\x01\x90\x81\x01\x80\xde\x00\x01\x01\x02\xdf\x00\x00\x00\x01\x01\x02" // 25

func TestSkipEveryType(t *testing.T) {
	r := NewReader([]byte(everyType + "\x2a"))
	r.Skip()
	if got := r.Uint64(); got != 42 || r.Err() != nil {
		t.Errorf("after the skipped value: %d, %v", got, r.Err())
	}
	for n := range len(everyType) {
		r := NewReader([]byte(everyType[:n]))
		if r.Skip(); !errors.Is(r.Err(), ErrTruncated) {
			t.Errorf("first %d bytes: %v", n, r.Err())
		}
	}
	r = NewReader([]byte("\x91\xc1"))
	if r.Skip(); !errors.Is(r.Err(), ErrType) {
		t.Errorf("the byte that is never used: %v", r.Err())
	}
	r = NewReader(bytes.Repeat([]byte{0x91}, 1<<20)) // no recursion
	if r.Skip(); !errors.Is(r.Err(), ErrTruncated) {
		t.Errorf("a deep nest: %v", r.Err())
	}
	r = NewReader(bytes.Repeat([]byte{0xdd, 0, 0, 0, 16}, 1<<10))
	if r.Skip(); !errors.Is(r.Err(), ErrTruncated) {
		t.Errorf("a wide nest: %v", r.Err())
	}
}

func TestLengthsAreBounded(t *testing.T) {
	for _, b := range []string{"\xdd\xff\xff\xff\xff", "\xdc\xff\xff\x00", "\x92\x00"} {
		r := NewReader([]byte(b))
		if n := r.Array(); n != 0 || !errors.Is(r.Err(), ErrTruncated) {
			t.Errorf("%x: array of %d, %v", b, n, r.Err())
		}
	}
	for _, b := range []string{"\xdf\xff\xff\xff\xff", "\xde\xff\xff\x00", "\x81\x00"} {
		r := NewReader([]byte(b))
		if n := r.Map(); n != 0 || !errors.Is(r.Err(), ErrTruncated) {
			t.Errorf("%x: map of %d, %v", b, n, r.Err())
		}
	}
	for _, b := range []string{"\xdb\xff\xff\xff\xff", "\xd9\x02x", "\xa2x"} {
		r := NewReader([]byte(b))
		if s := r.Str(); s != nil || !errors.Is(r.Err(), ErrTruncated) {
			t.Errorf("%x: string %q, %v", b, s, r.Err())
		}
	}
	r := NewReader([]byte("\xc6\xff\xff\xff\xff"))
	if s := r.Bin(); s != nil || !errors.Is(r.Err(), ErrTruncated) {
		t.Errorf("binary %q, %v", s, r.Err())
	}
}

func TestFirstErrorStays(t *testing.T) {
	r := NewReader([]byte("\xa1x\x01\x02"))
	r.Uint64()
	first := r.Err()
	if !errors.Is(first, ErrType) {
		t.Fatal(first)
	}
	if r.Str() != nil || r.Array() != 0 || r.Map() != 0 || r.Bits64() != 0 || r.Bin() != nil || r.Nil() || r.Kind() != None || r.Float64() != 0 || r.Len() != 0 {
		t.Error("a read after an error gives something")
	}
	if r.Skip(); r.Err() != first {
		t.Errorf("the error became %v", r.Err())
	}
	r.Fail(nil)
	if r.Err() != first {
		t.Errorf("the error became %v", r.Err())
	}
}

func TestFloats(t *testing.T) {
	for b, want := range map[string]float64{"\xca\x3f\x80\x00\x00": 1, "\xcb\x41\xd9\x54\xfc\x40\x10\x00\x00": 1700000000.25, "\x05": 5, "\xff": -1, "\xcf\xff\xff\xff\xff\xff\xff\xff\xff": 1 << 64} {
		r := NewReader([]byte(b))
		if got := r.Float64(); got != want || r.Err() != nil {
			t.Errorf("%x: %v, %v", b, got, r.Err())
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(everyType))
	f.Add([]byte("\x93\x01\xc4\x0801234567\xce\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		skip := NewReader(b)
		skip.Skip()
		if skip.Err() == nil && skip.Offset() == 0 {
			t.Fatal("skipped nothing")
		}
		for _, read := range []func(*Reader){
			func(r *Reader) { r.AppendUint32s(nil) }, func(r *Reader) { r.AppendHashes(nil) }, func(r *Reader) { r.Hash() },
			func(r *Reader) { r.Bits64() }, func(r *Reader) { r.Float64() }, func(r *Reader) { r.Str() }, func(r *Reader) { r.Bin() },
		} {
			r := NewReader(b)
			read(&r)
			if r.Err() == nil && (skip.Err() != nil || r.Offset() != skip.Offset()) {
				t.Fatalf("read %d bytes, skipping steps over %d (%v)", r.Offset(), skip.Offset(), skip.Err())
			}
		}
	})
}

func BenchmarkAppendUint32s(b *testing.B) {
	for _, limit := range []uint32{128, 65536, 152000} {
		b.Run(fmt.Sprint(limit), func(b *testing.B) {
			in := []byte{0xdc, 0x04, 0x00}
			for i := range uint32(1024) {
				switch v := i * 2654435761 % limit; {
				case v < 128:
					in = append(in, byte(v))
				case v < 256:
					in = append(in, 0xcc, byte(v))
				case v < 65536:
					in = append(in, 0xcd, byte(v>>8), byte(v))
				default:
					in = append(in, 0xce, byte(v>>24), byte(v>>16), byte(v>>8), byte(v))
				}
			}
			var dst []uint32
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				r := NewReader(in)
				if dst = r.AppendUint32s(dst[:0]); len(dst) != 1024 {
					b.Fatal(r.Err())
				}
			}
		})
	}
}
