package chat_test

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the processor time that the thread has had.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
