//go:build !linux

package clocktest

import "time"

var begun = time.Now()

// Thread returns the time of day where the thread's own is not to be had.
func Thread() time.Duration { return time.Since(begun) }

// Process is Thread for all threads of the process.
func Process() time.Duration { return Thread() }
