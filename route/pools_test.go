package route

import (
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/route/account"
)

// TestPoolsThatHaveLostWhatTheyAreSaidToHave: what engines do not find of a pool counts for
// less, makes nobody doubt them, and counts again when it is found.
func TestPoolsThatHaveLostWhatTheyAreSaidToHave(t *testing.T) {
	r, _, _ := autoFleet(t, 3, nil)
	own, local := numbers(1, 100), numbers(1, 1100) // of which the pool has all
	inPool(t, r, local)
	doubted := 0
	r.mu.Lock()
	for _, m := range r.members {
		m.belief.counts = true
	}
	r.mu.Unlock()
	onHost(t, r, 1, own)
	onHost(t, r, 2, own)
	serves := func(n, found int) {
		for i := range n {
			id := fmt.Sprint(n, found, i)
			p := Prompt{Local: local, Length: 4400}
			best(t, r, p, Options{RequestID: id, Worker: ptr(uint64(1 + i%2))})
			if _, ok := r.Reported(id, Whole, p, Usage{Prompt: 4400, Cached: found}); !ok {
				t.Fatal("the report is not taken")
			}
			r.Free(id)
			r.mu.Lock()
			for _, m := range r.members {
				if m.belief.doubted {
					doubted++
				}
			}
			r.mu.Unlock()
		}
	}
	expected := func(low, high int) {
		t.Helper()
		got := best(t, r, Prompt{Local: local, Length: 4400}, Options{Worker: ptr(uint64(1))})
		if got.CachedTokens < low || got.CachedTokens > high {
			t.Errorf("%d tokens are expected, want %d to %d", got.CachedTokens, low, high)
		}
	}
	expected(4400, 4400)
	serves(40, 400)
	expected(400, 404)
	if a := best(t, r, Prompt{Local: local, Length: 4400}, Options{Excluded: []uint64{1, 3}}).Account; a.Why != account.NoShortfall || a.Reachable != a.Selected {
		t.Errorf("what the pool lacks is missed at a worker that may not be chosen: %+v", a)
	}
	serves(200, 2400)
	expected(2200, 2500)
	serves(400, 4400)
	expected(4300, 4400)
	if doubted > 0 {
		t.Errorf("ranks were doubted %d times for what the pool lacks", doubted)
	}
	serves(40, 0)
	if doubted == 0 {
		t.Error("a rank that lacks what it has itself is not doubted")
	}
}
