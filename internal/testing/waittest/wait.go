package waittest

import (
	"testing"
	"time"
)

// Patience is how long a test waits for something that is sure to happen.
const Patience = time.Minute

const between = 5 * time.Millisecond // looks

// Until waits until f returns nil; the test fails with its last error.
func Until(t testing.TB, f func() error) {
	t.Helper()
	tick := time.NewTicker(between)
	defer tick.Stop()
	for end := time.Now().Add(Patience); ; <-tick.C {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// For waits until ok returns true; what says for what.
func For(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(between)
	defer tick.Stop()
	for end := time.Now().Add(Patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}
