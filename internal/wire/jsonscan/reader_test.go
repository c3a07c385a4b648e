package jsonscan

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestUint64IsExact(t *testing.T) {
	for in, want := range map[string]uint64{"0": 0, " 7 ": 7, "9007199254740993": 9007199254740993, "18446744073709551615": 1<<64 - 1} {
		var r Reader
		r.Reset([]byte(in))
		got := r.Uint64()
		if r.End(); got != want || r.Err() != nil {
			t.Errorf("%q: %d, %v", in, got, r.Err())
		}
	}
	for in, want := range map[string]error{"": ErrTruncated, "18446744073709551616": ErrType, "99999999999999999999": ErrType, "-1": ErrType, "1.0": ErrType, "1e3": ErrType, "1E3": ErrType, "01": ErrSyntax, "00": ErrSyntax, `"1"`: ErrType, "null": ErrType, "1 2": ErrSyntax, "1\x00": ErrSyntax} {
		var r Reader
		r.Reset([]byte(in))
		r.Uint64()
		if r.End(); !errors.Is(r.Err(), want) {
			t.Errorf("%q: %v, want %v", in, r.Err(), want)
		}
	}
}

func TestStrings(t *testing.T) {
	for in, want := range map[string]string{`""`: "", `"abc"`: "abc", `"a\"b\\"`: `a"b\`, `"\u00e9\ud83d\ude00"`: "é😀", `"é"`: "é"} {
		var r Reader
		r.Reset([]byte(in))
		got := string(r.Str())
		if r.End(); got != want || r.Err() != nil {
			t.Errorf("%s: %q, %v", in, got, r.Err())
		}
	}
	for in, want := range map[string]error{`"`: ErrTruncated, `"abc`: ErrTruncated, `"a\"`: ErrTruncated, `"\`: ErrTruncated, `"\x"`: ErrSyntax, "\"a\nb\"": ErrSyntax, "7": ErrType} {
		var r Reader
		r.Reset([]byte(in))
		if r.Str(); !errors.Is(r.Err(), want) {
			t.Errorf("%s: %v, want %v", in, r.Err(), want)
		}
	}
}

// valid reports whether Skip takes the whole input for one value.
func valid(b []byte) bool {
	var r Reader
	r.Reset(b)
	r.Skip()
	r.End()
	return r.Err() == nil
}

func TestSkipTakesWhatIsJSON(t *testing.T) {
	for _, in := range []string{
		"null", "true", "false", "0", "-0", "1.5", "-1.5e+10", "1E5", `"x"`, "[]", "{}", "[1,[2,{}],null]", `{"a":[],"b":{"c":-1}}`, " [ 1 , 2 ] \n",
		"", "nul", "nulL", "tru", "-", "01", "-01", "1.", ".5", "1e", "1e+", "+1", "[", "[1", "[1,", "[1,]", "[,1]", "[1 2]", "{", `{"a"`, `{"a":`, `{"a":1`, `{"a":1,}`, `{,}`, `{a:1}`, `{"a" 1}`, `"a\n\u00e9\\\"\/\b\f\r\t"`, `"\u12"`, `"\u12`, `"\u12G4"`, `"\u12!4"`, `"\x"`, `"\`, `"a\`, `"\ud83d"`, `"\u123"4`, "\"long enough a text\n\"", "\"\xff12345678\"", `"\u0010`, `"\u001P"`, "\"\\u00\x101\"",
		"]", "}", "[}", "{]", "1 1", "\x00", "[\x00]",
	} {
		if got, want := valid([]byte(in)), json.Valid([]byte(in)); got != want {
			t.Errorf("%q: valid %v, want %v", in, got, want)
		}
	}
	if valid([]byte(strings.Repeat("[", maxDepth+2) + strings.Repeat("]", maxDepth+2))) {
		t.Error("a value nested too deeply is taken")
	}
	if !valid([]byte(strings.Repeat("[", maxDepth) + strings.Repeat("]", maxDepth))) {
		t.Error("a value nested as deeply as allowed is refused")
	}
}

// Whatever comes before and after, strings end where they end.
func TestStringsOfAllLengths(t *testing.T) {
	for n := range 40 {
		for _, end := range []string{`"`, `\""`, "\x1f\"", `\\"`, "\x7f\"", "\x80\xff\"", `!"`, `#]"`} {
			in := `["` + strings.Repeat("x", n) + end + "," + strings.Repeat("7", n+1) + `]`
			if got, want := valid([]byte(in)), json.Valid([]byte(in)); got != want {
				t.Errorf("%q: valid %v, want %v", in, got, want)
			}
			var r Reader
			r.Reset([]byte(in))
			r.Open('[')
			first := true
			r.More(']', &first)
			got, want := string(r.Str()), ""
			err := json.Unmarshal([]byte(in[1:strings.LastIndex(in, ",")]), &want)
			if (err == nil && utf8.ValidString(in)) != (r.Err() == nil) {
				t.Errorf("%q: %v, want %v", in, r.Err(), err)
			} else if err == nil && utf8.ValidString(in) && got != want {
				t.Errorf("%q: %q, want %q", in, got, want)
			}
		}
	}
}

func FuzzSkip(f *testing.F) {
	f.Add([]byte(`{"a":[1,2.5e-3,"x\n",null,true,false,{}],"b":[]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if valid(b) && !json.Valid(b) {
			t.Fatalf("%q is taken for JSON", b)
		}
		if json.Valid(b) && !valid(b) && strings.Count(string(b), "[")+strings.Count(string(b), "{") <= maxDepth {
			t.Fatalf("%q is not taken for JSON", b)
		}
	})
}
