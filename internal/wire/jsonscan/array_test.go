package jsonscan

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// written returns the numbers as an array, in one of the ways that clients
// write one.
func written(rng *rand.Rand, list []uint64) string {
	var b strings.Builder
	b.WriteString([]string{"[", " [ ", "[\n"}[rng.IntN(3)])
	comma := []string{",", ", ", " , ", ",\n\t"}[rng.IntN(4)]
	quoted := rng.IntN(4) == 0
	for i, v := range list {
		if i > 0 {
			b.WriteString(comma)
		}
		if quoted {
			b.WriteString(strconv.Quote(strconv.FormatUint(v, 10)))
		} else {
			b.WriteString(strconv.FormatUint(v, 10))
		}
	}
	return b.String() + []string{"]", " ] "}[rng.IntN(2)]
}

func TestArraysAreReadAsTheyAreWritten(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 5000 {
		list := make([]uint64, rng.IntN(40))
		for i := range list {
			if list[i] = rng.Uint64() >> rng.IntN(64); rng.IntN(8) == 0 {
				list[i] = math.MaxUint64 - uint64(rng.IntN(3))
			}
		}
		text := written(rng, list)
		var r Reader
		r.Reset([]byte(text))
		got := r.Uint64s([]uint64{7}, len(list)+2, rng.IntN(2) == 0)
		if r.End(); r.Err() != nil || !slices.Equal(got[1:], list) {
			t.Fatalf("%s: %d, %v", text, got, r.Err())
		}
		small := make([]uint32, len(list))
		for i := range list {
			small[i] = uint32(list[i])
			list[i] = uint64(small[i])
		}
		if text = written(rng, list); strings.Contains(text, `"`) {
			continue
		}
		r.Reset([]byte(text))
		if got := r.Uint32s(nil, len(list)+1); r.Err() != nil || !slices.Equal(got, small) {
			t.Fatalf("%s: %d, %v", text, got, r.Err())
		}
	}
}

// wrong has elements that are refused, with the reason.
func wrong() map[string]error {
	return map[string]error{
		"-1": ErrNegative, "-0": ErrNegative, "1.5": ErrNotInteger, "1e3": ErrNotInteger, "18446744073709551616": ErrRange,
		"99999999999999999999": ErrRange, "184467440737095516150": ErrRange, `"18446744073709551616"`: ErrRange, `"-1"`: ErrNegative,
		`"x"`: ErrNotInteger, `""`: ErrNotInteger, `" 1"`: ErrNotInteger, `"1 "`: ErrNotInteger, `"007"`: ErrNotInteger, `"1.0"`: ErrNotInteger,
		"01": ErrSyntax, "00000000000000000000000": ErrSyntax, "-": ErrSyntax, "1.": ErrSyntax, "true": ErrType, "null": ErrType, "[1]": ErrType, "": ErrSyntax, "x": ErrSyntax,
	}
}

func TestWrongElementsAreNamed(t *testing.T) {
	for element, want := range wrong() {
		for _, before := range []int{0, 1, 9} {
			for _, after := range []string{"]", ",2]", ",2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]"} {
				text := "[" + strings.Repeat("17,", before) + element + after
				var r Reader
				r.Reset([]byte(text))
				got := r.Uint64s(nil, 100, false)
				if !errors.Is(r.Err(), want) || len(got) != before {
					if element == "" && after == "]" && before == 0 {
						continue // an empty array
					}
					t.Errorf("%s: %d elements, %v; want %v", text, len(got), r.Err(), want)
				}
				r.Reset([]byte(strings.ReplaceAll(text, "18446744073709551616", "4294967296")))
				if got := r.Uint32s(nil, 100); len(got) != before && element != "" || r.Err() == nil && element != "" {
					t.Errorf("%s: %d elements of 32 bits, %v", text, len(got), r.Err())
				}
			}
		}
	}
}

func TestArraysAreBounded(t *testing.T) {
	for n := range 30 {
		text := "[" + strings.Repeat("1,", n) + "1]"
		var r Reader
		r.Reset([]byte(text))
		if got := r.Uint64s(nil, n, false); !errors.Is(r.Err(), ErrTooMany) || len(got) > n {
			t.Errorf("%d elements, %v", len(got), r.Err())
		}
		r.Reset([]byte(text))
		if got := r.Uint32s(nil, n+1); r.Err() != nil || len(got) != n+1 {
			t.Errorf("%d elements, %v", len(got), r.Err())
		}
	}
}

// What is behind the input is not looked at, and what is behind the room not written to.
func TestArraysKeepToTheirMemory(t *testing.T) {
	text := []byte("[" + strings.Repeat("7,", 300))
	memory, memory32 := make([]uint64, 400), make([]uint32, 400)
	for n := range 300 {
		list := text[: 1+2*n : 1+2*n] // whose end is missing
		var r Reader
		r.Reset(list)
		got := r.Uint64s(memory[:0:n+1], 400, false)
		r.Reset(list)
		got32 := r.Uint32s(memory32[:0:n+1], 400)
		if len(got) != n || len(got32) != n || r.Err() == nil {
			t.Fatalf("%d and %d elements of %d", len(got), len(got32), n)
		}
		r.Reset(text)
		got = r.Uint64s(memory[:0:n+1], n+1, false)
		r.Reset(text)
		got32 = r.Uint32s(memory32[:0:n+1], n+1)
		if len(got) != n+1 || len(got32) != n+1 || memory[n+1] != 0 || memory32[n+1] != 0 {
			t.Fatalf("%d and %d elements in room for %d", len(got), len(got32), n+1)
		}
	}
}

func TestSignedElements(t *testing.T) {
	var r Reader
	r.Reset([]byte(`[-1, "-1", -9223372036854775808, 18446744073709551615, 0]`))
	got := r.Uint64s(nil, 9, true)
	if want := []uint64{math.MaxUint64, math.MaxUint64, 1 << 63, math.MaxUint64, 0}; r.Err() != nil || !slices.Equal(got, want) {
		t.Errorf("%d, %v", got, r.Err())
	}
	for text, want := range map[string]error{"[-9223372036854775809]": ErrRange, "[-01]": ErrSyntax, "[-]": ErrSyntax, "[-1.5]": ErrNotInteger, "[--1]": ErrSyntax} {
		r.Reset([]byte(text))
		if r.Uint64s(nil, 9, true); !errors.Is(r.Err(), want) {
			t.Errorf("%s: %v, want %v", text, r.Err(), want)
		}
	}
}

func FuzzArray(f *testing.F) {
	for element := range wrong() {
		f.Add([]byte("[1," + element + ", 18446744073709551615]"))
	}
	f.Add([]byte(fmt.Sprintf("[%s12345678]", strings.Repeat("12345678901234567890,", 5))))
	f.Fuzz(func(t *testing.T, b []byte) {
		var want []json.Number
		plain := json.Unmarshal(b, &want) == nil && want != nil && !strings.ContainsAny(string(b), "\"n")
		for _, e := range want {
			_, err := strconv.ParseUint(string(e), 10, 64)
			plain = plain && err == nil
		}
		var r Reader
		r.Reset(b)
		got := r.Uint64s(nil, 1000, false)
		if r.End(); strings.ContainsAny(string(b), "\"") {
			return // decimal texts are this package's own
		}
		if plain != (r.Err() == nil) && len(want) <= 1000 {
			t.Fatalf("%q: %v, encoding/json %v", b, r.Err(), want)
		}
		for i := range got {
			if r.Err() == nil && strconv.FormatUint(got[i], 10) != string(want[i]) {
				t.Fatalf("%q: %d, want %v", b, got, want)
			}
		}
	})
}

// FuzzArrayOneByOne compares what is taken from many bytes at a time with the same
// elements read one after the other.
func FuzzArrayOneByOne(f *testing.F) {
	for _, b := range placed() {
		f.Add(b)
	}
	f.Fuzz(oneByOne)
}

// placed returns arrays with elements of each kind at every place of 64 bytes.
func placed() (all [][]byte) {
	for element := range wrong() {
		all = append(all, []byte("[1,-22, "+element+",18446744073709551615, -9223372036854775808,-9223372036854775809,4294967296]"))
	}
	all = append(all, []byte("[12345678,123456789,1234567890123456,12345678901234567, -0,0,-00,00,9\xff9,9]"))
	for _, element := range []string{
		"1", "12345678", "-1", "18446744073709551615", "18446744073709551616", "18450000000000000000", "-9223372036854775808", "-9223372036854775809",
		"4294967295", "123456789", "123456789012345678901", "01", "-", "1 ", " 1", "  1", "-0", "1.5", `"1"`, "",
		"1 2", "1- 2", "1-", "1000000000000000000000001",
	} {
		for n := range 64 {
			all = append(all, []byte("["+strings.Repeat("7", n%7+1)+strings.Repeat(", 4", n/7)+strings.Repeat(","+element, 40)+",1,2]"))
		}
	}
	return all
}

// Long arrays, of which some have a byte that is wrong, are read as one by one.
func TestLongArraysOneByOne(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	for range 2000 {
		b, comma := []byte{'['}, []string{",", ", "}[rng.IntN(2)]
		longest := rng.IntN(64)
		for range rng.IntN(600) {
			if v := rng.Uint64() >> longest >> rng.IntN(64-longest); rng.IntN(3) == 0 {
				b = append(strconv.AppendInt(b, int64(v), 10), comma...)
			} else {
				b = append(strconv.AppendUint(b, v, 10), comma...)
			}
		}
		b = append(b, "1]"...)
		if rng.IntN(2) == 0 {
			b[rng.IntN(len(b))] = " ,-0]x\xff"[rng.IntN(7)]
		}
		oneByOne(t, b)
	}
}

func oneByOne(t *testing.T, b []byte) {
	b = append(b, strings.Repeat(" ", 2*wide)...) // so that all of it is within reach
	const limit = 500
	for _, signed := range []bool{false, true} {
		got, want, one := array(b, func(r *Reader) []uint64 { return r.Uint64s(make([]uint64, 0, limit), limit, signed) },
			func(r *Reader) uint64 { return r.Whole(signed) }, limit)
		if !slices.Equal(got, want) || one != "" {
			t.Fatalf("%q, signed %v: %d, one by one %d; %s", b, signed, got, want, one)
		}
	}
	got, want, one := array(b, func(r *Reader) []uint32 { return r.Uint32s(make([]uint32, 0, limit), limit) },
		func(r *Reader) uint32 { r.Peek(); return r.Uint32() }, limit)
	if !slices.Equal(got, want) || one != "" {
		t.Fatalf("%q: %d of 32 bits, one by one %d; %s", b, got, want, one)
	}
}

// array reads an array with many and with one, and says what else than elements differs.
func array[T any](b []byte, many func(*Reader) []T, one func(*Reader) T, limit int) (got, want []T, differs string) {
	var a, c Reader
	a.Reset(b)
	got = many(&a)
	c.Reset(b)
	if c.Open('[') {
		for first := true; c.More(']', &first); {
			if len(want) >= limit {
				c.tooMany(limit)
				break
			}
			if v := one(&c); c.Err() == nil {
				want = append(want, v)
			}
		}
	}
	if fmt.Sprint(a.Err()) != fmt.Sprint(c.Err()) || a.Offset() != c.Offset() {
		differs = fmt.Sprintf("%v at %d, one by one %v at %d", a.Err(), a.Offset(), c.Err(), c.Offset())
	}
	return got, want, differs
}

func BenchmarkArray(b *testing.B) {
	rng := rand.New(rand.NewPCG(1, 1))
	tokens, hashes, signed := make([]string, 8192), make([]string, 512), make([]string, 512)
	for i := range tokens {
		tokens[i] = strconv.FormatUint(uint64(rng.Uint32N(128_000)), 10)
	}
	for i := range hashes {
		h := rng.Uint64()
		hashes[i], signed[i] = strconv.FormatUint(h, 10), strconv.FormatInt(int64(h), 10)
	}
	for _, bench := range []struct {
		name     string
		elements []string
	}{{"tokens", tokens}, {"hashes", hashes}, {"signed", signed}} {
		for _, comma := range []string{",", ", "} {
			b.Run(bench.name+strconv.Quote(comma), func(b *testing.B) {
				text := []byte("[" + strings.Join(bench.elements, comma) + "]")
				n := len(bench.elements)
				longs, shorts := make([]uint64, 0, n), make([]uint32, 0, n)
				var r Reader
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					if r.Reset(text); bench.name == "tokens" {
						r.Uint32s(shorts, n)
					} else {
						r.Uint64s(longs, n, true)
					}
				}
				if r.Err() != nil {
					b.Fatal(r.Err())
				}
			})
		}
	}
}

func TestWhatIsNoDigitEndsANumber(t *testing.T) {
	for _, digits := range []string{"1234567p", "123456p8", "p2345678", "123456781234567;", "1234567812345678;", "12345678?2345678"} {
		for _, text := range []string{"[" + digits + "]", "[1," + digits + ",2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18]"} {
			var r Reader
			r.Reset([]byte(text))
			if r.Uint64s(nil, 100, false); !errors.Is(r.Err(), ErrSyntax) {
				t.Errorf("%s: %v", text, r.Err())
			}
			r.Reset([]byte(text))
			if r.Uint32s(nil, 100); r.Err() == nil {
				t.Errorf("%s is taken", text)
			}
		}
	}
}
