package route

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/load"
)

// TestUnseenOfARetry: what was expected of a request at a worker that failed it says nothing of when its prompt is computed at
// the next one, nor when there may be room for another.
func TestUnseenOfARetry(t *testing.T) {
	r, _, clock := open(t, func(c *Config) { c.Settings.Mode = "auto" }, workers(2)...)
	o := Options{RequestID: "x", Whole: true}
	p := Prompt{Local: numbers(1, 1000)}
	first := best(t, r, p, o)
	r.Free("x")
	if at, any := r.NextUnseen(); any {
		t.Errorf("a first token is expected at %v of a request that is over", at)
	}
	best(t, r, Prompt{Local: numbers(10_000, 10_000)}, Options{RequestID: "ahead", Allowed: []uint64{2}})
	o.Excluded = []uint64{first.Worker}
	if first.Worker == 2 {
		t.Fatal("the test has the busy worker first")
	}
	again := best(t, r, p, o)
	if again.First < 2*first.First {
		t.Fatalf("%v expected behind a long prompt, %v without it", again.First, first.First)
	}
	if at, _ := r.NextUnseen(); !at.Equal(clock.now.Add(again.First)) {
		t.Errorf("the next first token is expected after %v, not after %v", at.Sub(clock.now), again.First)
	}
	prefilling := func() int { r.Expire(); return r.Loads()[1].Prefilling }
	begun := clock.now
	clock.now = begun.Add(first.First + time.Millisecond)
	if n := prefilling(); n != 2 {
		t.Errorf("%d prompts are to be computed there when the first worker would have computed it, want 2", n)
	}
	clock.now = begun.Add(again.First)
	if n := prefilling(); n != 1 {
		t.Errorf("%d prompts are to be computed there when it should have computed it, want 1", n)
	}
}

// What is unseen ends in order, each once, and none before its time.
func TestUnseen(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's
	for range 200 {
		var u unseen
		var want []int64
		begun := time.Unix(0, 0)
		for now := int64(0); now < 400; now += 40 {
			for range r.IntN(12) {
				at := now + r.Int64N(300)
				u.add(load.Key{Owner: uint64(at)}, begun.Add(time.Duration(at)))
				want = append(want, at)
			}
			slices.Sort(want)
			due, _ := slices.BinarySearch(want, now+1)
			var got []int64
			u.until(begun.Add(time.Duration(now)), func(k load.Key, at time.Time) {
				if got = append(got, int64(k.Owner)); at.Sub(begun) != time.Duration(k.Owner) {
					t.Errorf("%v at %v", k, at)
				}
			})
			if !slices.Equal(got, want[:due]) {
				t.Fatalf("by %d: %v, want %v", now, got, want[:due])
			}
			if want = want[due:]; len(u) != len(want) {
				t.Fatalf("%d are left, want %d", len(u), len(want))
			}
		}
	}
}
