package shard

import (
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

var seen *member

// TestRaceDetectorSeesResets: a task is made ready for its next use while an
// owner is still at it.
func TestRaceDetectorSeesResets(t *testing.T) {
	task := newTask(8)
	ranks := make([]*member, 3)
	t.Run("outcomes", func(t *testing.T) {
		racetest.Expect(t, true, func() { task.outs[5].Stored++ }, task.reset)
	})
	t.Run("ranks", func(t *testing.T) {
		racetest.Expect(t, true, func() { seen = ranks[2] }, func() {
			task.members = ranks
			task.reset()
		})
	})
}
