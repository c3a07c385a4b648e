package jinja

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
)

// TestEscapedStrings: strings with escapes share memory, and each is what the standard library reads.
func TestEscapedStrings(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	parts := []string{"\n", "\t", `"`, `\`, "/", "a", "plain", "sixteen bytes of", strings.Repeat("long ", 40), "ä", "語", "🙂", "\x01", "\u2028"}
	var want []string
	for i := range 400 {
		var b strings.Builder
		for range rnd.IntN(12) {
			b.WriteString(parts[rnd.IntN(len(parts))])
		}
		if i%100 == 50 { // several times the memory that is taken at a time
			b.WriteString(strings.Repeat("a line\n", maxStrings/2))
		}
		want = append(want, b.String())
	}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	v, err := ParseJSON(string(text))
	if err != nil {
		t.Fatal(err)
	}
	list, ok := v.AsList()
	if !ok || len(list) != len(want) {
		t.Fatalf("%d of %d strings", len(list), len(want))
	}
	for i, e := range list {
		if s, _ := e.AsString(); s != want[i] {
			t.Fatalf("string %d is %.100q, want %.100q", i, s, want[i])
		}
	}
}
