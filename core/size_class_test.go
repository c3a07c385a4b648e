package core

import "testing"

// TestSizeClasses: what a length of memory is accounted with is what the allocator takes for it.
func TestSizeClasses(t *testing.T) {
	src := make([]byte, 80<<10)
	for n := 1; n <= len(src); n++ {
		if n > 1024 && n&127 > 1 {
			n |= 127 // the next at which a class may begin or end
			continue
		}
		if got, want := sizeClass(int64(n)), int64(cap(append([]byte(nil), src[:n]...))); got != want {
			t.Fatalf("%d bytes take %d, not %d", n, want, got)
		}
	}
	if got := sizeClass(0); got != 0 {
		t.Errorf("nothing takes %d bytes", got)
	}
}
