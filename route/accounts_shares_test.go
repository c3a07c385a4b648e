package route

import (
	"context"
	"fmt"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/route/account"
	"github.com/kvatlas/kvatlas/shard"
)

// fakeShares says how many blocks each worker has on the device, and who is unknown.
type fakeShares struct {
	blocks  map[uint64]uint32
	unknown map[uint64]bool
}

func (f *fakeShares) Find(_ context.Context, _ []uint64, each func(id shard.RankID, depth [event.NumTiers]uint32)) func(uint64) bool {
	for w, n := range f.blocks {
		if !f.unknown[w] {
			each(a1(w), [event.NumTiers]uint32{n, n, n, n})
		}
	}
	unknown := f.unknown
	return func(w uint64) bool { return unknown[w] }
}

// What an engine found is compared with what the shares say by then; while its share is
// away, nothing is said to have been evicted.
func TestMissesOverShares(t *testing.T) {
	for name, f := range map[string]struct {
		now     uint32
		unknown bool
		cached  int
		want    account.Miss
	}{
		"as before":          {now: 8, cached: 8, want: account.Unknown},
		"let go of":          {now: 2, cached: 8, want: account.Evicted},
		"stored since":       {now: 10, cached: 40, want: account.Stored},
		"more than is said":  {now: 8, cached: 40, want: account.Unknown},
		"share away":         {unknown: true, cached: 8, want: account.Unknown},
		"share away, stored": {unknown: true, cached: 40, want: account.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			shares := &fakeShares{blocks: map[uint64]uint32{1: 8}}
			r, _, _ := open(t, func(c *Config) { c.Index, c.Shares = nil, shares }, workers(2)...)
			p := Prompt{Local: prompt(10), Length: 40}
			if a := best(t, r, p, Options{RequestID: "r"}); a.Worker != 1 || a.Account.Selected != 32 {
				t.Fatalf("%+v", a)
			}
			shares.blocks[1] = f.now
			shares.unknown = map[uint64]bool{1: f.unknown}
			if got, ok := r.Reported("r", Whole, p, Usage{40, f.cached}); !ok || got.Miss != f.want {
				t.Errorf("%+v %v, want %q", got, ok, f.want)
			}
		})
	}
}

// What a worker has whose share does not answer is unknown in accounts and tables as well,
// and not nothing.
func TestUnknownWorkersInDecisions(t *testing.T) {
	log := account.New(account.Config{Keep: 10, Memory: 1 << 20, Rows: 1000, Run: "t"})
	shares := &fakeShares{blocks: map[uint64]uint32{1: 8, 2: 4}, unknown: map[uint64]bool{1: true}}
	r, _, _ := open(t, func(c *Config) { c.Index, c.Shares, c.Decisions = nil, shares, log }, workers(2)...)
	p := Prompt{Local: prompt(10)}
	for worker, known := range map[uint64]bool{1: false, 2: true} {
		a := best(t, r, p, Options{RequestID: "r", Worker: &worker})
		if a.Account.Known != known || a.Account.Prompt != 40 {
			t.Errorf("worker %d: %+v", worker, a.Account)
		}
		r.Free("r")
		d := log.Find(account.Query{ID: a.Decision})
		if len(d) != 1 || (d[0].Selected != nil) != known {
			t.Fatalf("worker %d: %+v", worker, d)
		}
		for _, row := range d[0].Ranks {
			if row.Unknown != (row.Worker == 1) {
				t.Errorf("%+v", row)
			}
		}
	}
	sum := r.Totals()
	if n := sum.Silent.Prompt.Count(); n != 1 {
		t.Errorf("%d requests are counted, want that of the worker that is known", n)
	}
}

// Who had more than the chosen one is found among what shares say as it is in an index.
func TestReachableOverShares(t *testing.T) {
	shares := &fakeShares{blocks: map[uint64]uint32{1: 4, 2: 8}}
	r, _, _ := open(t, func(c *Config) { c.Index, c.Shares = nil, shares }, workers(2)...)
	p := Prompt{Local: prompt(10), Length: 40}
	for i := range 20 {
		if err := r.Reserve(Reservation{RequestID: fmt.Sprint(i), Rank: a1(2), PromptTokens: 4000, NewTokens: 4000}); err != nil {
			t.Fatal(err)
		}
	}
	if a := best(t, r, p, Options{}); a.Worker != 1 || a.Account.Selected != 16 || a.Account.Reachable != 32 || a.Account.Best != a1(2) || a.Account.Why != account.Load {
		t.Errorf("%+v", a)
	}
}
