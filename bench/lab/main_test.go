package lab

import (
	"fmt"
	"os"
	"testing"

	"github.com/kvatlas/kvatlas/internal/race"
)

// One goroutine runs a whole fleet here: the race detector has nothing to find in that,
// and takes ten times as long. make test runs these tests without it.
func TestMain(m *testing.M) {
	if race.Enabled {
		fmt.Println("left to the run without the race detector")
		return
	}
	os.Exit(m.Run())
}
