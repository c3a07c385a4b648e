package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core/coretest"
)

// TestLargeScripts runs the scenarios that are too large for the oracle beside
// them: what they expect was printed by the oracle alone.
func TestLargeScripts(t *testing.T) {
	skipRaces(t)
	coretest.RunScripts(t, "testdata/large/*.txt", newRadix)
}
