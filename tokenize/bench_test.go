package tokenize

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func BenchmarkLoad(b *testing.B) {
	for _, name := range []string{"qwen3", "gptoss", "gemma3"} {
		data, err := os.ReadFile(filepath.Join(tokensDir(b), name, "tokenizer.json"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Load(data, Options{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	var text string
	for _, s := range corpus() {
		text += s
		if len(text) > 400_000 {
			break
		}
	}
	for _, name := range []string{"qwen3", "llama3_1", "gptoss", "deepseek_v3", "gemma3", "llama2"} {
		data, err := os.ReadFile(filepath.Join(tokensDir(b), name, "tokenizer.json"))
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			tok, err := Load(data, Options{})
			if err != nil {
				b.Fatal(err)
			}
			dst := make([]uint32, 0, len(text))
			at := time.Now()
			dst, _ = tok.Encode(dst[:0], text, false)
			cold := float64(len(text)) / time.Since(at).Seconds() / 1e6
			b.SetBytes(int64(len(text)))
			b.ReportAllocs()
			for b.Loop() {
				dst, _ = tok.Encode(dst[:0], text, false)
			}
			b.ReportMetric(cold, "cold_MB/s")
			b.ReportMetric(float64(tok.Memory())/1e6, "MB")
		})
	}
}
