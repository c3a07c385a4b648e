package clocktest

import (
	"time"

	"golang.org/x/sys/unix"
)

// Thread returns the processor time that the thread has had: who measures with it keeps to one
// (runtime.LockOSThread).
func Thread() time.Duration { return clock(unix.CLOCK_THREAD_CPUTIME_ID) }

// Process returns the processor time that all threads of the process have had.
func Process() time.Duration { return clock(unix.CLOCK_PROCESS_CPUTIME_ID) }

func clock(id int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}
