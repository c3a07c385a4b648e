package clocktest

import (
	"time"

	"golang.org/x/sys/unix"
)

// Thread returns the processor time that the thread has had: who measures with it keeps to one
// (runtime.LockOSThread).
func Thread() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
