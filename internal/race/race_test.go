package race_test

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/race"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestAccessesAreSeen: what is told counts as what it says, for all of the slice
// and nothing besides.
func TestAccessesAreSeen(t *testing.T) {
	words := make([]uint64, 100)
	for name, c := range map[string]struct {
		report bool
		a, b   func()
	}{
		"write beside a read":       {true, func() { words[60] = 1 }, func() { race.Read(words) }},
		"read beside a write":       {true, func() { _ = words[60] + words[61] }, func() { race.Write(words[60:]) }},
		"write beside a write":      {true, func() { words[99] = 1 }, func() { race.Write(words) }},
		"read beside a read":        {false, func() { race.Read(words) }, func() { race.Read(words) }},
		"write beside others' read": {false, func() { words[60] = 1 }, func() { race.Read(words[:60]); race.Read(words[61:]) }},
		"nothing":                   {false, func() { words[60] = 1 }, func() { race.Read(words[60:60]); race.Write[uint64](nil) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			racetest.Expect(t, c.report, c.a, c.b)
		})
	}
}
