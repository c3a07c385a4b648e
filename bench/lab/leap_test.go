package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"runtime"
	"testing"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/bench/trace"
)

// outcome runs a fleet to its end, step by step if it is to be plain.
func outcome(t *testing.T, c Config, src trace.Source, plain bool) (r *Result, leaps uint32) {
	t.Helper()
	s, err := newSim(c, src)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	s.plain = plain
	for more := true; more; {
		if more, err = s.step(); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range s.workers {
		leaps += w.leap.number
	}
	if r, err = s.finish(); err != nil {
		t.Fatal(err)
	}
	return r, leaps
}

// TestLeaps: a fleet whose workers leap gives what one does that goes step by step, to the bit:
// all times of all requests, events, steps and loads, whatever comes to the workers meanwhile.
func TestLeaps(t *testing.T) {
	leaps, preempted := uint32(0), 0
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 8))
		c := small(rng)
		if c.Engine.BlockSize = 4 << rng.IntN(3); rng.IntN(2) == 0 {
			c.Route.Mode, c.Queue = "auto", Queue{Order: Late}
		}
		switch rng.IntN(6) {
		case 0:
			c.PrefillWorkers = 1 + rng.IntN(2)
		case 1:
			c.Workers++
			c.Faults = []Fault{{At: 2 * time.Second, Worker: 0, Kind: Joins}, {At: 4 * time.Second, Worker: 0, Kind: Dies}, {At: time.Second, Worker: 1, Kind: Slows, Factor: 3}}
		case 2:
			c.ClosedLoop, c.Think = true, time.Second
		case 3:
			c.Peers, c.PullToken = true, 6*time.Microsecond
		case 4:
			c.Day, c.DaySlow = 5*time.Second, 3
		case 5:
			c.Engine.Groups = []mock.Group{{Kind: "mamba", BlockSize: 2 * c.Engine.BlockSize, Blocks: 20}}
		}
		want, none := outcome(t, c, requests(t, 150, seed), true)
		have, some := outcome(t, c, requests(t, 150, seed), false)
		if !reflect.DeepEqual(have, want) {
			t.Fatalf("seed %d: %d steps, %+v; step by step %d steps, %+v", seed, have.Steps, have.Summary(), want.Steps, want.Summary())
		}
		if leaps, preempted = leaps+some, preempted+have.Preempted; none > 0 {
			t.Fatalf("seed %d: %d leaps step by step", seed, none)
		}
	}
	if leaps < 1000 || preempted == 0 {
		t.Errorf("%d leaps, %d preempted: it shows nothing", leaps, preempted)
	}
}

// TestPinned: what small runs gave before workers leapt, to the bit: all times of all requests, and what
// became of blocks. Who changes what the lab models, or one of these policies, writes down what
// comes then. Elsewhere sums may be rounded otherwise.
func TestPinned(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("recorded on amd64")
	}
	for seed, c := range []struct {
		mode string
		want uint64
	}{{"round-robin", 0xbef25b0d51d39523}, {"dynamo", 0x7dc990b54e8bdd78}, {"kv", 0xd37709702966b5a7}, {"prefill-x-batch", 0x955ec1b0891397dd}, {"least-loaded", 0x75a46d6a2c1e24d9}} {
		f := small(rand.New(rand.NewPCG(uint64(seed), 9)))
		f.Route.Mode, f.Route.Doubt = c.mode, false
		if seed%2 == 1 {
			f.EventDelay, f.Queue = 20*time.Millisecond, Queue{Order: Shortest}
		}
		r := run(t, f, requests(t, 200, uint64(seed)))
		h := xxh3.New()
		for _, times := range [][]float64{r.ttft, r.tpot, r.e2e} {
			for _, ms := range times {
				_ = binary.Write(h, binary.LittleEndian, ms) // to a hash
			}
		}
		fmt.Fprint(h, r.Steps, r.Reused, r.Computed, r.Decoded, r.Loaded, r.Preempted, r.Events, r.Index, r.Worked)
		if got := h.Sum64(); got != c.want {
			t.Errorf("%s: %#x, was %#x", c.mode, got, c.want)
		}
	}
}

// TestAhead: what is read ahead are the source's requests, no more than asked for, up to its error;
// and who stops before that waits for the reader to end.
func TestAhead(t *testing.T) {
	failed := errors.New("broken")
	for _, n := range []int{0, 1, 63, 64, 65, 200, 500} {
		read := 0
		src := broken{requests(t, 0, 1), 300, failed, &read}
		a := readAhead(src, Default().Engine, n)
		var want trace.Request
		same, got := requests(t, 0, 1), 0
		for r := a.next(); r != nil && r.err == nil; r = a.next() {
			if err := same.Next(&want); err != nil || r.Serial != want.Serial || r.Input != want.Input || r.blocks != want.Input/Default().Engine.BlockSize {
				t.Fatalf("request %d: %+v, want %+v, %v", got, r.Request, want, err)
			}
			got++
		}
		a.stop()
		if n == 0 || n > 300 {
			if got != 300 || read != 301 {
				t.Errorf("%d of 300 requests came, %d were read", got, read)
			}
			c := Default()
			c.Requests = n
			if _, err := Run(context.Background(), c, broken{requests(t, 0, 1), 300, failed, new(int)}); !errors.Is(err, failed) {
				t.Errorf("a source that breaks off: %v", err)
			}
		} else if got != n || read != n {
			t.Errorf("%d of %d requests came, %d were read", got, n, read)
		}
	}
	a, most := readAhead(requests(t, 0, 1), Default().Engine, 0), aheadBatches
	a.next()
	a.stop()
	for range a.full { // it ends, as the reader has
		most--
	}
	if most < 0 {
		t.Error("more was read than there is room for")
	}
}

// broken is a source that ends with an error after some requests.
type broken struct {
	trace.Source
	after int
	err   error
	read  *int
}

func (b broken) Next(r *trace.Request) error {
	if *b.read++; *b.read > b.after {
		return b.err
	}
	return b.Source.Next(r)
}
