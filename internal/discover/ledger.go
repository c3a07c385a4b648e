package discover

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/pace"
)

// Place is where a worker is registered: a name in an index space.
type Place struct {
	Name, Model, Group string
	BlockSize          uint32
}

func (p Place) compare(o Place) int {
	return cmp.Or(strings.Compare(p.Name, o.Name), strings.Compare(p.Model, o.Model), strings.Compare(p.Group, o.Group), cmp.Compare(p.BlockSize, o.BlockSize))
}

// Deed is what the server is asked to do.
type Deed uint8

// The deeds.
const (
	Register Deed = iota
	Unregister
)

func (d Deed) String() string { return [...]string{"register", "unregister"}[d] }

// Order is one request to the server.
type Order struct {
	Deed  Deed
	Place Place
	Body  string // to register
}

// standing is what is known of a place.
type standing uint8

const (
	unknown standing = iota // what was said of it may not be so any more
	absent                  // nothing is registered there
	foreign                 // something is, by another or a former process
	ours                    // something is, and this process has said what
	ordered                 // a request about it is under way
)

// entry is a place at the server.
type entry struct {
	standing standing
	said     string // where ours: the body
	clash    bool   // where foreign: it is something else than what is wanted
	changed  uint64 // the first look that may contradict what is known of it
	tries    pace.Pace
}

// Ledger compares who is wanted with who is registered at one server, and says what
// that is to be asked. It has no clock and does no I/O.
type Ledger struct {
	Prefix string // of the names that are this program's
	// Least and Longest are how long is waited before what failed is tried again.
	Least, Longest time.Duration

	known   bool // it was looked at once
	looks   uint64
	entries map[Place]*entry
	why     string // the last failure; "" where what came after it was well
}

// Look begins a look at what the server lists, which is then given to Saw.
func (l *Ledger) Look() uint64 { l.looks++; return l.looks }

// Saw takes what the server listed when it was looked at.
func (l *Ledger) Saw(look uint64, list []Place) {
	if !l.known {
		l.known, l.entries = true, make(map[Place]*entry)
	}
	there := make(map[Place]bool)
	for _, p := range list {
		if !strings.HasPrefix(p.Name, l.Prefix) {
			continue
		}
		there[p] = true
		switch e := l.entries[p]; {
		case e == nil:
			l.entries[p] = &entry{standing: foreign}
		case e.standing != ordered && e.standing != ours && e.standing != foreign && e.changed <= look:
			e.standing, e.clash = foreign, false
		}
	}
	for p, e := range l.entries {
		if !there[p] && e.standing != ordered && e.changed <= look {
			e.standing = absent
		}
	}
}

// Due returns what the server is to be asked now, at most so many orders, and when the
// next one is. Departs says who may be unregistered of those that are not wanted, by name.
func (l *Ledger) Due(now time.Time, wanted map[Place]string, departs func(name string) bool, most int) (list []Order, next time.Time) {
	if !l.known {
		return nil, next
	}
	for p := range wanted {
		if l.entries[p] == nil {
			l.entries[p] = &entry{standing: absent}
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(l.entries), Place.compare) {
		e := l.entries[p]
		body, want := wanted[p]
		o := Order{Deed: Register, Place: p, Body: body}
		switch {
		case e.standing == ordered, want && e.standing == ours && e.said == body:
			continue
		case want && (e.standing == ours || e.standing == foreign && e.clash), !want && (e.standing == ours || e.standing == foreign) && departs(p.Name):
			o = Order{Deed: Unregister, Place: p} // it is registered as something else, or no longer wanted
		case want:
			// What is registered as it is wanted may be registered once more.
		default:
			if e.standing == absent {
				delete(l.entries, p)
			}
			continue
		}
		switch {
		case !e.tries.Ready(now):
			if next.IsZero() || e.tries.Next().Before(next) {
				next = e.tries.Next()
			}
		case len(list) < most:
			e.standing = ordered
			list = append(list, o)
		}
	}
	return list, next
}

// Outcome is how an order ended.
type Outcome uint8

// The outcomes.
const (
	Done   Outcome = iota // it is so now
	Clash                 // something else is registered there
	Failed                // nothing was done, or nobody knows
)

func (o Outcome) String() string { return [...]string{"done", "clash", "failed"}[o] }

// Did takes how an order ended, and why it did not go well.
func (l *Ledger) Did(o Order, out Outcome, why string, begun, now time.Time) {
	e := l.entries[o.Place]
	if e == nil || e.standing != ordered {
		return
	}
	e.changed, e.said, e.clash = l.looks+1, "", false // a look that is under way began before
	switch {
	case out == Done && o.Deed == Register:
		e.standing, e.said = ours, o.Body
	case out == Done:
		e.standing = absent
	case out == Clash && o.Deed == Register:
		e.standing, e.clash = foreign, true
	default:
		e.standing = unknown
	}
	if out == Done {
		e.tries.Progress()
		l.why = ""
		return
	}
	l.why = why
	e.tries.Later(begun, now, l.Least, l.Longest, event.WorkerID(o.Place.Name))
}

// Why returns the last failure, "" where there is none.
func (l *Ledger) Why() string { return l.why }

// Count is how many workers of the prefix are registered at the server.
func (l *Ledger) Count() (n int) {
	for _, e := range l.entries {
		if e.standing == ours || e.standing == foreign {
			n++
		}
	}
	return n
}
