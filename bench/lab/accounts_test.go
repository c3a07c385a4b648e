package lab

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mock"
	"github.com/kvatlas/kvatlas/route/account"
)

// accounts sums the routers' up.
func accounts(r *Result) (kept account.Kept, fewer, more [account.NumMisses]uint64, short [account.NumShortfalls]uint64) {
	for _, a := range r.Accounts {
		for _, k := range [...]*account.Kept{&a.Reported, &a.Silent} {
			kept.Prompt.Sum += k.Prompt.Sum
			kept.Reachable.Sum += k.Reachable.Sum
			kept.Selected.Sum += k.Selected.Sum
			kept.Actual.Sum += k.Actual.Sum
		}
		for i := range fewer {
			fewer[i] += a.Fewer[i].Requests
			more[i] += a.More[i].Requests
		}
		for i := range short {
			short[i] += a.Short[i].Tokens
		}
	}
	return kept, fewer, more, short
}

// Whatever the fleet: prompt ≥ reachable ≥ selected, and what lies between has a reason;
// what engines found is what the lab counts itself.
func TestAccountsInTheLab(t *testing.T) {
	for seed := range uint64(12) {
		c := small(rand.New(rand.NewPCG(seed, 16)))
		if seed%3 == 0 {
			c.PrefillWorkers = 2
		}
		c.EventDelay = time.Duration(seed%4) * 100 * time.Millisecond
		r := run(t, c, requests(t, 200, seed))
		k, _, _, short := accounts(r)
		missing := uint64(0)
		for _, n := range short {
			missing += n
		}
		if k.Prompt.Sum < k.Reachable.Sum || k.Reachable.Sum < k.Selected.Sum || k.Reachable.Sum-k.Selected.Sum != missing {
			t.Errorf("seed %d, %s: %d of a prompt, %d reachable, %d selected, %d between them", seed, c.Route.Mode, k.Prompt.Sum, k.Reachable.Sum, k.Selected.Sum, missing)
		}
		if k.Prompt.Sum > 0 && c.PrefillWorkers == 0 && k.Actual.Sum != uint64(r.Reused) {
			t.Errorf("seed %d, %s: %d tokens were found, the engines say %d", seed, c.Route.Mode, k.Actual.Sum, r.Reused)
		}
	}
}

// Where requests come one after the other and events at once, engines find what the
// routers expect, also when caches are too small for all; at once with others, what
// differs was evicted or stored meanwhile; and with late events, some of it is late.
func TestActualIsSelectedWhereNothingIsLate(t *testing.T) {
	evicted, stored := uint64(0), uint64(0)
	for _, mode := range []string{"auto", "kv", "dynamo"} {
		for seed := range uint64(4) {
			c := small(rand.New(rand.NewPCG(seed, 17)))
			c.Workers, c.Route.Mode, c.Routers = 3, mode, 1
			c.Engine.HostBlocks, c.Engine.DiskBlocks = 0, 0
			c.Engine.Blocks = 96
			alone := c
			alone.SpeedUp = 1e-4
			k, fewer, more, _ := accounts(run(t, alone, requests(t, 300, seed)))
			if fewer != ([account.NumMisses]uint64{}) || more != fewer || k.Actual.Sum == 0 {
				t.Errorf("%s, seed %d: fewer %v, more %v, of %d tokens", mode, seed, fewer, more, k.Actual.Sum)
			}
			hybrid := alone
			hybrid.Engine.Groups = []mock.Group{{Kind: "sliding_window", Span: 10, Blocks: 40}, {Kind: "mamba", Blocks: 20}}
			if h, fewer, more, _ := accounts(run(t, hybrid, requests(t, 300, seed))); fewer != ([account.NumMisses]uint64{}) || more != fewer ||
				h.Actual.Sum == 0 || h.Actual.Sum >= k.Actual.Sum {
				t.Errorf("%s, seed %d, hybrid: fewer %v, more %v, of %d tokens; %d with full attention alone", mode, seed, fewer, more, h.Actual.Sum, k.Actual.Sum)
			}
			crowded := c
			crowded.SpeedUp = 8
			_, fewer, more, _ = accounts(run(t, crowded, requests(t, 300, seed)))
			for i := range fewer {
				switch m := account.Miss(i); m {
				case account.Evicted, account.Stored:
				default:
					if fewer[i]+more[i] > 0 {
						t.Errorf("%s, seed %d: %d fewer and %d more as %q, and nothing is late", mode, seed, fewer[i], more[i], m)
					}
				}
			}
			evicted, stored = evicted+fewer[account.Evicted], stored+more[account.Stored]
			late := c
			late.EventDelay = time.Second
			if _, fewer, _, _ = accounts(run(t, late, requests(t, 300, seed))); fewer[account.Late] == 0 {
				t.Errorf("%s, seed %d: nothing is late: %v", mode, seed, fewer)
			}
		}
	}
	if evicted == 0 || stored == 0 {
		t.Errorf("%d evicted and %d stored meanwhile", evicted, stored)
	}
}
