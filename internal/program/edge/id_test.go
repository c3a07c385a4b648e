package edge

import (
	"sync"
	"testing"
)

// No id is given twice, by however many at once, all go into headers as they are, and none says
// what the next one is: no half of them is there again.
func TestIDsAreOnesOwn(t *testing.T) {
	var seen sync.Map
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 100 {
				id := NewID()
				if len(id) != 32 || !PlainID(id) {
					t.Errorf("%q", id)
					return
				}
				for _, half := range []string{id[:16], id[16:]} {
					if _, again := seen.LoadOrStore(half, true); again {
						t.Errorf("%q, and its %s was given before", id, half)
					}
				}
			}
		})
	}
	all.Wait()
}
