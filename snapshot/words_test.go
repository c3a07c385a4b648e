package snapshot

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
)

// TestWordsAreReadWhereTheyStand: whatever is before them in a chunk, its words are not copied, and one that is
// not aligned gives the same.
func TestWordsAreReadWhereTheyStand(t *testing.T) {
	p, err := newPacker()
	if err != nil {
		t.Fatal(err)
	}
	want := make([]uint64, 1000)
	for i := range want {
		want[i] = uint64(i) * 0x9E3779B97F4A7C15 // does not compress
	}
	var words []byte
	for _, w := range want {
		words = binary.LittleEndian.AppendUint64(words, w)
	}
	var file bytes.Buffer
	w, err := newChunkWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	const chunks = 16
	for i := range chunks {
		c := chunk{kind: kindRuns, meta: make([]byte, i), words: words}
		for j := range c.meta {
			c.meta[j] = byte(i + j)
		}
		if err := w.write(p.pack(&c), c.size()); err != nil {
			t.Fatal(err)
		}
	}
	r, err := newChunkReader(&file)
	if err != nil {
		t.Fatal(err)
	}
	var c chunk
	for i := range chunks {
		s, err := r.next()
		if err == nil {
			err = r.unpack(&s, &c)
		}
		if err != nil {
			t.Fatal(err)
		}
		var d decoder
		d.begin(&c)
		if !slices.Equal(d.words, want) {
			t.Fatalf("chunk %d has other words", i)
		}
		if d.room != nil && littleEndian {
			t.Errorf("chunk %d, whose words follow %d bytes, was copied", i, len(c.meta))
		}
		moved := append(make([]byte, 0, len(words)+8), make([]byte, 1+i%7)...)
		if got := d.toWords(append(moved, words...)[len(moved):]); !slices.Equal(got, want) {
			t.Errorf("words that begin %d bytes off are read as others", len(moved))
		}
	}
}
