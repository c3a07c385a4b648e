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

func BenchmarkArray(b *testing.B) {
	for _, bench := range []struct {
		name, element string
		n             int
	}{{"u64", "17446744073709551615", 512}, {"u32", "128256", 8192}} {
		b.Run(bench.name, func(b *testing.B) {
			text := []byte("[" + strings.Repeat(bench.element+",", bench.n-1) + bench.element + "]")
			longs, shorts := make([]uint64, 0, bench.n), make([]uint32, 0, bench.n)
			var r Reader
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if r.Reset(text); bench.name == "u64" {
					r.Uint64s(longs, bench.n, false)
				} else {
					r.Uint32s(shorts, bench.n)
				}
			}
			if r.Err() != nil {
				b.Fatal(r.Err())
			}
		})
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
