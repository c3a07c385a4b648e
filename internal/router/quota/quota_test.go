package quota

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

// ledger is a literal reference: what was taken, drained over time, as fractions.
type ledger struct {
	used *big.Rat // of the limit
	at   time.Time
}

func (r *ledger) drain(now time.Time, limit int64, per time.Duration) {
	r.used.Sub(r.used, big.NewRat(int64(now.Sub(r.at))*limit, int64(per)))
	if r.used.Sign() < 0 {
		r.used.SetInt64(0)
	}
	r.at = now
}

// An account decides as the reference does, but for a rounding of one nanosecond's flow
// a request, and says what is left.
func TestAnAccountIsTheReference(t *testing.T) {
	for seed := range seeds(75) {
		rng := rand.New(rand.NewPCG(seed, 14))
		now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
		l := Limit{Requests: rng.Int64N(50), Tokens: rng.Int64N(1000), Per: time.Duration(1 + rng.Int64N(int64(time.Minute)))}
		var a Account
		refs := [2]ledger{{new(big.Rat), now}, {new(big.Rat), now}}
		limits := [2]int64{l.Requests, l.Tokens}
		for step := range 300 {
			now = now.Add(time.Duration(rng.Int64N(1 + int64(l.Per)/10)))
			for i := range refs {
				if limits[i] > 0 {
					refs[i].drain(now, limits[i], l.Per)
				}
			}
			n := rng.Int64N(300)
			if rng.IntN(3) == 0 {
				n = 1 + rng.Int64N(20)
				a.Settle(now, l, n)
				refs[1].used.Add(refs[1].used, big.NewRat(n, 1))
				continue
			}
			d := a.Take(now, l, n)
			want, close := true, false
			for i, cost := range [2]int64{1, n} {
				if limits[i] == 0 {
					continue
				}
				over := new(big.Rat).Add(refs[i].used, big.NewRat(min(cost, limits[i])-limits[i], 1))
				want = want && over.Sign() <= 0
				slack := big.NewRat(int64(step+2)*limits[i], int64(l.Per))
				close = close || new(big.Rat).Abs(over).Cmp(slack) <= 0
			}
			if got := d.Refused == ""; got != want && !close {
				t.Fatalf("seed %d, step %d: %v of %+v with %v and %v used: let in %v", seed, step, n, l, refs[0].used, refs[1].used, got)
			}
			if d.Refused == "" {
				for i, cost := range [2]int64{1, n} {
					refs[i].used.Add(refs[i].used, big.NewRat(cost, 1))
				}
			}
			for i, level := range [2]Level{d.Requests, d.Tokens} {
				left, _ := new(big.Rat).Sub(big.NewRat(limits[i], 1), refs[i].used).Float64()
				if limits[i] > 0 && (level.Limit != limits[i] || float64(level.Remaining) > max(left, 0)+1 || float64(level.Remaining) < left-1) {
					t.Fatalf("seed %d, step %d: %+v with %v of %d used", seed, step, level, refs[i].used, limits[i])
				}
			}
			// Who waits as told is let in, and not a moment before.
			if d.Refused != "" {
				early, late := a, a
				if late.Take(now.Add(d.Wait), l, n).Refused != "" || early.Take(now.Add(d.Wait-1), l, n).Refused == "" {
					t.Fatalf("seed %d, step %d: not %v is to be waited", seed, step, d.Wait)
				}
			}
		}
	}
}

// Whatever is asked for and when, what is let in is bounded; a refusal takes nothing.
func TestNoMoreIsLetInThanTheLimit(t *testing.T) {
	l := Limit{Requests: 7, Tokens: 1000, Per: time.Minute}
	begin := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	var a Account
	rng := rand.New(rand.NewPCG(1, 2))
	var requests, tokens int64
	now := begin
	for range 100_000 {
		now = now.Add(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
		before := a
		n := rng.Int64N(300)
		d := a.Take(now, l, n)
		if d.Refused != "" {
			if a != before {
				t.Fatal("what is refused takes something")
			}
			continue
		}
		requests, tokens = requests+1, tokens+n
	}
	minutes := now.Sub(begin).Minutes()
	if most := 7 * (1 + minutes); float64(requests) > most+1 || float64(tokens) > 1000*(1+minutes)+1 {
		t.Errorf("%d requests and %d tokens in %.1f minutes", requests, tokens, minutes)
	}
	if float64(requests) < 0.9*min(7*minutes, 1000*minutes/150) {
		t.Errorf("only %d requests in %.1f minutes", requests, minutes)
	}
}

// One request above the limit passes alone, and the next ones pay.
func TestAPromptAboveTheLimitPassesAlone(t *testing.T) {
	l := Limit{Tokens: 100, Per: time.Minute}
	now := time.Unix(0, 0)
	var a Account
	if d := a.Take(now, l, 1000); d.Refused != "" || d.Tokens.Remaining != 0 || d.Tokens.Reset != 10*time.Minute || d.Requests.Limit != 0 {
		t.Errorf("%+v", d)
	}
	if d := a.Take(now, l, 1); d.Refused != ByTokens || d.Wait != 9*time.Minute+600*time.Millisecond {
		t.Errorf("%+v", d)
	}
	a.Settle(now, l, -950)
	if d := a.Take(now, l, 50); d.Refused != "" || d.Tokens.Remaining != 0 {
		t.Errorf("%+v", d)
	}
	a.Settle(now, l, 1<<62)
	if d := a.Take(now, l, 1); d.Wait > maxOwed+time.Hour {
		t.Errorf("%+v", d)
	}
}

// Tenants beyond the table's share an account with one of so many of the others, until
// those before owe nothing; they are counted, and none before them notices.
func TestTenantsBeyondTheBound(t *testing.T) {
	table, l, now := NewTable(2), Limit{Requests: 1, Per: time.Minute}, time.Unix(0, 0)
	take := func(name string) string { return table.Take(now, name, l, 0).Refused }
	same := "x"
	for n := 0; laneOf(same) != laneOf("beyond"); n++ {
		same = fmt.Sprint("x", n)
	}
	for i, try := range []struct{ tenant, refused string }{
		{"a", ""}, {"b", ""}, {"beyond", ""}, {"elsewhere", ""}, {same, ByRequests}, {"beyond", ByRequests}, {"a", ByRequests}, {"b", ByRequests},
	} {
		if got := take(try.tenant); got != try.refused {
			t.Errorf("%d: %s: %q", i, try.tenant, got)
		}
	}
	if own, shared := table.Accounts(); own != 2 || shared != 4 || len(table.accounts) != 4 {
		t.Errorf("%d accounts, %d requests at shared ones, %d kept", own, shared, len(table.accounts))
	}
	now = now.Add(time.Minute)
	if take(same) != "" || take("beyond") != "" || take(same) != ByRequests || len(table.accounts) != 2 {
		t.Error("idle accounts make no room")
	}
	now = now.Add(time.Minute)
	take("t6") // looks for idle ones, and is alone
	take("t7")
	if now = now.Add(sweepEvery - 1); take("t8") != "" || len(table.accounts) != 3 || table.swept.Equal(now) {
		t.Error("all accounts are looked at again within sweepEvery")
	}
	// However many come, memory is bounded, and few meet one that uses all it can.
	met := 0
	for range 100 {
		take("beyond")
	}
	for n := range 10_000 {
		if take(fmt.Sprint("many", n%2000)) != "" && n < 500 {
			met++
		}
	}
	if len(table.accounts) > 2+lanes || met > 200 {
		t.Errorf("%d accounts, %d of 500 tenants are refused at once", len(table.accounts), met)
	}
}
