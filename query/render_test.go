package query

import (
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
)

func TestNumbersAreWrittenAsStrconvWritesThem(t *testing.T) {
	numbers := []uint64{99999, 1 << 32, 1 << 63, math.MaxUint64}
	for v := range uint64(10100) {
		numbers = append(numbers, v)
	}
	for _, v := range numbers {
		if got := string(appendUint([]byte("x"), ":", v)); got != "x:"+strconv.FormatUint(v, 10) {
			t.Errorf("%d is written %q", v, got)
		}
	}
}

func TestStringsReadBack(t *testing.T) {
	for _, text := range []string{"", "a", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "é😀\u2028", "a\xffb", strings.Repeat("x", 5000)} {
		var back string
		if err := json.Unmarshal(appendString(nil, text), &back); err != nil || back != strings.ToValidUTF8(text, "\uFFFD") {
			t.Errorf("%q is read back as %q, %v", text, back, err)
		}
	}
}
