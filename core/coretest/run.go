package coretest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/internal/race"
)

// Run checks an implementation with every generator. newIndex returns an
// empty index.
func Run(t *testing.T, newIndex func() core.Index) {
	for _, g := range Solo() {
		t.Run(g.Name, func(t *testing.T) {
			t.Parallel()
			for _, seed := range Seeds(g.Seeds) {
				g.check(t, newIndex, seed)
			}
		})
	}
}

// check runs one seed and reports the shortest history that fails.
func (g *Generator) check(t *testing.T, newIndex func() core.Index, seed uint64) {
	ops := g.History(seed)
	at, err := Check(newIndex, ops, g.Interval)
	if err != nil {
		short, err := Minimise(newIndex, ops[:at+1], err, 10*time.Second)
		t.Fatalf("%s, seed %d, operation %d; %d operations are enough:\n%s\n%v", g.Name, seed, at, len(short), Print(short), err)
	}
}

// Scale is how many times as long as usual tests are to be, which
// KVATLAS_TEST_SCALE says: 1 unless it is a number from 1 on.
func Scale() int {
	n, err := strconv.Atoi(os.Getenv("KVATLAS_TEST_SCALE"))
	if err != nil || n < 1 {
		return 1
	}
	return n
}

// Seeds returns n seeds, Scale times as many, or only the one that
// KVATLAS_TEST_SEED says. Under the race detector, which has little to find in
// a history that one goroutine applies and takes ten times as long, it returns
// a tenth: make test finds the tests that call it by this line, and runs them without, too.
func Seeds(n int) []uint64 {
	if race.Enabled {
		n = (n + 9) / 10
	}
	return allSeeds(n)
}

// allSeeds is Seeds for what the race detector is there for.
func allSeeds(n int) []uint64 {
	if s, err := strconv.ParseUint(os.Getenv("KVATLAS_TEST_SEED"), 10, 64); err == nil {
		return []uint64{s}
	}
	seeds := make([]uint64, n*Scale())
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	return seeds
}

// Generator makes histories of one kind.
type Generator struct {
	Name     string
	Seeds    int // how many make a test of about a second
	Ops      int // length of a history
	Interval int // operations between comparisons of the whole state
	// Start returns a source of operations.
	Start func(r *rand.Rand) func() Op
}

// History returns the operations of one seed.
func (g *Generator) History(seed uint64) []Op {
	next := g.Start(rand.New(rand.NewPCG(seed, 3)))
	ops := make([]Op, g.Ops)
	for i := range ops {
		ops[i] = next()
	}
	return ops
}

// Solo returns the generators for tests in which one goroutine applies a history: under
// the race detector those of short ones, as for Seeds.
func Solo() []Generator {
	if race.Enabled {
		return Generators()[:2]
	}
	return Generators()
}

// Generators returns the kinds of history that Run checks.
func Generators() []Generator {
	return []Generator{
		{Name: "tiny", Seeds: 150, Ops: 40, Interval: 1, Start: chaos(3, 4, 2)},
		{Name: "small", Seeds: 75, Ops: 256, Interval: 16, Start: chaos(4, 12, 3)},
		{Name: "chaos", Seeds: 15, Ops: 4096, Interval: 256, Start: chaos(8, 64, 4)},
		{Name: "fleet", Seeds: 2, Ops: 2560, Interval: 256, Start: fleet(12, 60)},
		{Name: "deep", Seeds: 1, Ops: 768, Interval: 128, Start: fleet(3, 700)},
		{Name: "wide", Seeds: 5, Ops: 2048, Interval: 256, Start: wide},
		{Name: "tiers", Seeds: 4, Ops: 1024, Interval: 128, Start: tiers},
		{Name: "trees", Seeds: 30, Ops: 64, Interval: 8, Start: trees},
	}
}
