package racetest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/internal/race"
)

// variable names the test whose functions this process is to run.
const variable = "KVATLAS_RACETEST"

// Without skips the test under the race detector. make test finds who calls it by this line, and runs
// them without.
func Without(t *testing.T, why string) {
	t.Helper()
	if race.Enabled {
		t.Skipf("%s: make test runs it without the race detector", why)
	}
}

// Few returns n, and a tenth under the race detector, for histories that one goroutine applies. make
// test finds the tests that call it by this line, and runs them without, too.
func Few(n int) int {
	if race.Enabled {
		return (n + 9) / 10
	}
	return n
}

// Expect runs a and b at once, some times over, and fails the test unless the
// race detector reports just what is expected. What the test does before is done in the other
// process as well; what it does after is not.
func Expect(t *testing.T, report bool, a, b func()) {
	t.Helper()
	if !race.Enabled {
		t.Skip("built without the race detector: it takes go test -race, and that a C compiler")
	}
	if os.Getenv(variable) == t.Name() {
		for range 10 { // two accesses at the very same time may be missed
			done := make(chan struct{})
			go func() {
				defer close(done)
				a()
			}()
			b()
			<-done
		}
		t.SkipNow()
	}
	parts := strings.Split(t.Name(), "/")
	for i := range parts {
		parts[i] = "^" + regexp.QuoteMeta(parts[i]) + "$"
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+strings.Join(parts, "/"), "-test.v")
	// It need not wait at its end for reports: both functions are over.
	cmd.Env = append(os.Environ(), variable+"="+t.Name(), "GORACE=atexit_sleep_ms=0")
	out, err := cmd.CombinedOutput()
	text := string(out)
	reported := strings.Contains(text, "WARNING: DATA RACE")
	switch {
	case !reported && (err != nil || !strings.Contains(text, "--- SKIP: "+t.Name())):
		t.Fatalf("the other process: %v\n%s", err, text)
	case reported != report:
		t.Errorf("a race is reported: %v, want %v\n%s", reported, report, text)
	}
}
