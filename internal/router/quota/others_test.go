package quota

import (
	"encoding/json"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core/coretest"
)

// seeds returns how many histories are tried: more in the nightly run.
func seeds(n uint64) uint64 { return n * uint64(coretest.Scale()) }

// hub is routers, and the server between them, which may lose what it likes.
type hub struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Time
	routers []*node
	lossy   bool
}

type node struct {
	*Table
	cut   bool // from the hub
	since time.Time
	dead  bool
	inbox []mail
	// unheard is what others took and told in messages that were lost, or came when it did
	// not know all that they took before.
	unheard time.Duration
}

// turn cuts it off, or connects it again.
func (x *node) turn(now time.Time) {
	x.cut, x.since = !x.cut, now
}

type mail struct {
	at   time.Time
	text []byte
}

const (
	delay = 20 * time.Millisecond // of a message, at most
	step  = 10 * time.Millisecond
)

func hubConfig(id int) Config {
	return Config{ID: uint64(1 + id), Place: uint64(1000 + id), Every: 100 * time.Millisecond, Beat: time.Second, Silent: 3 * time.Second, Forget: time.Minute}
}

func newHub(t *testing.T, seed uint64, n int) *hub {
	h := &hub{t: t, rng: rand.New(rand.NewPCG(seed, 2)), now: time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)}
	for range n {
		h.add()
	}
	return h
}

func (h *hub) add() {
	x := &node{Table: NewTable(100)}
	x.Join(hubConfig(len(h.routers)))
	h.routers = append(h.routers, x)
}

// again starts a router again, in the place where it died.
func (h *hub) again(id int) (run int) {
	run = len(h.routers)
	h.add()
	cfg := hubConfig(run)
	cfg.Place = h.routers[id].others.cfg.Place
	h.routers[run].Join(cfg)
	return run
}

// step lets a little time pass.
func (h *hub) step() {
	h.now = h.now.Add(step)
	for i, x := range h.routers {
		if x.dead {
			continue
		}
		rest := x.inbox[:0]
		for _, m := range x.inbox {
			if m.at.After(h.now) {
				rest = append(rest, m)
				continue
			}
			var said message
			if err := json.Unmarshal(m.text, &said); err != nil {
				h.t.Fatal(err)
			}
			if p := x.others.known[said.Router]; p == nil || said.Number > p.number && (!p.synced || said.Number > p.number+1) {
				x.unheard += took(m.text)
			}
			if err := x.Receive(h.now, m.text); err != nil {
				h.t.Fatal(err)
			}
		}
		x.inbox = rest
		if h.now.UnixMilli()/10%10 != int64(i%10) { // each at its own time
			continue
		}
		for _, text := range x.Tick(h.now, !x.cut) {
			h.send(x, text)
		}
	}
}

func (h *hub) send(from *node, text []byte) {
	for _, o := range h.routers {
		if o == from || o.cut || o.dead {
			continue
		}
		if h.lossy && h.rng.IntN(10) == 0 {
			o.unheard += took(text)
			continue
		}
		o.inbox = append(o.inbox, mail{h.now.Add(time.Duration(h.rng.Int64N(int64(delay)))), text})
		if h.lossy && h.rng.IntN(10) == 0 { // doubled, and late
			o.inbox = append(o.inbox, mail{h.now.Add(time.Duration(h.rng.Int64N(int64(time.Second)))), text})
		}
	}
}

// took returns what a message says was taken.
func took(text []byte) (d time.Duration) {
	var m message
	if json.Unmarshal(text, &m) == nil {
		for _, u := range m.Used {
			d += u.Requests[0]
		}
	}
	return d
}

// used is a literal account of all routers together.
type used struct {
	of, flow float64 // what is used, and flows back in a second
	at       time.Time
	late     []taken // of late
}

type taken struct {
	at time.Time
	by int
}

// take takes one more.
func (u *used) take(now time.Time, by int) {
	u.of = max(u.of-u.flow*now.Sub(u.at).Seconds(), 0) + 1
	u.at = now
	u.late = append(u.late, taken{now, by})
}

// since returns what others have taken in such a time.
func (u *used) since(now time.Time, span time.Duration, by int) (n int) {
	for i := len(u.late) - 1; i >= 0 && now.Sub(u.late[i].at) <= span; i-- {
		if u.late[i].by != by {
			n++
		}
	}
	return n
}

// Whatever is cut off from whom and comes back, all routers together let in no more than
// the limit, and what flows back meanwhile, but for what they cannot know: what others took
// in the last interval and the way; what was told in messages that were lost; what a router
// that is cut off lets in of its part until the others notice; and one request of each. And
// no less than the limit where all hear each other again.
func TestAllRoutersTogetherKeepTheLimit(t *testing.T) {
	for seed := range seeds(6) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 2 + rng.IntN(4)
		h := newHub(t, seed, n)
		h.lossy = seed%2 == 1
		cfg := hubConfig(0)
		l := Limit{Requests: 20 + rng.Int64N(500), Per: time.Duration(10+rng.IntN(50)) * time.Second}
		all := &used{flow: float64(l.Requests) / l.Per.Seconds(), at: h.now}
		rate := 2 * all.flow * float64(n) * step.Seconds() // wanted in a step: more than is let in
		late := cfg.Every + delay + 2*step
		if h.lossy { // messages that were doubled do not come later than others, but their gaps are noticed by the next
			late += cfg.Beat
		}
		for range 300 { // they meet
			h.step()
		}
		excess := 0 // for ever: nobody gives it back
		turn := func(x *node) {
			excess += all.since(h.now, late, -1)
			x.turn(h.now)
		}
		for range 3000 {
			if rng.IntN(500) == 0 {
				turn(h.routers[rng.IntN(n)])
			}
			h.step()
			for _, x := range h.routers {
				if h.now.Sub(x.since) > 40*time.Second && x.cut { // no partition is longer than Forget
					turn(x)
				}
			}
			for want := rate; want > 0; want-- {
				by := rng.IntN(n)
				x := h.routers[by]
				if rng.Float64() >= want || x.Take(h.now, "a", l, 0).Refused != "" {
					continue
				}
				all.take(h.now, by)
				if d := h.now.Sub(x.since); x.cut && d < cfg.Silent+cfg.Beat || !x.cut && d < cfg.Beat {
					excess++
				}
				unheard := float64(all.since(h.now, late, by)) + x.unheard.Seconds()*all.flow
				if most := float64(int(l.Requests)+excess+n) + unheard; all.of > most {
					t.Fatalf("seed %d: %.1f of %d are used, %d too many before, %.1f unheard of", seed, all.of, l.Requests, excess, unheard)
				}
			}
		}
		if !h.lossy && excess > int(l.Requests)*20 {
			t.Errorf("seed %d: %d may be too many of %d: that says nothing", seed, excess, l.Requests)
		}
		for _, x := range h.routers {
			x.cut = false
		}
		h.lossy = false
		for range int(2 * l.Per / step) { // what was owed more than needed flows back
			h.step()
		}
		let := 0
		for range int(l.Per / step) {
			h.step()
			for range 1 + int(rate) {
				if h.routers[rng.IntN(n)].Take(h.now, "a", l, 0).Refused == "" {
					let++
				}
			}
		}
		if let < int(1.9*float64(l.Requests)) { // all of it at once, and what flows back
			t.Errorf("seed %d: %d of %d are let in, by %d routers that hear each other: %+v", seed, let, l.Requests, n, h.routers[0].Stats())
		}
	}
}

// A router that is cut off keeps to its part from then on, the others to theirs when they
// notice, and who is gone leaves its part to the others: at once if it says so.
func TestParts(t *testing.T) {
	h := newHub(t, 1, 4)
	wait := func(d time.Duration) {
		for end := h.now.Add(d); h.now.Before(end); {
			h.step()
		}
	}
	parts := func(when string, want ...float64) {
		t.Helper()
		for i, part := range want {
			if got := h.routers[i].Stats(); got.Part != part {
				t.Errorf("%s: router %d has %v, want %v: %+v", when, i, got.Part, part, got)
			}
		}
	}
	wait(2 * time.Second)
	parts("all there", 1, 1, 1, 1)
	if s := h.routers[0].Stats(); s.Synced != 3 {
		t.Errorf("%+v", s)
	}
	h.routers[0].cut = true
	wait(200 * time.Millisecond)
	parts("cut off", 0.25, 1, 1, 1)
	wait(4 * time.Second)
	parts("and noticed", 0.25, 0.75, 0.75, 0.75)
	wait(2 * time.Minute)
	parts("for long", 0.25, 1, 1, 1) // who is connected takes it for gone
	h.routers[0].cut = false
	wait(2 * time.Second)
	parts("back", 1, 1, 1, 1)
	h.routers[3].dead = true
	wait(5 * time.Second)
	parts("died", 0.75, 0.75, 0.75)
	wait(time.Minute)
	parts("gone", 1, 1, 1)
	h.send(h.routers[2], h.routers[2].Leave())
	h.routers[2].dead = true
	wait(100 * time.Millisecond)
	if s := h.routers[0].Stats(); s.Part != 1 || s.Known != 1 {
		t.Errorf("left: %+v", s)
	}
}

// However often a router dies and is started again, it takes nothing of the others' part but
// while it is not there; two that live in one place by mistake have both their own.
func TestRunsOfOnePlaceHaveOnePart(t *testing.T) {
	h := newHub(t, 1, 3)
	wait := func(d time.Duration, want float64) {
		t.Helper()
		for end := h.now.Add(d); h.now.Before(end); {
			h.step()
			for i := range 2 {
				if s := h.routers[i].Stats(); s.Part != want {
					t.Fatalf("router %d has %v, want %v: %+v", i, s.Part, want, s)
				}
			}
		}
	}
	for range 200 { // they meet
		h.step()
	}
	run := 2
	for range 20 {
		h.routers[run].dead = true
		wait(time.Second, 1)
		run = h.again(run)
		wait(time.Second, 1)
	}
	h.routers[run].dead = true
	for range 500 {
		h.step()
	}
	wait(30*time.Second, 2.0/3)
	run = h.again(run)
	for range 20 {
		h.step()
	}
	wait(5*time.Second, 1)
	if s := h.routers[0].Stats(); s.Known != 2 || s.Synced != 2 {
		t.Errorf("%+v", s)
	}
	h.again(run)
	for range 200 {
		h.step()
	}
	wait(30*time.Second, 1)
	if s := h.routers[0].Stats(); s.Known != 3 || s.Synced != 3 {
		t.Errorf("two live in one place: %+v", s)
	}
}

// A router that starts knows within two intervals what was used, of every tenant; what was
// given back is, elsewhere too.
func TestWhoStartsLearns(t *testing.T) {
	h := newHub(t, 1, 2)
	l := Limit{Requests: 10, Tokens: 1000, Per: time.Hour}
	for range 30 {
		h.step()
	}
	for range 10 {
		h.routers[0].Take(h.now, "a", l, 50)
	}
	h.routers[0].Settle(h.now, "b", l, 900)
	for range 30 {
		h.step()
	}
	h.add()
	for range 60 {
		h.step()
	}
	h.routers[0].Settle(h.now, "b", l, -500)
	for range 30 {
		h.step()
	}
	for i, x := range h.routers {
		if d := x.Take(h.now, "a", l, 0); d.Refused != ByRequests || d.Tokens.Remaining < 495 || d.Tokens.Remaining > 505 {
			t.Errorf("router %d: %+v", i, d)
		}
		if d := x.Take(h.now, "b", l, 0); d.Refused != "" || d.Tokens.Remaining < 595 || d.Tokens.Remaining > 605 {
			t.Errorf("router %d: %+v", i, d)
		}
	}
}

// What comes twice counts once; after a message that did not come, what is owed counts,
// until all is told.
func TestMessagesInAndOutOfOrder(t *testing.T) {
	now := time.Unix(1e9, 0)
	table := NewTable(10)
	table.Join(hubConfig(0))
	owed := func(want time.Duration, synced int) {
		t.Helper()
		table.Tick(now, true)
		if s := table.Stats(); s.Synced != synced {
			t.Errorf("%+v", s)
		}
		if got := table.accounts["a"].requests.owed(now); got != want {
			t.Errorf("%v is owed, want %v", got, want)
		}
	}
	tell := func(number, whole uint64, took, all time.Duration) {
		t.Helper()
		text, err := json.Marshal(&message{Version: 1, Router: 7, Number: number, Whole: whole, Used: []usage{{"a", [2]time.Duration{took, all}, [2]time.Duration{}}}})
		if err == nil {
			err = table.Receive(now, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	table.Tick(now, true)
	tell(5, 0, 1, 100)
	owed(100, 0)
	tell(6, 1, 50, 150)
	owed(150, 1)
	tell(7, 0, 10, 10)
	owed(160, 1)
	tell(7, 0, 10, 10)
	tell(6, 1, 50, 500)
	owed(160, 1)
	tell(9, 0, 10, 100)
	owed(160, 0)
	tell(10, 1, 10, 400)
	owed(400, 1)
	if s := table.Stats(); s.Gaps != 2 {
		t.Errorf("%+v", s)
	}
}

// A part of one request is one in a longer time.
func TestAPartOfALimit(t *testing.T) {
	now, l := time.Unix(0, 0), Limit{Requests: 1, Tokens: 100, Per: time.Minute}.Part(1, 3)
	var a Account
	if d := a.Take(now, l, 20); d.Refused != "" || d.Tokens.Remaining != 13 || d.Tokens.Limit != 100 {
		t.Errorf("%+v", d)
	}
	if d := a.Take(now, l, 1); d.Refused != ByRequests || d.Wait != 3*time.Minute {
		t.Errorf("%+v", d)
	}
}

func FuzzReceive(f *testing.F) {
	whole, _ := json.Marshal(&message{Version: 1, Router: 7, Number: 1, Whole: 1, Used: []usage{{"a", [2]time.Duration{1, 2}, [2]time.Duration{-3, 4}}}}) //nolint:errchkjson // numbers and texts
	for _, text := range []string{string(whole), `{"version":1,"router":8,"number":18446744073709551615,"want":true,"leave":true}`, `{"version":2}`, "",
		`{"version":1,"router":7,"number":2,"used":[{"tenant":"\u00005","requests":[86400000000000,86400000000001]}]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		now, x := time.Unix(1e9, 0), NewTable(3)
		x.Join(hubConfig(0))
		err := x.Receive(now, text)
		if s := x.Stats(); err != nil && (s.Refused != 1 || s.Known != 0 || len(x.accounts) != 0) {
			t.Fatalf("%v changed %+v", err, s)
		}
		for name, a := range x.accounts {
			if max(a.requests.owed(now), a.tokens.owed(now)) > maxOwed {
				t.Fatalf("%q owes %+v", name, a)
			}
		}
		for _, out := range x.Tick(now, true) {
			if err := NewTable(1).Receive(now, out); err != nil {
				t.Fatal(err)
			}
		}
	})
}
