package blockhash

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/racetest"
)

// TestRaceDetectorSeesHashing: long blocks are hashed by assembly.
func TestRaceDetectorSeesHashing(t *testing.T) {
	for _, size := range []int{1, 16, 64, 256, MaxBlockSize} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			tokens := make([]uint32, 4*size)
			racetest.Expect(t, true,
				func() { tokens[4*size-1] = 7 },
				func() {
					if _, err := LocalHashes(nil, tokens, size, Options{}); err != nil {
						t.Error(err)
					}
				})
		})
	}
	t.Run("identifier", func(t *testing.T) {
		t.Parallel()
		id := make([]byte, 1000)
		racetest.Expect(t, true, func() { id[999] = 1 }, func() { MultimodalHash(id) })
	})
}
