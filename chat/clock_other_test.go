//go:build !linux

package chat_test

import "time"

var begun = time.Now()

// threadTime is the time of day where the thread's own is not to be had.
func threadTime() time.Duration { return time.Since(begun) }
