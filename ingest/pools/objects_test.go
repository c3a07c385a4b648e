package pools

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/event"
)

func objectKey(part int, hash uint64) string {
	return fmt.Sprintf("d@m@tp_rank:%d@pcp0@dcp0@pp_rank:0@group:0@%048x%016x", part, 7, hash)
}

// TestABlockIsThereWithAllItsParts: random objects beside a set of keys.
func TestABlockIsThereWithAllItsParts(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		const parts, hashes = 3, 5
		o := newObjects(&event.PoolSource{Prefix: "d@m", Parts: parts}, 100)
		there := map[string]bool{}
		whole := func(h uint64) bool {
			for p := range parts {
				if !there[objectKey(p, h)] {
					return false
				}
			}
			return true
		}
		for step := range 200 {
			hash := rnd.Uint64N(hashes)
			key := objectKey(rnd.IntN(parts), hash)
			before := whole(hash)
			kind := []event.Kind{event.Stored, event.Removed}[rnd.IntN(2)]
			there[key] = kind == event.Stored
			want := 0
			switch after := whole(hash); {
			case after && !before:
				want = 1
			case before && !after:
				want = -1
			}
			if h, got := o.apply(kind, []byte(key)); h != hash || got != want {
				t.Fatalf("seed %d, step %d: block %d changed by %d, want %d by %d", seed, step, h, got, hash, want)
			}
			n := 0
			for h := range uint64(hashes) {
				if o.has(h) != whole(h) {
					t.Fatalf("seed %d, step %d: block %d is there: %v", seed, step, h, o.has(h))
				}
				if whole(h) {
					n++
				}
			}
			if o.whole != n {
				t.Fatalf("seed %d, step %d: %d blocks, want %d", seed, step, o.whole, n)
			}
		}
	}
}

// TestObjectsOfOthers: other models', other groups', too many parts and too many blocks are
// counted, and take no room.
func TestObjectsOfOthers(t *testing.T) {
	o := newObjects(&event.PoolSource{Prefix: "d@m", Parts: 1, Groups: []uint32{2}}, 2)
	say := func(format string, a ...any) int {
		_, change := o.apply(event.Stored, fmt.Appendf(nil, format, a...))
		return change
	}
	const hash = "00000000000000000000000000000000"
	for _, foreign := range []string{"d@n@tp_rank:0@group:2@" + hash, "d@m@tp_rank:0@group:0@" + hash, "m@tp_rank:0@group:2@" + hash, "12", "what"} {
		if say("%s", foreign) != 0 {
			t.Errorf("%s is a block", foreign)
		}
	}
	for i := range event.MaxPoolParts {
		if say("d@m@tp_rank:%d@group:2@%s", i, hash) != map[int]int{0: 1}[i] {
			t.Errorf("part %d", i)
		}
	}
	for i := range 3 {
		say("d@m@tp_rank:0@group:2@%032x", i)
	}
	say("d@m@tp_rank:x@group:2@%s", hash)
	if want := (Left{Foreign: 5, Parts: 1, Room: 1}); o.left != want || len(o.blocks) != 2 {
		t.Errorf("%+v, %d blocks", o.left, len(o.blocks))
	}
}
