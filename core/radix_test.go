package core_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/core/coretest"
)

func newRadix() core.Index { return core.NewRadix(core.Options{}) }

func TestRadixEqualsOracle(t *testing.T) { coretest.Run(t, newRadix) }

func TestRadixEqualsOracleLong(t *testing.T) { coretest.RunLong(t, newRadix) }

func TestRadixReadersBesideWriter(t *testing.T) { coretest.RunConcurrent(t, newRadix) }

func TestRadixScripts(t *testing.T) { coretest.RunScripts(t, "testdata/scripts/*.txt", newRadix) }

func FuzzRadix(f *testing.F) { coretest.Fuzz(f, newRadix) }

// TestRadixInvariants checks the writer's structures after every operation.
func TestRadixInvariants(t *testing.T) {
	for _, g := range coretest.Generators() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range coretest.Seeds(1) {
				x := core.NewRadix(core.Options{})
				for i, op := range g.History(seed) {
					op.Apply(x)
					if i > 300 && i%97 != 0 {
						continue
					}
					if err := x.Check(); err != nil {
						t.Fatalf("seed %d, operation %d, %.300s: %v", seed, i, op.String(), err)
					}
				}
			}
		})
	}
}
