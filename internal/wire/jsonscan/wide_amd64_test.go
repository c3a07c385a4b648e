package jsonscan

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

// Machines without the vectors read the same.
func TestArraysWithoutVectors(t *testing.T) {
	if !vectors {
		t.Skip("this machine has none, so that the other tests show it")
	}
	vectors = false
	defer func() { vectors = true }()
	TestArraysAreReadAsTheyAreWritten(t)
	TestWrongElementsAreNamed(t)
	TestArraysAreBounded(t)
	for _, b := range placed() {
		oneByOne(t, b)
	}
}

// Where a text is plain the vectors see as it is seen byte by byte.
func TestPlainByVectors(t *testing.T) {
	if !vectors {
		t.Skip("this machine has none")
	}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		b := bytes.Repeat([]byte{byte(' ' + rng.IntN(2))}, rng.IntN(400))
		for range rng.IntN(4) {
			if len(b) > 0 {
				b[rng.IntN(len(b))] = byte(rng.Uint32())
			}
		}
		i := rng.IntN(len(b) + 1)
		want := i
		for want < len(b) && b[want] >= ' ' && b[want] != '"' && b[want] != '\\' {
			want++
		}
		got := plain(b, i)
		if got > want || got < want && len(b)-got >= 8 {
			t.Fatalf("%q is plain from %d to %d, not %d", b, i, want, got)
		}
		if len(b)-i >= 2*64 {
			if at := vectorPlain(b, i); at != want && !(at < want && len(b)-at < 64) {
				t.Fatalf("%q is plain from %d to %d, vectors say %d", b, i, want, at)
			}
		}
	}
}

func BenchmarkPlain(b *testing.B) {
	text := append(bytes.Repeat([]byte("You are a helpful assistant. "), 330), `"}],"model":"m"}`...)
	end := bytes.IndexByte(text, '"')
	for name, with := range map[string]bool{"vectors": vectors, "words": false} {
		b.Run(name, func(b *testing.B) {
			had := vectors
			vectors = with
			defer func() { vectors = had }()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if plain(text, 0) != end {
					b.Fatal("it ends elsewhere")
				}
			}
		})
	}
}
