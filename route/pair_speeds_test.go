package route

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestPairsTeachSpeeds: of requests that are done by two workers it is learned how fast either is, whether the prefill
// worker's part ends before the other's begins or beside it, and whether the answer is a stream.
func TestPairsTeachSpeeds(t *testing.T) {
	const slow = 4.0
	for _, whole := range []bool{false, true} {
		for _, beside := range []bool{false, true} {
			if whole && beside { // then nobody sees when the prompt was computed
				continue
			}
			r, _, c := open(t, func(c *Config) { c.Settings.Mode = "round-robin" }, // so that each gets as many
				Worker{ID: 1, Role: Decode}, Worker{ID: 2, Role: Decode}, Worker{ID: 3, Role: Decode},
				Worker{ID: 7, Role: Prefill}, Worker{ID: 8, Role: Prefill}, Worker{ID: 9, Role: Prefill})
			times := map[uint64]float64{1: slow, 7: slow}
			took := func(worker uint64, ms float64) {
				c.add(time.Duration(ms * max(times[worker], 1) * float64(time.Millisecond)))
			}
			for i := range 200 {
				id := fmt.Sprint(i)
				pair, err := r.BestPair(t.Context(), Prompt{Local: numbers(1000*i, 250)}, Options{RequestID: id, Whole: whole})
				if err != nil {
					t.Fatal(err)
				}
				took(pair.Prefill.Worker, 33.5)
				if !beside {
					r.Succeeded(id, PrefillStage)
					r.FreeStage(id, PrefillStage)
				}
				if !whole && !r.MarkPrefillComplete(id) {
					t.Error("nothing waits for a first token")
				}
				took(pair.Decode.Worker, 6*99)
				if whole && !r.MarkPrefillComplete(id) {
					t.Error("nothing waits for a first token")
				}
				r.Output(id, 100)
				r.Free(id)
			}
			speed := func(worker uint64) speed {
				for _, m := range r.members {
					if m.Worker == worker {
						return r.times.speeds.of(m.slot, rankKey{worker, 0})
					}
				}
				return speed{}
			}
			what := fmt.Sprintf("whole %v, beside %v", whole, beside)
			for _, x := range []struct {
				stage     string
				slow, not float64
			}{{"decode", speed(1).decodeStep, speed(2).decodeStep}, {"prefill", speed(7).prefillStep, speed(8).prefillStep}} {
				if got := x.slow / x.not; got < slow/2 || got > slow*2 {
					t.Errorf("%s: %s takes %.1f times as long on the slow worker, want about %v", what, x.stage, got, slow)
				}
			}
			if got := r.times.speeds.output; !(got < 220) {
				t.Errorf("%s: answers have %.0f tokens, want less than before, which was 256", what, got)
			}
			if n := r.Stats().Unknown; n > 0 {
				t.Errorf("%s: %d calls for no booking", what, n)
			}
		}
	}
}

// TestNoPairLeavesNothing: a prefill worker that was chosen in vain, as no other may go on with the request, has
// neither the request nor its targets nor what it was to fetch.
func TestNoPairLeavesNothing(t *testing.T) {
	local := numbers(1, 2000)
	r, space, _ := open(t, func(c *Config) { c.Settings.Mode = "auto" },
		Worker{ID: 1, Role: Decode, Peer: true}, Worker{ID: 8, Role: Prefill, Peer: true})
	store(t, space, 1, 0, 0, local...)
	for i := range 5 {
		_, err := r.BestPair(t.Context(), Prompt{Local: local}, Options{RequestID: fmt.Sprint(i), Allowed: []uint64{77}, Token: ptr(20 * time.Millisecond), Pull: true})
		if !errors.Is(err, ErrNoWorker) {
			t.Fatal(err)
		}
	}
	for slot, of := range r.times.speeds.ranks {
		if of.live != 0 {
			t.Errorf("slot %d has %d requests", slot, of.live)
		}
	}
	for slot, n := range r.times.fetching {
		if n != 0 {
			t.Errorf("slot %d has %d fetches", slot, n)
		}
	}
	if n := r.times.aimedAt; n != 0 {
		t.Errorf("%d requests have targets", n)
	}
	if all := r.Totals(); all.Silent.Prompt.Count() != 0 {
		t.Errorf("it counts: %+v", all.Silent)
	}
}
