package waittest

import (
	"testing"
	"time"
)

// Ends calls f, which takes seconds at most, or many minutes, where it is at fault: that is told
// by three times Patience, and by no smaller time. What says for f. f may not end the test itself
// (t.Fatal); where it does not return it goes on until the test's process ends.
func Ends(t testing.TB, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // ends with f
		defer close(done)
		f()
	}()
	late := time.NewTimer(3 * Patience)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
		t.Fatalf("it does not end: %s", what)
	}
}
