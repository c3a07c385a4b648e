package query

import (
	"bytes"
	"io"
	"runtime"
	"testing"

	"github.com/klauspost/compress/gzip"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// What is kept for the next body keeps no body.
func TestADecompressedBodyIsNotKept(t *testing.T) {
	for name, limit := range map[string]int64{"whole": 1 << 20, "too large": 10} {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		_, _ = io.WriteString(w, "a body that is longer than ten bytes")
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		body, gone := new([4096]byte), make(chan struct{})
		n := copy(body[:], packed.Bytes())
		runtime.AddCleanup(body, func(done chan struct{}) { close(done) }, gone)
		z := new(gunzipper)
		if out, err := z.gunzip(body[:n], limit); (err == nil) != (limit > 10) {
			t.Fatalf("%s: %q, %v", name, out, err)
		}
		waittest.For(t, name+": the body is free", func() bool {
			runtime.GC()
			select {
			case <-gone:
				return true
			default:
				return false
			}
		})
		runtime.KeepAlive(z)
	}
}
