package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
)

// TestHistoriesWithoutVectors: processors that lack them give the same answers.
func TestHistoriesWithoutVectors(t *testing.T) { historiesWith(t, core.NoVectors) }

// TestHistoriesWithNarrowVectors: so do those that have no wide ones.
func TestHistoriesWithNarrowVectors(t *testing.T) { historiesWith(t, core.Narrow) }

func historiesWith(t *testing.T, v core.VectorSet) {
	if !core.HasVectors(v) {
		t.Skip("this machine has no such vectors")
	}
	core.WithVectors(v, func() {
		for _, g := range coretest.Solo() {
			for _, seed := range coretest.Seeds(1) {
				if at, err := coretest.Check(newRadix, g.History(seed), g.Interval); err != nil {
					t.Fatalf("%s, seed %d, operation %d: %v", g.Name, seed, at, err)
				}
			}
		}
	})
}
