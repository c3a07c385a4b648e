package quota

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Routers tell each other what tenants have taken of their limits, as the time in which it
// flows back, so that no clock need agree. Whoever has heard all of another adds what that
// one takes; whoever has missed something, or meets it for the first time, owes at least
// what the other says is owed in all, and asks for all accounts. That may be more than was
// taken, never less but for what was not told yet, and flows back.
//
// A router that hears only some of those that it knows has, with these, their part of each
// limit: what both sides of a partition let in together is no more than the limit. One that
// has lost its connection knows that and is alone at once. One that is silent for Forget,
// while this one is connected, is gone; where it lives on, cut off, it keeps to its part.
// One that is silent for Silent is gone at once if another runs in its place: it has died
// and was started again, and each of its runs would have a part else until it is forgotten.
// That it is silent is waited for, as two that live may be given one place by mistake.

// Config says who this router is, among the others of its namespace.
type Config struct {
	ID uint64 // different from every other's, and from those of its earlier runs
	// Place is that of its earlier runs, and no other's; 0 is not known.
	Place uint64
	// Every is the time between two messages, if there is something to tell; Beat, if
	// there is nothing.
	Every, Beat time.Duration
	// Silent is when a router is taken for cut off, Forget for gone.
	Silent, Forget time.Duration
}

// maxOthers is how many other routers are listened to.
const maxOthers = 256

// Stats says how the agreement stands.
type Stats struct {
	Known, Heard, Synced int     // other routers
	Part                 float64 // of each limit that this router, and those that it hears, have
	Gaps                 uint64  // messages missed, and routers met: all accounts were asked for
	Forgotten            uint64  // routers that were silent too long, or were started again
	Refused              uint64  // messages that are none, or of routers beyond the bound
}

// others is what is known of the other routers. The Table's lock guards it.
type others struct {
	cfg       Config
	known     map[uint64]*other
	number    uint64 // of the last message
	sent      time.Time
	connected bool
	wanted    bool // somebody asks for all accounts
	whole     time.Time
	asked     time.Time
	some, of  int
	stats     Stats
}

// other is another router.
type other struct {
	place  uint64
	number uint64    // of its last message
	row    uint64    // how many came with none missing before that, and with it
	heard  time.Time // when that came
	until  time.Time // then it is forgotten
	synced bool      // all that it took is known
}

// message is what one router tells all.
type message struct {
	Version int     `json:"version"`
	Router  uint64  `json:"router"`
	Place   uint64  `json:"place,omitempty"`
	Number  uint64  `json:"number"`          // one more than its last
	Want    bool    `json:"want,omitempty"`  // somebody's accounts are not known
	Whole   uint64  `json:"whole,omitempty"` // so many, with it the last, have told all of its accounts
	Leave   bool    `json:"leave,omitempty"` // its last
	Used    []usage `json:"used,omitempty"`
}

// usage is what one tenant has used: taken there since the last message, and owed in all,
// as nanoseconds in which it flows back.
type usage struct {
	Tenant   string           `json:"tenant"`
	Requests [2]time.Duration `json:"requests"`
	Tokens   [2]time.Duration `json:"tokens"`
}

// messageBytes is about how long a message is.
const messageBytes = 256 << 10

// Join has the Table agree with those of other routers, by Tick and Receive.
func (t *Table) Join(cfg Config) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others = others{cfg: cfg, known: make(map[uint64]*other)}
}

// part returns the part of the limit that holds here.
func (o *others) part(l Limit) Limit { return l.Part(o.some, o.of) }

// Tick does what is due, at least each Every, and returns the messages to send to all
// others, in order. connected says whether they can be sent.
func (t *Table) Tick(now time.Time, connected bool) (out [][]byte) {
	t.mu.Lock()
	o := &t.others
	back := connected && !o.connected
	o.connected = connected
	for id, p := range o.known {
		switch {
		case !connected: // nobody's silence says anything
		case back:
			p.until = now.Add(o.cfg.Forget)
		case now.After(p.until):
			delete(o.known, id)
			o.stats.Forgotten++
		}
	}
	o.count(now)
	var all []message
	if connected {
		all = t.tell(now)
	}
	t.mu.Unlock()
	for i := range all {
		text, err := json.Marshal(&all[i])
		if err != nil { // numbers and texts
			continue
		}
		out = append(out, text)
	}
	return out
}

// startedAgain reports whether a router is silent, and another runs in its place.
func (o *others) startedAgain(now time.Time, p *other) bool {
	if p.place == 0 || now.Sub(p.heard) <= o.cfg.Silent {
		return false
	}
	if p.place == o.cfg.Place {
		return true
	}
	for _, q := range o.known {
		if q.place == p.place && now.Sub(q.heard) <= o.cfg.Silent {
			return true
		}
	}
	return false
}

// tell returns what is to be told now.
func (t *Table) tell(now time.Time) (all []message) {
	o := &t.others
	want := o.stats.Synced < o.stats.Heard && now.Sub(o.asked) >= o.cfg.Beat/4
	whole := o.wanted && now.Sub(o.whole) >= o.cfg.Beat/4
	var m message
	size := 0
	send := func() {
		o.number++
		m.Version, m.Router, m.Place, m.Number = 1, o.cfg.ID, o.cfg.Place, o.number
		all = append(all, m)
		m, size = message{}, 0
	}
	for name, a := range t.accounts {
		if a.requests.took == 0 && a.tokens.took == 0 && (!whole || a.idle(now)) {
			continue
		}
		m.Used = append(m.Used, usage{name, a.requests.tell(now), a.tokens.tell(now)})
		if size += 128 + 6*len(name); size > messageBytes {
			send()
		}
	}
	if whole {
		m.Whole = uint64(len(all)) + 1
	}
	if m.Want = want; len(m.Used) > 0 || want || whole || now.Sub(o.sent) >= o.cfg.Beat {
		send()
	}
	if want {
		o.asked = now
	}
	if whole {
		o.whole, o.wanted = now, false
	}
	if len(all) > 0 {
		o.sent = now
	}
	return all
}

func (b *bucket) tell(now time.Time) [2]time.Duration {
	took := b.took
	b.took = 0
	return [2]time.Duration{took, min(b.owed(now), maxOwed)}
}

// Leave returns the last message: this router takes no more.
func (t *Table) Leave() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.others.number++
	text, err := json.Marshal(&message{Version: 1, Router: t.others.cfg.ID, Number: t.others.number, Leave: true})
	if err != nil { // numbers
		return nil
	}
	return text
}

// count says how many others there are, and so which part of the limits is this router's
// and theirs that it hears.
func (o *others) count(now time.Time) {
	s := &o.stats
	for id, p := range o.known {
		if o.connected && o.startedAgain(now, p) {
			delete(o.known, id)
			s.Forgotten++
		}
	}
	s.Known, s.Heard, s.Synced = len(o.known), 0, 0
	for _, p := range o.known {
		if !o.connected || now.Sub(p.heard) > o.cfg.Silent {
			p.synced = false
			continue
		}
		if s.Heard++; p.synced {
			s.Synced++
		}
	}
	o.some, o.of = 1+s.Heard, 1+s.Known
}

// Receive takes a message of another router; one of its own, or an old one, changes
// nothing.
func (t *Table) Receive(now time.Time, text []byte) error {
	var m message
	err := json.Unmarshal(text, &m)
	if err == nil {
		err = m.check()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	o := &t.others
	if err != nil {
		o.stats.Refused++
		return fmt.Errorf("what a router says that tenants used: %w", err)
	}
	p := o.known[m.Router]
	switch {
	case m.Router == o.cfg.ID || o.known == nil || p != nil && m.Number <= p.number:
		return nil
	case m.Leave:
		delete(o.known, m.Router)
		o.count(now)
		return nil
	case p == nil && len(o.known) >= maxOthers:
		o.stats.Refused++
		return errors.New("more routers tell what tenants used than are listened to; are their namespaces right?")
	case p == nil:
		p = new(other)
		o.known[m.Router] = p
		o.stats.Gaps++
	case m.Number != p.number+1:
		p.synced, p.row = false, 0
		o.stats.Gaps++
	}
	p.row++
	p.place, p.number, p.heard, p.until = m.Place, m.Number, now, now.Add(o.cfg.Forget)
	o.wanted = o.wanted || m.Want
	for i := range m.Used {
		u := &m.Used[i]
		a, _ := t.of(now, u.Tenant)
		if p.synced {
			a.requests.move(now, u.Requests[0])
			a.tokens.move(now, u.Tokens[0])
		} else {
			a.requests.atLeast(now, u.Requests[1])
			a.tokens.atLeast(now, u.Tokens[1])
		}
	}
	p.synced = p.synced || m.Whole > 0 && m.Whole <= p.row
	o.count(now)
	return nil
}

// check refuses what no router says.
func (m *message) check() error {
	if m.Version != 1 {
		return fmt.Errorf("version %d is none of this program's", m.Version)
	}
	for i := range m.Used {
		u := &m.Used[i]
		if strings.HasPrefix(u.Tenant, lanePrefix) && !isLane(u.Tenant) {
			return fmt.Errorf("no tenant is called %q", u.Tenant)
		}
		for _, d := range slices.Concat(u.Requests[:], u.Tokens[:]) {
			if d != clamp(d) {
				return fmt.Errorf("%v is more than anybody uses", d)
			}
		}
		if u.Requests[1] < 0 || u.Tokens[1] < 0 {
			return errors.New("less than nothing is owed")
		}
	}
	return nil
}

// Stats returns how the agreement stands.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.others.stats
	s.Part = 1
	if t.others.of > 0 {
		s.Part = float64(t.others.some) / float64(t.others.of)
	}
	return s
}
