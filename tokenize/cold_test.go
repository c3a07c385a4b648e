package tokenize

import (
	"os"
	"path/filepath"
	"testing"
)

func BenchmarkCold(b *testing.B) {
	var text string
	for _, s := range corpus() {
		text += s
		if len(text) > 400_000 {
			break
		}
	}
	name := os.Getenv("COLD")
	data, err := os.ReadFile(filepath.Join(tokensDir(b), name, "tokenizer.json"))
	if err != nil {
		b.Fatal(err)
	}
	tok, err := Load(data, Options{})
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]uint32, 0, len(text))
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		clear(tok.cache.words)
		dst, _ = tok.Encode(dst[:0], text, false)
	}
}
