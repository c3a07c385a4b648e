package clocktest

import (
	"testing"
	"time"
	"unsafe"
)

// wallSecond is one second in the first word of a time with a monotonic reading
// (package time: the seconds are above 30 bits of nanoseconds).
const wallSecond = 1 << 30

// Set returns the time t, which comes from time.Now, as it is read on a machine
// whose clock was set by so many seconds meanwhile: nothing more has elapsed.
func Set(tb testing.TB, t time.Time, seconds int64) time.Time {
	tb.Helper()
	set := t
	*(*uint64)(unsafe.Pointer(&set)) += uint64(seconds) * wallSecond //nolint:gosec // there is no other way to such a time
	if set.Unix()-t.Unix() != seconds || set.Sub(t) != 0 {
		tb.Fatalf("package time keeps its readings otherwise than it did: %v was to be %d s from %v, with nothing elapsed", set, seconds, t)
	}
	return set
}
