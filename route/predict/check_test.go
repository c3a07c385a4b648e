package predict

import (
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/shard"
)

// observe feeds n requests and returns the verdicts that changed something.
func observe(c *Check, id shard.RankID, n int, request func(rng *rand.Rand) (predicted, reported int)) (changes []Verdict) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range n {
		p, r := request(rng)
		if v := c.Observe(id, p, r); v != Same {
			changes = append(changes, v)
		}
	}
	return changes
}

// TestWrongAndRightAgain: predictions that differ by a block at most, or that
// one in five times miss, are right; those of another hash seed are noticed
// once, also among prompts with nothing cached; and when they hold again, once.
func TestWrongAndRightAgain(t *testing.T) {
	right := func(rng *rand.Rand) (int, int) {
		n := 16 * rng.IntN(100)
		switch rng.IntN(5) {
		case 0:
			return n, 0 // evicted on the way
		case 1:
			return 0, 0
		}
		return n, max(0, n-rng.IntN(17))
	}
	seed := func(rng *rand.Rand) (int, int) {
		if rng.IntN(3) > 0 {
			return 0, 0
		}
		return 0, 16 * (2 + rng.IntN(100))
	}
	c := New(Config{BlockSize: 16})
	id, other := shard.RankID{Worker: 1}, shard.RankID{Worker: 1, DPRank: 1}
	if got := observe(c, id, 5000, right); len(got) != 0 {
		t.Errorf("right predictions: %v", got)
	}
	if got := observe(c, other, 5000, seed); len(got) != 1 || got[0] != TurnedWrong {
		t.Errorf("another seed: %v", got)
	}
	if got := observe(c, id, 1000, seed); len(got) != 1 || got[0] != TurnedWrong {
		t.Errorf("another seed from now on: %v", got)
	}
	stats := c.Stats()
	if len(stats) != 2 || !stats[0].Wrong || stats[1].Error != 1 || stats[1].Predicted != 0 || stats[1].Under != stats[1].Reported || stats[1].Over != 0 {
		t.Errorf("%+v", stats)
	}
	if got := observe(c, id, 1000, right); len(got) != 1 || got[0] != TurnedRight {
		t.Errorf("right again: %v", got)
	}
	c.Forget(1)
	if len(c.Stats()) != 0 {
		t.Error("a forgotten worker is kept")
	}
}

// TestTooEarly: nobody is judged by a few requests.
func TestTooEarly(t *testing.T) {
	c := New(Config{BlockSize: 16, Window: 10})
	all := func(*rand.Rand) (int, int) { return 640, 0 }
	if got := observe(c, shard.RankID{}, 9, all); len(got) != 0 {
		t.Errorf("after 9 requests: %v", got)
	}
	if got := observe(c, shard.RankID{}, 1, all); len(got) != 1 {
		t.Errorf("after 10: %v", got)
	}
}

func TestMaxRanks(t *testing.T) {
	c := New(Config{BlockSize: 16, MaxRanks: 2})
	for w := range uint64(4) {
		c.Observe(shard.RankID{Worker: w}, 1, 1)
	}
	if len(c.Stats()) != 2 || c.Refused() != 2 {
		t.Errorf("%d ranks kept, %d observations refused", len(c.Stats()), c.Refused())
	}
}
