package edge

import (
	"sync"
	"testing"
)

// No id is given twice, by whomever and however many at once, and all go into headers as they are.
func TestIDsAreOnesOwn(t *testing.T) {
	var seen sync.Map
	var all sync.WaitGroup
	for range 2 {
		ids := NewIDs() // as another process
		for range 4 {
			all.Go(func() {
				for range 100 {
					id := ids.Next()
					if _, again := seen.LoadOrStore(id, true); again || !PlainID(id) {
						t.Errorf("%q, given before: %v", id, again)
					}
				}
			})
		}
	}
	all.Wait()
}
