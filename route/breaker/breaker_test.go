package breaker

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"
)

// script runs a history: "ok", "bad", "full" or "full:3s" are requests that end at
// once; "send x" is one under way and "end x ok" its end; "cut x" is one that begins well and
// fails then; "back x" takes a failure back;
// "doubt" is somebody else's word, "trust" takes it back;
// "never" lets nothing be left out any more; a duration lets time pass. It returns the
// states after each.
func script(t *testing.T, c Config, text string) string {
	t.Helper()
	var b Breaker
	now, may := time.Unix(1e9, 0), true
	tickets := map[string]*Ticket{}
	var states []string
	sent := func() *Ticket { k := b.Sent(now); return &k }
	end := func(k *Ticket, what string) {
		what, after, _ := strings.Cut(what, ":")
		wait, _ := time.ParseDuration(after)
		o := map[string]Outcome{"ok": Succeeded, "bad": Failed, "full": Refused, "nothing": Neutral}[what]
		b.Ended(&c, k, o, wait, now, func() bool { return may })
	}
	for line := range strings.SplitSeq(text, ",") {
		f := strings.Fields(line)
		switch f[0] {
		case "send":
			tickets[f[1]] = sent()
		case "end":
			end(tickets[f[1]], f[2])
		case "cut":
			k := sent()
			end(k, "ok")
			end(k, "bad")
		case "back":
			b.Withdraw(*tickets[f[1]])
		case "never":
			may = false
		case "renew":
			b.Renew(now)
		case "doubt":
			b.Doubt()
		case "trust":
			b.Trust()
		case "trip":
			b.Trip(&c, now)
		default:
			n := 1
			if d, err := time.ParseDuration(f[0]); err == nil {
				now, n = now.Add(d), 0
			} else if len(f) > 1 {
				n, _ = strconv.Atoi(f[1])
			}
			for range n {
				end(sent(), f[0])
			}
		}
		s := b.State(now).String()
		if s == "half_open" && !b.Admits(&c, now) {
			s += "!"
		}
		states = append(states, s)
	}
	return strings.Join(states, " ")
}

// TestStates: what opens, fills and closes a breaker, step by step.
func TestStates(t *testing.T) {
	for name, c := range map[string][2]string{
		"in a row":                          {"bad 2,ok,bad 2,bad", "closed closed closed open"},
		"its time and probes":               {"bad 3,499ms,501ms,ok,ok", "open open half_open half_open closed"},
		"a probe that fails":                {"bad 3,1s,ok,bad,999ms,1s", "open half_open half_open open open half_open"},
		"few probes":                        {"bad 3,1s,send a,send b,end a ok,end b ok", "open half_open half_open half_open! half_open closed"},
		"a probe that says nothing":         {"bad 3,1s,send a,send b,end a nothing", "open half_open half_open half_open! half_open"},
		"what was under way says no more":   {"send a,send b,bad 3,1s,end a bad,end b ok", "closed closed open half_open half_open half_open"},
		"begun and cut in a row":            {"cut a,cut b,cut c", "closed closed open"},
		"cut between failures":              {"bad 1,cut a,bad 1", "closed closed open"},
		"begun and cut at once":             {"send a,send b,send c,end a ok,end b ok,end c ok,end a bad,end b bad,end c bad", "closed closed closed closed closed closed closed closed open"},
		"an old one is cut":                 {"bad 2,send a,end a ok,ok,end a bad", "closed closed closed closed closed"},
		"cut counts once in its share":      {"ok,cut a,ok,cut a,ok,cut a,ok,cut a,ok,cut a", "closed closed closed closed closed closed closed closed closed open"},
		"a probe that is cut":               {"bad 3,1s,cut a", "open half_open open"},
		"probes are cut when it has closed": {"bad 3,1s,send a,send b,end a ok,end b ok,end a bad,end b bad,bad", "open half_open half_open half_open! half_open closed closed closed open"},
		"its share":                         {"ok 4,bad 2,ok 2,bad 2", "closed closed closed closed"},
		"too large a share":                 {"ok,bad 2,ok,bad 2,ok 2,bad,ok,bad 1", "closed closed closed closed closed closed closed open"},
		"an old share":                      {"ok,bad 2,ok,bad 2,11s,ok 2,bad,ok,bad 1", "closed closed closed closed closed closed closed closed closed"},
		"full":                              {"full:3s,2999ms,1ms,ok 2", "full full half_open closed"},
		"full for no longer than it may be": {"full:1h,29s,1s", "full full half_open"},
		"full without a word":               {"full,499ms,501ms,full,999ms,1s", "full full half_open full full half_open"},
		"not full twice":                    {"send a,full:3s,end a full:9s,3s", "closed full full half_open"},
		"not out":                           {"never,bad 9,full", "closed closed closed"},
		"taken back":                        {"send a,send b,end a bad,bad 1,back a,bad 1,bad 1", "closed closed closed closed closed closed open"},
		"taken back when open":              {"send a,send b,bad,end a bad,end b bad,back a,bad", "closed closed closed closed open closed open"},
		"taken back from a probe":           {"bad 3,1s,send a,end a bad,back a,ok 2", "open half_open half_open open half_open closed"},
		"too much to be taken back":         {"send a,bad 3,back a", "closed open closed"},
		"renewed":                           {"bad 3,renew,ok 2", "open half_open closed"},
		"renewed when full":                 {"full,renew", "full full"},
		"doubted":                           {"bad 2,doubt,ok 2,bad 2", "closed half_open closed closed"},
		"doubted and failing":               {"doubt,bad,trust,1s,trust", "half_open open open half_open half_open"},
		"doubted and none may be out":       {"never,doubt,bad,doubt,full:3s", "closed half_open closed half_open closed"},
		"doubted and trusted":               {"doubt,send a,trust,end a bad,bad 2", "half_open half_open closed closed closed"},
		"tripped":                           {"trip,1s,trip", "open half_open open"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := script(t, Default(), c[0]); got != c[1] {
				t.Errorf("%s\ngives %s\nwant  %s", c[0], got, c[1])
			}
		})
	}
	if got := script(t, Config{}, "bad 100,full,1s,ok"); got != "closed full half_open closed" {
		t.Errorf("without settings: %s", got)
	}
}

// TestHistories: whatever happens, what is sent in a state is what it admits, a
// breaker never stays out without an end, and one whose worker is well closes.
func TestHistories(t *testing.T) {
	c := Default()
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		b := Breaker{Seed: seed}
		now := time.Unix(1e9, 0)
		var live []*Ticket
		var ended []*Ticket
		may := func() bool { return rng.IntN(8) > 0 }
		for range 400 {
			now = now.Add(time.Duration(rng.ExpFloat64() * float64(300*time.Millisecond)))
			if rng.IntN(20) == 0 {
				now = now.Add(c.MaxWait)
			}
			switch s := b.State(now); {
			case rng.IntN(2) == 0 && b.Admits(&c, now):
				if s >= Open {
					t.Fatalf("seed %d: %v admits a request", seed, s)
				}
				k := b.Sent(now)
				live = append(live, &k)
				if s == HalfOpen && b.live > c.Probes {
					t.Fatalf("seed %d: %d probes at once", seed, b.live)
				}
			case len(live) > 0:
				i := rng.IntN(len(live))
				o := Outcome(rng.IntN(4))
				was := b.State(now)
				if out := b.Ended(&c, live[i], o, time.Duration(rng.IntN(5))*time.Second, now, may); out != (was == Closed && b.State(now) >= Open) {
					t.Fatalf("seed %d: %v became %v, said %v", seed, was, b.State(now), out)
				}
				ended = append(ended, live[i])
				live = append(live[:i], live[i+1:]...)
			case len(ended) > 0 && rng.IntN(4) == 0:
				b.Withdraw(*ended[rng.IntN(len(ended))])
			}
			if b.live < 0 || b.inRow < 0 || b.now.bad < 0 || b.state >= Open && b.until.Sub(now) > c.MaxWait {
				t.Fatalf("seed %d: %+v at %v", seed, b, now)
			}
		}
		now = now.Add(c.MaxWait)
		for range 2 * c.Probes {
			if !b.Admits(&c, now) { // probes that never ended
				break
			}
			k := b.Sent(now)
			b.Ended(&c, &k, Succeeded, 0, now, may)
		}
		if s := b.State(now); s != Closed && b.live < c.Probes {
			t.Fatalf("seed %d: %v with a worker that is well: %+v", seed, s, b)
		}
	}
}

// TestSettings: each out of range is refused.
func TestSettings(t *testing.T) {
	if c := Default(); c.Check() != nil {
		t.Error(c.Check())
	}
	for i, c := range []Config{{Failures: -1}, {Share: 1.1}, {Share: -1}, {Window: -1}, {Wait: -1}, {MaxWait: -1}, {Least: -1}, {Probes: -1}} {
		if c.Check() == nil {
			t.Error(fmt.Sprint(i, " is accepted"))
		}
	}
}
