package route

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
)

// decoding puts so many requests on the worker, of 10,000 tokens each and with that target for each
// further one, and has them decode.
func decoding(t *testing.T, r *Router, worker uint64, n int, target time.Duration) {
	t.Helper()
	for i := range n {
		id := fmt.Sprint("there", i)
		best(t, r, Prompt{Local: numbers(100_000*(i+1), 10_000/testBlock)}, Options{RequestID: id, Worker: &worker, Token: &target})
		r.MarkPrefillComplete(id)
	}
}

// TestTargets: a request goes where the most keep their targets. Ten requests on the one rank, which has its
// prompt, take 11 ms for each token, and with it 11.4.
func TestTargets(t *testing.T) {
	local := numbers(1, 2000) // 8,000 tokens: about 140 ms
	for name, c := range map[string]struct {
		there time.Duration // target of those that decode there
		own   Options
		want  uint64
	}{
		"nobody has any":                         {0, Options{}, 1},
		"others would miss theirs":               {11200 * time.Microsecond, Options{}, 2},
		"others keep theirs":                     {50 * time.Millisecond, Options{}, 1},
		"others have missed theirs":              {time.Millisecond, Options{}, 1},
		"its own is kept nowhere":                {11200 * time.Microsecond, Options{FirstToken: ptr(time.Millisecond)}, 2},
		"its own is over":                        {50 * time.Millisecond, Options{FirstToken: ptr(time.Second), Waited: time.Second}, 1},
		"its own, for each token, is kept there": {0, Options{Token: ptr(50 * time.Millisecond)}, 1},
		"its own is kept at the other":           {0, Options{Token: ptr(8 * time.Millisecond)}, 2},
		"the first token comes too late":         {0, Options{FirstToken: ptr(100 * time.Millisecond), Token: ptr(11 * time.Millisecond)}, 1},
	} {
		r, _, _ := autoFleet(t, 2, local)
		decoding(t, r, 1, 10, c.there)
		got := best(t, r, Prompt{Local: local}, c.own)
		if got.Worker != c.want {
			c.own.Explain = true
			t.Errorf("%s: worker %d, want %d: %v", name, got.Worker, c.want, best(t, r, Prompt{Local: local}, c.own).Ranks)
		}
		for i := range 10 {
			r.Free(fmt.Sprint("there", i))
		}
		if a := r.times; a.aimedAt != 0 || len(a.aims) > 1 && len(a.aims[r.members[0].slot]) != 0 {
			t.Errorf("%s: of requests that are over targets are left: %d, %v", name, a.aimedAt, a.aims)
		}
	}
}

// TestWhoHasLostSparesOthers: where a request makes all tokens later wherever it goes, it goes to those that miss their target
// anyway, however far they are from it, and not to those who would just keep it.
func TestWhoHasLostSparesOthers(t *testing.T) {
	for _, lost := range []time.Duration{8 * time.Millisecond, 6 * time.Millisecond, 3 * time.Millisecond, time.Millisecond} {
		r, _, _ := autoFleet(t, 2, nil)
		for i := range 20 {
			id, w, target := fmt.Sprint("there", i), uint64(1+i%2), 12*time.Millisecond
			if w == 1 {
				target = lost
			}
			best(t, r, Prompt{Local: numbers(100_000*(i+1), 10_000/testBlock)}, Options{RequestID: id, Worker: &w, Token: &target})
			r.MarkPrefillComplete(id)
		}
		o := Options{Token: new(time.Duration)}
		if got := best(t, r, Prompt{Local: numbers(1, 2000)}, o); got.Worker != 1 {
			o.Explain = true
			t.Errorf("of %v a token, which takes 11 ms, all have missed theirs, of 12 ms none: it goes to the latter: %v", lost, best(t, r, Prompt{Local: numbers(1, 2000)}, o).Ranks)
		}
	}
}

// TestTargetsOfAModel: those of the settings hold for whoever brings none, also for requests
// of other routers.
func TestTargetsOfAModel(t *testing.T) {
	local := numbers(1, 2000)
	all := DefaultSettings()
	all.Models = map[string]Aims{"m": {Objective: "e2e", Token: ptr(11200 * time.Microsecond)}, "n": {FirstToken: ptr(time.Second)}}
	if s := all.Of("m"); s.Objective != "e2e" || s.Targets != (Targets{Token: 11200 * time.Microsecond}) || s.Models != nil {
		t.Errorf("settings of m: %+v", s)
	}
	if s := all.Of("n"); s.Objective != "balanced" || s.Targets != (Targets{FirstToken: time.Second}) {
		t.Errorf("settings of n: %+v", s)
	}
	of, err := New(Config{BlockSize: testBlock, Settings: all, Space: event.Space{Model: "m"}})
	if err != nil || of.settings.Objective != "e2e" || of.settings.Targets != (Targets{Token: 11200 * time.Microsecond}) {
		t.Fatalf("a router of m: %+v, %v", of.settings, err)
	}
	r, _, _ := autoFleet(t, 2, local)
	r.settings.Targets = of.settings.Targets
	decoding(t, r, 1, 10, 0)
	own := Options{Token: new(time.Duration), Explain: true}
	if got := best(t, r, Prompt{Local: local}, own); got.Worker != 1 {
		t.Errorf("those there say that they have none: worker %d, want 1", got.Worker)
	}
	for i := range 10 {
		id := fmt.Sprint("there", i)
		r.Free(id)
		best(t, r, Prompt{Local: numbers(100_000*(i+1), 10_000/testBlock)}, Options{RequestID: id, Worker: ptr(uint64(1))})
		r.MarkPrefillComplete(id)
	}
	got := best(t, r, Prompt{Local: local}, own)
	if got.Worker != 2 {
		t.Errorf("those there have the model's: worker %d, want 2", got.Worker)
	}
	if f := got.Ranks[0].Formula; !strings.Contains(f, "for targets") {
		t.Errorf("the formula does not name them: %q", f)
	}
	for _, bad := range []Settings{{Mode: "auto", DeviceRatio: 1, Targets: Targets{Token: -1}}, {Mode: "auto", DeviceRatio: 1, Models: map[string]Aims{"m": {Objective: "x"}}}} {
		if err := bad.Check(); !errors.Is(err, ErrSettings) {
			t.Errorf("%+v is accepted: %v", bad, err)
		}
	}
	for _, o := range []Options{{Token: ptr(-time.Second)}, {Waited: -time.Second}} {
		if _, err := r.BestWorker(context.Background(), Prompt{Local: local}, o); !errors.Is(err, ErrSettings) {
			t.Errorf("%+v is accepted: %v", o, err)
		}
	}
}

// TestNoTargetsNoChange: where nobody has targets, choices and their costs are to the bit those of
// a router that has none to think of.
func TestNoTargetsNoChange(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 18))
		plain, _, c := autoFleet(t, 5, nil)
		none, _, c2 := autoFleet(t, 5, nil)
		var live []string
		for i := range 150 {
			switch k := rng.IntN(4); {
			case k < 2 || len(live) == 0:
				id := fmt.Sprint(i)
				p := Prompt{Local: numbers(1000*rng.IntN(8), 1+rng.IntN(400))}
				o := Options{RequestID: id, Explain: true}
				a := best(t, plain, p, o)
				o.Waited, o.FirstToken, o.Token = time.Duration(rng.IntN(1e9)), new(time.Duration), new(time.Duration)
				b := best(t, none, p, o)
				for j := range a.Ranks {
					if a.RankID != b.RankID || a.Ranks[j].Cost != b.Ranks[j].Cost || a.Ranks[j].Formula != b.Ranks[j].Formula {
						t.Fatalf("seed %d, choice %d: %v and %v", seed, i, a.Ranks, b.Ranks)
					}
				}
				live = append(live, id)
			case k == 2:
				plain.MarkPrefillComplete(live[0])
				none.MarkPrefillComplete(live[0])
			default:
				for _, r := range []*Router{plain, none} {
					r.Output(live[0], 20)
					r.Free(live[0])
				}
				live = live[1:]
			}
			d := time.Duration(rng.IntN(5e7))
			c.add(d)
			c2.add(d)
		}
	}
}
