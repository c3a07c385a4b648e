package lab

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/route/account"
)

// Workers that fetch from each other do so where auto says it, and find what they fetched; a run
// is the same each time, also where one dies meanwhile. Without, nobody fetches.
func TestPeers(t *testing.T) {
	pulls, missed, found := 0, uint64(0), uint64(0)
	for seed := range uint64(6) {
		c := small(rand.New(rand.NewPCG(seed, 20)))
		c.Workers, c.Route.Mode, c.Routers, c.Peers = 4, "auto", 1+int(seed%2), true
		c.Engine.HostBlocks, c.Engine.DiskBlocks = 0, 0
		c.SpeedUp, c.PullToken = 4, time.Microsecond
		if seed%3 == 0 {
			c.Faults = []Fault{{At: 2 * time.Second, Worker: 1, Kind: Dies}}
		}
		r := run(t, c, requests(t, 300, seed))
		if again := run(t, c, requests(t, 300, seed)); !reflect.DeepEqual(r, again) {
			t.Errorf("seed %d: another run of the same is another", seed)
		}
		if r.Requests+r.Refused != 300 {
			t.Errorf("seed %d: of 300 requests %d ended, %d were refused", seed, r.Requests, r.Refused)
		}
		k, fewer, _, _ := accounts(r)
		pulls, missed, found = pulls+r.Pulls, missed+fewer[account.NotPulled], found+k.Actual.Sum
		c.Peers = false
		if alone := run(t, c, requests(t, 300, seed)); alone.Pulls != 0 {
			t.Errorf("seed %d: %d fetches by workers that do not", seed, alone.Pulls)
		}
	}
	if pulls < 20 || missed > uint64(pulls)/4 {
		t.Errorf("%d fetches, of which %d did not come; %d tokens were found", pulls, missed, found)
	}
}

// A slow link is found out: few fetch over it, and first tokens are hardly later than without.
func TestSlowLinks(t *testing.T) {
	c := Default()
	c.Workers, c.SpeedUp = 4, 6
	c.Engine.BlockSize, c.Engine.Blocks = 16, 4096
	first := func() (mean float64, pulls int) {
		r := run(t, c, requests(t, 1500, 1))
		return r.Summary().TTFT.Mean, r.Pulls
	}
	without, _ := first()
	c.Peers = true
	fast, many := first()
	c.PullToken = time.Millisecond
	slow, few := first()
	if fast > without*1.01 || slow > without*1.06 || few >= many/2 {
		t.Errorf("mean first tokens after %.1f ms without, %.1f with a fast link (%d fetches), %.1f with a slow one (%d)", without, fast, many, slow, few)
	}
}

// What is not modelled with prefill workers is refused there.
func TestPairsHaveNoSessionsAndNoPeers(t *testing.T) {
	for name, change := range map[string]func(*Config) error{
		"sessions": func(c *Config) error { return c.SetPolicy("auto+sessions") },
		"peers":    func(c *Config) error { c.Peers = true; return nil },
	} {
		c := Default()
		if err := change(&c); err != nil || c.check() != nil {
			t.Fatal(name, err, c.check())
		}
		if c.PrefillWorkers = 1; c.check() == nil {
			t.Errorf("%s are taken with prefill workers", name)
		}
	}
}
