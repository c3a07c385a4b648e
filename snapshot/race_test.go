package snapshot

import (
	"bytes"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestRaceDetectorSeesPacking: chunks go from one goroutine to another, and
// packing and unpacking them is assembly.
func TestRaceDetectorSeesPacking(t *testing.T) {
	p, err := newPacker()
	if err != nil {
		t.Fatal(err)
	}
	c := chunk{kind: kindRuns, meta: bytes.Repeat([]byte("squeezed "), 10_000)}
	t.Run("pack", func(t *testing.T) {
		racetest.Expect(t, true, func() { c.meta[50_000] = 'z' }, func() { p.pack(&c) })
	})
	t.Run("unpack", func(t *testing.T) {
		var file bytes.Buffer
		w, err := newChunkWriter(&file)
		if err == nil {
			err = w.write(p.pack(&c), c.size())
		}
		if err != nil {
			t.Fatal(err)
		}
		r, err := newChunkReader(&file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := r.next()
		if err != nil {
			t.Fatal(err)
		}
		racetest.Expect(t, true, func() { s.part[0][len(s.part[0])/2]++ }, func() { _ = r.unpack(&s, new(chunk)) })
	})
}
