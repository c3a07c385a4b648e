package tokens

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/core/coretest"
)

// step is one event of a history.
type step struct {
	what   string // agreed, differed, renew, left
	epoch  uint64
	worker uint64
	kind   Kind
}

// Whatever comes in whichever order: a kind is trusted exactly if it was seen to agree, and
// no text or chat, nor anything of the kind, was seen to differ since the last renewal, in comparisons that began after it.
func TestProofHistories(t *testing.T) {
	for seed := range uint64(200 * coretest.Scale()) {
		r := rand.New(rand.NewPCG(seed, 1))
		var p Proof
		var history []step // of the epoch
		for range 60 {
			s := step{worker: r.Uint64N(3), kind: Kind(r.IntN(int(kinds))), epoch: p.Epoch()}
			if r.IntN(4) == 0 { // one that began before
				s.epoch -= min(s.epoch, 1+r.Uint64N(3))
			}
			var before [kinds]State
			for k := range kinds {
				before[k] = p.State(k)
			}
			switch n := r.IntN(20); {
			case n < 13:
				s.what = "agreed"
				p.Agreed(s.epoch, s.worker, s.kind)
			case n < 14:
				s.what = "differed"
				p.Differed(s.epoch, Difference{Worker: s.worker, Prompts: s.kind.String()})
			case n < 17:
				s.what = "left"
				p.Left(s.worker)
			case n < 18:
				was := p.Epoch()
				p.Renew()
				if history = nil; p.Epoch() <= was {
					t.Fatal("an epoch comes twice")
				}
			}
			if s.what != "" && (s.epoch == p.Epoch() || s.what == "left") {
				history = append(history, s)
			}
			for k := range kinds {
				want := judge(history, k)
				if got := p.State(k); got != want {
					t.Fatalf("seed %d: %v is %v, want %v\n%+v", seed, k, got, want, history)
				}
				if before[k] == Disagrees && p.State(k) != Disagrees && history != nil {
					t.Fatalf("seed %d: trust came back without a renewal", seed)
				}
				for w := range uint64(3) {
					if got, want := p.Agrees(w, k), agrees(history, w, k); got != want {
						t.Fatalf("seed %d: worker %d, %v: %v, want %v\n%+v", seed, w, k, got, want, history)
					}
				}
			}
		}
	}
}

// judge says the state after a history, read from its beginning.
func judge(history []step, k Kind) State {
	state := Unproven
	for _, s := range history {
		switch {
		case s.what == "differed" && (s.kind <= Chats || k == s.kind):
			return Disagrees
		case s.what == "agreed" && s.kind == k:
			state = Trusted
		}
	}
	return state
}

func agrees(history []step, worker uint64, k Kind) (is bool) {
	for _, s := range history {
		switch {
		case s.what == "differed" && (s.kind <= Chats || k == s.kind):
			return false
		case s.worker != worker:
		case s.what == "left":
			is = false
		case s.what == "agreed" && s.kind == k:
			is = true
		}
	}
	return is
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		a, b []uint32
		want int
	}{
		{nil, nil, -1},
		{[]uint32{1, 2}, []uint32{1, 2}, -1},
		{[]uint32{1, 2}, []uint32{1, 3}, 1},
		{[]uint32{1}, []uint32{1, 3}, 1},
		{[]uint32{2}, nil, 0},
	} {
		if a, b := Diff(c.a, c.b), Diff(c.b, c.a); a != c.want || b != c.want {
			t.Error(fmt.Sprint(c), a, b)
		}
	}
}
