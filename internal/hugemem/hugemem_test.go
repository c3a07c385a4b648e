package hugemem

import (
	"testing"
	"unsafe"
)

func TestBlocksAreAlignedZeroedAndWritable(t *testing.T) {
	for _, size := range []int{Size, 3 * Size} {
		b := Alloc(size)
		if len(b.Words) != size/8 {
			t.Fatalf("%d words, want %d", len(b.Words), size/8)
		}
		if b.mapped && uintptr(unsafe.Pointer(&b.Words[0]))%Size != 0 {
			t.Errorf("block of %d bytes is not aligned", size)
		}
		for i := range b.Words {
			if b.Words[i] != 0 {
				t.Fatalf("word %d is not zero", i)
			}
			b.Words[i] = uint64(i)
		}
		for i := range b.Words {
			if b.Words[i] != uint64(i) {
				t.Fatalf("word %d does not keep its value", i)
			}
		}
		b.Free()
	}
}
