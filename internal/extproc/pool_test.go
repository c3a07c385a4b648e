package extproc

import (
	"testing"

	"google.golang.org/grpc/mem"
)

// A buffer is as long as asked, and at most twice that is held for it: of parts of a body there
// are many at once.
func TestPoolHoldsLittleMore(t *testing.T) {
	for _, n := range []int{0, 1, 1023, 1024, 1025, 16<<10 + 9, 62_256, 64<<10 + 256, 220_300, 1 << 20, 1<<20 + 1} {
		b := Pool.Get(n)
		if len(*b) != n || cap(*b) > max(2*n, 1<<leastBits) {
			t.Errorf("%d bytes: %d of %d", n, len(*b), cap(*b))
		}
		*b = (*b)[:n/2]
		Pool.Put(b)
	}
	odd := make([]byte, 3000)
	Pool.Put(&odd) // is not kept, as it is no whole size
	for range 10 {
		if b := Pool.Get(4000); len(*b) != 4000 {
			t.Fatal(len(*b))
		}
	}
}

// gRPC gives only those back that are above a size of its own.
func TestShortMessagesArePooled(t *testing.T) {
	data, err := Codec{}.Marshal(&Response{Kind: RequestHeaders})
	if err != nil {
		t.Fatal(err)
	}
	defer data.Free()
	if _, left := data[0].(mem.SliceBuffer); left {
		t.Error("its buffer is left to the collector")
	}
}
