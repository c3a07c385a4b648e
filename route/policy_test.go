package route

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvatlas/kvatlas/shard"
)

// holding has the slots' ranks hold so many blocks.
func holding(w *Weighing, blocks ...int) { w.holds = func(slot uint32) int { return blocks[slot] } }

// weighing is what the policies go by in these tests: blocks of one token.
func weighing(change func(*Weighing)) *Weighing {
	s := DefaultSettings()
	w := &Weighing{BlockSize: 1, Settings: &s, Rand: rand.New(rand.NewPCG(1, 1))}
	holding(w, make([]int, 100)...)
	w.override(&Options{})
	if change != nil {
		change(w)
	}
	return w
}

// candidates has one rank for each triple of prefill tokens, decode blocks and
// live requests.
func candidates(loads ...[3]int) []Candidate {
	var cs []Candidate
	for i, l := range loads {
		cs = append(cs, Candidate{
			RankID: shard.RankID{Worker: uint64(i + 1)}, slot: uint32(i),
			PrefillTokens: l[0], DecodeBlocks: float64(l[1]), Requests: l[2],
		})
	}
	return cs
}

func mustPolicy(t testing.TB, mode string) Policy {
	t.Helper()
	p, err := newPolicy(mode)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func mustChoose(t testing.TB, p Policy, w *Weighing, cs []Candidate) int {
	t.Helper()
	i, err := p.Choose(w, cs)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// TestWorkedExample is the one of the contract: weight 1, (prefill 8, decode
// 10), (5, 5) and (2, 9) blocks cost 18, 10 and 11; the second wins.
func TestWorkedExample(t *testing.T) {
	for _, mode := range []string{"kv", "dynamo"} {
		p, w := mustPolicy(t, mode), weighing(nil)
		cs := candidates([3]int{8, 10}, [3]int{5, 5}, [3]int{2, 9})
		if i := mustChoose(t, p, w, cs); cs[i].Worker != 2 {
			t.Errorf("%s: worker %d is chosen, want 2", mode, cs[i].Worker)
		}
		for i, want := range []float64{18, 10, 11} {
			if cs[i].Cost != want {
				t.Errorf("%s: worker %d costs %v, want %v", mode, i+1, cs[i].Cost, want)
			}
		}
	}
	// The formula that Dynamo's guide shows: 125.5 = 1.0 * 100.5 + 25.0.
	w := weighing(func(w *Weighing) { w.BlockSize = 2 })
	cs := candidates([3]int{201, 25})
	p := mustPolicy(t, "kv")
	mustChoose(t, p, w, cs)
	if got, want := p.Formula(w, &cs[0]), "125.5 = 1.0 * 100.5 + 25.0"; got != want {
		t.Errorf("formula %q, want %q", got, want)
	}
}

// TestWeights: the weight decides between a cached prefix and an idle rank,
// and of a request's own weight and the setting the former counts.
func TestWeights(t *testing.T) {
	for _, c := range []struct {
		mode   string
		change func(*Weighing)
		want   uint64
	}{
		{"kv", nil, 2},
		{"kv", func(w *Weighing) { w.Weight = 2 }, 3},
		{"kv", func(w *Weighing) { w.Weight = 0 }, 2},
		{"dynamo", func(w *Weighing) { w.Settings.PrefillLoadScale = 8 }, 3},
		{"dynamo", func(w *Weighing) { w.Settings.PrefillLoadScale = 8; w.Weight, w.HasWeight = 1, true }, 2},
	} {
		cs := candidates([3]int{8, 10}, [3]int{5, 5}, [3]int{2, 9})
		if i := mustChoose(t, mustPolicy(t, c.mode), weighing(c.change), cs); cs[i].Worker != c.want {
			t.Errorf("%s: worker %d is chosen, want %d", c.mode, cs[i].Worker, c.want)
		}
	}
}

// TestPrefillXBatch: 100 tokens × 5 beat 300 × 2, and 90 × 7 do not.
func TestPrefillXBatch(t *testing.T) {
	cs := candidates([3]int{300, 0, 1}, [3]int{100, 900, 4}, [3]int{90, 0, 6})
	if i := mustChoose(t, mustPolicy(t, "prefill-x-batch"), weighing(nil), cs); cs[i].Worker != 2 || cs[i].Cost != 500 {
		t.Errorf("worker %d is chosen at %v, want 2 at 500", cs[i].Worker, cs[i].Cost)
	}
}

// TestTies: of equal costs the rank with the fewest blocks wins; of those that
// hold as few, each has its chance, and the same seed the same choices.
func TestTies(t *testing.T) {
	counts := map[uint64]int{}
	draw := func(count bool) (last []uint64) {
		w := weighing(func(w *Weighing) { holding(w, 7, 3, 3, 9, 3, 0) })
		for range 3000 {
			cs := candidates([3]int{1, 1}, [3]int{1, 1}, [3]int{1, 1}, [3]int{1, 1}, [3]int{0, 2}, [3]int{9, 9})
			i := mustChoose(t, mustPolicy(t, "kv"), w, cs)
			last = append(last, cs[i].Worker)
			if count {
				counts[cs[i].Worker]++
			}
		}
		return last
	}
	a, b := draw(true), draw(false)
	for i := range a {
		if a[i] != b[i] {
			t.Fatal("the same seed gives other choices")
		}
	}
	for _, worker := range []uint64{2, 3, 5} {
		if n := counts[worker]; n < 900 || n > 1100 {
			t.Errorf("worker %d is chosen %d times of 3000, want about 1000", worker, n)
		}
	}
	if len(counts) != 3 {
		t.Errorf("chosen: %v, want workers 2, 3 and 5 only", counts)
	}
}

// TestSoftmax compares drawn shares with p ∝ exp(−c/T), costs scaled to 0 … 1.
func TestSoftmax(t *testing.T) {
	costs := []int{10, 20, 15, 12}
	for _, temperature := range []float64{0.1, 0.5, 1, 10} {
		w := weighing(func(w *Weighing) { w.Temperature = temperature })
		var want []float64
		sum := 0.0
		for _, c := range costs {
			p := math.Exp(-float64(c-10) / 10 / temperature)
			want, sum = append(want, p), sum+p
		}
		const draws = 40000
		got := make([]int, len(costs))
		for range draws {
			cs := candidates([3]int{10}, [3]int{20}, [3]int{15}, [3]int{12})
			got[mustChoose(t, mustPolicy(t, "kv"), w, cs)]++
		}
		for i := range costs {
			p := want[i] / sum
			share := float64(got[i]) / draws
			// Five standard deviations of a share.
			if bound := 5 * math.Sqrt(p*(1-p)/draws); math.Abs(share-p) > bound {
				t.Errorf("temperature %v: cost %d has a share of %.4f, want %.4f ± %.4f", temperature, costs[i], share, p, bound)
			}
		}
	}
	// Equal costs: everyone alike, at any temperature.
	w := weighing(func(w *Weighing) { w.Temperature = 0.01 })
	var first int
	for range 1000 {
		if mustChoose(t, mustPolicy(t, "kv"), w, candidates([3]int{4}, [3]int{4})) == 0 {
			first++
		}
	}
	if first < 400 || first > 600 {
		t.Errorf("of two equal ranks the first is chosen %d times of 1000", first)
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	p, w := mustPolicy(t, "round-robin"), weighing(nil)
	cs := candidates([3]int{9, 9, 9}, [3]int{}, [3]int{5, 5, 5})
	var got []uint64
	for range 4 {
		got = append(got, cs[mustChoose(t, p, w, cs)].Worker)
	}
	short := []Candidate{cs[0], cs[2]} // worker 2 is busy
	for range 2 {
		got = append(got, short[mustChoose(t, p, w, short)].Worker)
	}
	for i, want := range []uint64{1, 2, 3, 1, 3, 1} {
		if got[i] != want {
			t.Fatalf("turns %v, want 1 2 3 1, then 3 1 without 2", got)
		}
	}
}

func TestLeastLoaded(t *testing.T) {
	cs := candidates([3]int{0, 0, 3}, [3]int{9, 9, 1}, [3]int{0, 0, 2})
	if i := mustChoose(t, mustPolicy(t, "least-loaded"), weighing(nil), cs); cs[i].Worker != 2 {
		t.Errorf("worker %d is chosen, want 2 with 1 request", cs[i].Worker)
	}
}

// TestPools: a request of two stages takes turns in each pool, and spreads over
// the workers that decode.
func TestPools(t *testing.T) {
	for _, mode := range []string{"round-robin", "prefill-x-batch", "auto"} {
		ws := workers(6)
		for i := range ws {
			ws[i].Role = Decode
			if i < 3 {
				ws[i].Role = Prefill
			}
		}
		r, _, _ := open(t, func(c *Config) { c.Settings.Mode = mode }, ws...)
		count := map[uint64]int{}
		for i := range 30 {
			pair, err := r.BestPair(t.Context(), Prompt{Local: numbers(1000*i, 8)}, Options{RequestID: fmt.Sprint(i)})
			if err != nil {
				t.Fatal(err)
			}
			count[pair.Prefill.Worker]++
			count[pair.Decode.Worker]++
		}
		for w := range uint64(6) {
			if n := count[w+1]; n < 8 || n > 12 {
				t.Errorf("%s: worker %d got %d of 30", mode, w+1, n)
			}
		}
	}
}

// TestPowerOfTwo: the most loaded rank never wins, the least loaded one when
// drawn, which of 3 is in 2 of 3 cases.
func TestPowerOfTwo(t *testing.T) {
	p, w, got := mustPolicy(t, "power-of-two"), weighing(nil), [3]int{}
	for range 3000 {
		got[mustChoose(t, p, w, candidates([3]int{0, 0, 1}, [3]int{0, 0, 2}, [3]int{0, 0, 3}))]++
	}
	if got[2] != 0 || got[0] < 1900 || got[0] > 2100 {
		t.Errorf("chosen %v times of 3000, want about 2000, 1000, 0", got)
	}
	if i := mustChoose(t, p, w, candidates([3]int{})); i != 0 {
		t.Errorf("of one rank, %d is chosen", i)
	}
}

func TestRandomReachesAll(t *testing.T) {
	p, w, got := mustPolicy(t, "random"), weighing(nil), [4]int{}
	for range 4000 {
		got[mustChoose(t, p, w, candidates([3]int{}, [3]int{9, 9, 9}, [3]int{}, [3]int{}))]++
	}
	for i, n := range got {
		if n < 850 || n > 1150 {
			t.Errorf("rank %d is chosen %d times of 4000", i, n)
		}
	}
}

// TestDeviceAware: in-flight ÷ (ranks × weight), weight 1 for CPUs and here 4
// for the others, compared between the groups; then the least loaded rank.
func TestDeviceAware(t *testing.T) {
	for _, c := range []struct {
		name     string
		gpu, cpu []int // live requests of each rank
		want     int   // GPUs first
	}{
		{"4 on two GPUs is 0.5, 1 on a CPU is 1", []int{3, 1}, []int{1}, 1},
		{"4 on two GPUs is 0.5, 1 on four CPUs is 0.25", []int{3, 1}, []int{1, 0, 0, 0}, 3},
		{"16 on two GPUs is 2, 3 on two CPUs is 1.5", []int{8, 8}, []int{2, 1}, 3},
		{"16 on two GPUs is 2, 4 on two CPUs too", []int{9, 7}, []int{2, 2}, 1},
		{"CPUs only", nil, []int{2, 1}, 1},
		{"GPUs only", []int{2, 1}, nil, 1},
	} {
		w := weighing(func(w *Weighing) {
			w.Settings.DeviceRatio = 4
			holding(w, 0, 0, 1, 0, 1, 1)
		})
		var cs []Candidate
		for i, n := range append(append([]int{}, c.gpu...), c.cpu...) {
			cs = append(cs, Candidate{slot: uint32(i), Requests: n, CPU: i >= len(c.gpu)})
		}
		if got := mustChoose(t, mustPolicy(t, "device-aware-weighted"), w, cs); got != c.want {
			t.Errorf("%s: rank %d is chosen, want %d", c.name, got, c.want)
		}
	}
}

// TestDeviceAwareAtATemperature: which of the ranks of the less loaded devices is chosen falls with its load, and none of
// the others is.
func TestDeviceAwareAtATemperature(t *testing.T) {
	w := weighing(func(w *Weighing) { w.Settings.DeviceRatio, w.Temperature = 8, 1 })
	got := [4]int{}
	for range 4000 {
		got[mustChoose(t, mustPolicy(t, "device-aware-weighted"), w, []Candidate{{Requests: 1}, {Requests: 2}, {Requests: 3}, {Requests: 4, CPU: true}})]++
	}
	for i, costs := range []float64{0, 0.5, 1} {
		want := 4000 * math.Exp(-costs) / (1 + math.Exp(-0.5) + math.Exp(-1))
		if math.Abs(float64(got[i])-want) > 150 {
			t.Errorf("rank %d is chosen %d times, want about %.0f", i, got[i], want)
		}
	}
	if got[3] > 0 {
		t.Errorf("the loaded CPU is chosen %d times", got[3])
	}
}

func TestDirectNeedsAWorker(t *testing.T) {
	p := mustPolicy(t, "direct")
	if _, err := p.Choose(weighing(nil), candidates([3]int{})); !errors.Is(err, ErrSettings) {
		t.Errorf("without a named worker: %v", err)
	}
	w := weighing(func(w *Weighing) { w.Pinned = true })
	if i := mustChoose(t, p, w, candidates([3]int{0, 0, 2}, [3]int{0, 0, 1})); i != 1 {
		t.Errorf("of the worker's ranks, %d is chosen", i)
	}
}

// TestFormulas: every policy explains itself.
func TestFormulas(t *testing.T) {
	for _, mode := range Modes() {
		p := mustPolicy(t, mode)
		w := weighing(func(w *Weighing) { w.Pinned, w.explained = true, true })
		cs := candidates([3]int{1, 2, 3}, [3]int{4, 5, 6})
		mustChoose(t, p, w, cs)
		if p.Formula(w, &cs[1]) == "" {
			t.Errorf("%s explains nothing", mode)
		}
	}
	if _, err := newPolicy("best"); !errors.Is(err, ErrSettings) {
		t.Errorf("a mode that there is not: %v", err)
	}
}
