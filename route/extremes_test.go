package route

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// TestExtremes: whatever numbers requests, workers, engines and settings name, costs are numbers from 0 on, and times no less.
func TestExtremes(t *testing.T) {
	big := []int{0, 1, 2, 1 << 20, 1 << 28, math.MaxInt32, math.MaxInt}
	durs := []time.Duration{0, 1, time.Millisecond, time.Hour, math.MaxInt64}
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		mode := Modes()[rnd.IntN(len(Modes()))]
		var ws []Worker
		for i := range 4 {
			ws = append(ws, Worker{ID: uint64(i + 1), TotalBlocks: big[rnd.IntN(len(big))], MaxBatchedTokens: big[rnd.IntN(len(big))], CPU: rnd.IntN(2) == 0, Peer: true})
		}
		r, space, c := open(t, func(c *Config) {
			c.Settings.Mode = mode
			c.Settings.Objective = Objectives()[rnd.IntN(3)]
			c.Settings.Temperature = []float64{0, 0, 1e-300, 1, 1e6, math.MaxFloat64}[rnd.IntN(6)]
			c.Settings.OverlapWeight = []float64{0, 1, 1e6}[rnd.IntN(3)]
			c.Settings.DeviceRatio = []float64{1e-300, 1, 1e300}[rnd.IntN(3)]
			c.Settings.TrackOutputBlocks, c.Settings.OutputDecay = true, true
			c.Settings.OverdueAfter = durs[rnd.IntN(len(durs))]
			c.Settings.Lease = durs[rnd.IntN(len(durs))]
		}, ws...)
		store(t, space, 1, 0, 0, numbers(1, 50)...)
		var ids []string
		for n := range 40 {
			id := fmt.Sprint(n)
			o := Options{RequestID: id, Watched: rnd.IntN(2) == 0, Whole: rnd.IntN(2) == 0, Pull: true, ExpectedOutput: big[rnd.IntN(len(big))], MostOutput: big[rnd.IntN(len(big))], Waited: durs[rnd.IntN(len(durs))],
				FirstToken: &durs[rnd.IntN(len(durs))], Token: &durs[rnd.IntN(len(durs))], Stage: Stage(rnd.IntN(2) * 2), Explain: true}
			if mode == "direct" {
				o.Worker = ptr(uint64(1 + rnd.IntN(4)))
			}
			p := Prompt{Local: numbers(1, rnd.IntN(60)), Length: big[rnd.IntN(len(big))], Rest: big[rnd.IntN(len(big))], Guessed: rnd.IntN(3) == 0}
			a, err := r.BestWorker(t.Context(), p, o)
			if err != nil {
				continue
			}
			ids = append(ids, id)
			if a.First < 0 || a.Overdue < 0 {
				t.Errorf("seed %d %s: first %v overdue %v", seed, mode, a.First, a.Overdue)
			}
			for _, e := range a.Ranks {
				if math.IsNaN(e.Cost) || math.IsInf(e.Cost, 0) && mode != "device-aware-weighted" || e.Cost < 0 || e.NewTokens < 0 || e.PrefillTokens < 0 || e.DecodeBlocks < 0 || e.NewBlocks < 0 {
					t.Errorf("seed %d %s: %+v %s", seed, mode, e.Candidate, e.Formula)
				}
			}
			x := ids[rnd.IntN(len(ids))]
			c.add(durs[rnd.IntN(4)])
			switch rnd.IntN(4) {
			case 0:
				r.MarkPrefillComplete(x)
			case 1:
				r.Output(x, big[rnd.IntN(len(big))])
			case 2:
				r.Free(x)
			case 3:
				r.Reported(x, Whole, p, Usage{Prompt: big[rnd.IntN(len(big))], Cached: big[rnd.IntN(len(big))]})
			}
			s := r.times.speeds
			for _, v := range []float64{s.output, s.prompt, s.prefill.a, s.prefill.b, s.decode.a, s.decode.b, s.beside} {
				if math.IsNaN(v) || math.IsInf(v, 0) {
					t.Errorf("seed %d %s: %+v", seed, mode, s)
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}
