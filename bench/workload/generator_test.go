package workload

import (
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/trace"
)

func generate(t *testing.T, cfg Config) []trace.Request {
	t.Helper()
	g, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var all []trace.Request
	var r trace.Request
	for {
		if err := g.Next(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		c := r
		c.IDs, c.OutputIDs = slices.Clone(r.IDs), slices.Clone(r.OutputIDs)
		all = append(all, c)
	}
}

func common(a, b []uint64) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestSameSeedSameRequests(t *testing.T) {
	cfg := Default()
	cfg.Requests = 500
	a, b := generate(t, cfg), generate(t, cfg)
	if !reflect.DeepEqual(a, b) {
		t.Fatal("two generators of one seed differ")
	}
	cfg.Seed++
	if reflect.DeepEqual(a, generate(t, cfg)) {
		t.Fatal("the seed changes nothing")
	}
}

func TestRequestsAreOrderedAndBounded(t *testing.T) {
	cfg := Default()
	cfg.Requests, cfg.MaxTokens = 5000, 8<<10
	last := time.Duration(0)
	for i, r := range generate(t, cfg) {
		switch {
		case r.Arrival < last:
			t.Fatalf("request %d arrives before the one before it", i)
		case r.Serial != uint64(i):
			t.Fatalf("request %d has serial %d", i, r.Serial)
		case r.Input != len(r.IDs)*cfg.IDTokens || r.Input == 0 || r.Output == 0:
			t.Fatalf("request %d: %d tokens in %d ids, %d out", i, r.Input, len(r.IDs), r.Output)
		case r.Input+r.Output > cfg.MaxTokens:
			t.Fatalf("request %d has %d + %d tokens", i, r.Input, r.Output)
		}
		last = r.Arrival
	}
}

// Turns share what their kind says, and different sessions share a system
// prompt or nothing.
func TestPrefixesAreShared(t *testing.T) {
	cfg := Default()
	cfg.Requests, cfg.MaxTokens = 3000, 20_000
	system := cfg.SystemTokens / cfg.IDTokens
	before := map[string]trace.Request{}
	owner := map[uint64]string{}
	turns := map[string]int{}
	for _, r := range generate(t, cfg) {
		kind := r.Session[:strings.LastIndexByte(r.Session, '-')]
		if p, ok := before[r.Session]; ok {
			turns[kind]++
			shared := common(r.IDs, p.IDs)
			switch kind {
			case "conversation":
				if n := common(r.IDs, append(p.IDs, p.OutputIDs...)); n != len(p.IDs)+len(p.OutputIDs) {
					t.Fatalf("%s shares %d ids with a turn and answer of %d + %d", r.Session, n, len(p.IDs), len(p.OutputIDs))
				}
			case "agent":
				if shared != len(p.IDs)-cfg.Agent.Tail/cfg.IDTokens || len(r.OutputIDs) != 0 {
					t.Fatalf("%s shares %d of %d ids", r.Session, shared, len(p.IDs))
				}
			default:
				t.Fatalf("%s has a second turn", r.Session)
			}
		}
		before[r.Session] = r
		if first := r.IDs[0]; first%uint64(system) != 0 || first >= uint64(cfg.SystemPrompts*system) {
			t.Fatalf("%s does not begin with a system prompt", r.Session)
		}
		for _, id := range r.IDs[system:] {
			if o, ok := owner[id]; ok && o != r.Session {
				t.Fatalf("%s has an id of %s", r.Session, o)
			}
			owner[id] = r.Session
		}
	}
	if turns["conversation"] < 100 || turns["agent"] < 100 {
		t.Fatalf("too few later turns to tell: %v", turns)
	}
}

func TestRateZipfAndBursts(t *testing.T) {
	cfg := Default()
	cfg.Requests = 60_000
	system := uint64(cfg.SystemTokens / cfg.IDTokens)
	all := generate(t, cfg)
	if rate := float64(len(all)) / all[len(all)-1].Arrival.Seconds(); math.Abs(rate/cfg.Rate-1) > 0.15 {
		t.Errorf("%.1f requests a second, want %.1f", rate, cfg.Rate)
	}
	sessions := map[string]bool{}
	popular := map[uint64]int{}
	in := 0
	for _, r := range all {
		if sessions[r.Session] {
			continue
		}
		sessions[r.Session] = true
		popular[r.IDs[0]/system]++
		if r.Arrival%cfg.BurstEvery < cfg.BurstLength {
			in++
		}
	}
	if ratio := float64(popular[0]) / float64(popular[3]); math.Abs(ratio/math.Pow(4, cfg.Zipf)-1) > 0.2 {
		t.Errorf("the first system prompt is %.1f times as popular as the fourth", ratio)
	}
	share := cfg.BurstLength.Seconds() * cfg.BurstFactor
	share /= share + (cfg.BurstEvery - cfg.BurstLength).Seconds()
	if got := float64(in) / float64(len(sessions)); math.Abs(got-share) > 0.05 {
		t.Errorf("%.2f of the sessions start in bursts, want %.2f", got, share)
	}
}

func TestSettingsOutOfRange(t *testing.T) {
	f := func(want string, change func(*Config)) {
		t.Helper()
		cfg := Default()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("got %v, want an error about %s", err, want)
		}
	}
	f("Rate", func(c *Config) { c.Rate = 0 })
	f("Rate", func(c *Config) { c.Rate = math.NaN() })
	f("Requests", func(c *Config) { c.Requests = -1 })
	f("IDTokens", func(c *Config) { c.IDTokens = 0 })
	f("Zipf", func(c *Config) { c.Zipf = math.Inf(1) })
	f("SystemTokens", func(c *Config) { c.SystemTokens = c.MaxTokens + 1 })
	f("BurstLength", func(c *Config) { c.BurstLength = c.BurstEvery + 1 })
	f("agent", func(c *Config) { c.Agent.Turns = 0 })
	f("weights", func(c *Config) { c.Agent.Weight, c.Conversation.Weight, c.OneOff.Weight = 0, 0, 0 })
}
