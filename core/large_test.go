package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core/coretest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestLargeScripts runs the scenarios that are too large for the oracle beside
// them: what they expect was printed by the oracle alone.
func TestLargeScripts(t *testing.T) {
	racetest.Without(t, "one goroutine does it, for long")
	coretest.RunScripts(t, "testdata/large/*.txt", newRadix)
}
