package discover

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// place is a server as a ledger meets it: what is registered there, and nothing else.
type place map[Place]string

// do is what the server makes of an order.
func (p place) do(o Order) Outcome {
	have, ok := p[o.Place]
	switch {
	case o.Deed == Unregister:
		delete(p, o.Place)
	case ok && have != o.Body:
		return Clash
	default:
		p[o.Place] = o.Body
	}
	return Done
}

// Who may depart.
func all(string) bool  { return true }
func none(string) bool { return false }

func (p place) list() (list []Place) {
	for k := range p {
		list = append(list, k)
	}
	return list
}

// Whatever is lost, late or done by others, the server ends with what is wanted; others'
// workers stay, and nobody departs before all pods are known.
func TestALedgerEndsEqualToWhatIsWanted(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		l := Ledger{Prefix: "k8s/n/x/", Least: time.Second, Longest: time.Minute}
		at := func() Place {
			return Place{Name: fmt.Sprint("k8s/n/x/", rnd.IntN(4)), Model: fmt.Sprint("m", rnd.IntN(2)), BlockSize: 16}
		}
		server, wanted, foreign := place{}, map[Place]string{}, Place{Name: "k8s/n/xy/0", Model: "m0", BlockSize: 16}
		server[foreign] = "another's"
		for range rnd.IntN(4) {
			server[at()] = fmt.Sprint(rnd.IntN(2)) // by a former run
		}
		now, departs := time.Unix(1e9, 0), false
		type flight struct {
			order Order
			begun time.Time
		}
		type look struct {
			n    uint64
			list []Place
		}
		var orders []flight
		var looks []look
		turn := func(quiet bool) {
			for _, o := range func() []Order { list, _ := l.Due(now, wanted, func(string) bool { return departs }, 3); return list }() {
				if o.Deed == Unregister && !departs {
					if _, ok := wanted[o.Place]; !ok {
						t.Fatalf("seed %d: %v departs, and not all pods are known", seed, o.Place)
					}
				}
				if !strings.HasPrefix(o.Place.Name, l.Prefix) {
					t.Fatalf("seed %d: an order about %v", seed, o.Place)
				}
				orders = append(orders, flight{o, now})
			}
			if len(orders) > 0 && (quiet || rnd.IntN(2) == 0) {
				i := rnd.IntN(len(orders))
				f := orders[i]
				orders = append(orders[:i], orders[i+1:]...)
				switch n := rnd.IntN(6); {
				case n == 0 && !quiet: // it never came
					l.Did(f.order, Failed, "lost", f.begun, now)
				case n == 1 && !quiet: // its answer never came
					server.do(f.order)
					l.Did(f.order, Failed, "lost", f.begun, now)
				default:
					l.Did(f.order, server.do(f.order), "", f.begun, now)
				}
			}
			switch {
			case len(looks) > 0 && (quiet || rnd.IntN(2) == 0): // as it was when it began
				l.Saw(looks[0].n, looks[0].list)
				looks = looks[1:]
			case len(looks) == 0 && (quiet || rnd.IntN(3) == 0):
				looks = append(looks, look{l.Look(), server.list()})
			}
			now = now.Add(time.Duration(rnd.IntN(5000)) * time.Millisecond)
		}
		for range 120 {
			switch rnd.IntN(10) {
			case 0:
				wanted[at()] = fmt.Sprint(rnd.IntN(2))
			case 1:
				delete(wanted, at())
			case 2:
				departs = true
			case 3:
				if rnd.IntN(4) == 0 { // the registry lost all
					clear(server)
					server[foreign] = "another's"
				} else if p := at(); rnd.IntN(2) == 0 {
					delete(server, p)
				}
			default:
				turn(false)
			}
		}
		departs = true
		for range 400 {
			turn(true)
		}
		want := maps.Clone(wanted)
		want[foreign] = "another's"
		if !maps.Equal(map[Place]string(server), want) {
			t.Fatalf("seed %d: the server has %v, want %v", seed, server, want)
		}
		if list, next := l.Due(now, wanted, all, 10); len(list) > 0 || !next.IsZero() || l.Count() != len(wanted) {
			t.Fatalf("seed %d: orders %v to come at %v, %d registered", seed, list, next, l.Count())
		}
	}
}

// Registered by a former run as something else, it is unregistered first.
func TestAClashIsUnregisteredFirst(t *testing.T) {
	l := Ledger{Prefix: "k8s/n/x/", Least: time.Second, Longest: time.Minute}
	p := Place{Name: "k8s/n/x/0", Model: "m", BlockSize: 16}
	server, wanted, now := place{p: "old"}, map[Place]string{p: "new"}, time.Unix(1e9, 0)
	if list, _ := l.Due(now, wanted, all, 9); len(list) != 0 {
		t.Fatal("orders before the server was looked at", list)
	}
	l.Saw(l.Look(), server.list())
	var deeds []string
	for range 5 {
		list, _ := l.Due(now, wanted, none, 9)
		for _, o := range list {
			out := server.do(o)
			deeds = append(deeds, o.Deed.String()+" "+out.String())
			l.Did(o, out, "it is", now, now)
		}
		now = now.Add(time.Minute)
	}
	if got := strings.Join(deeds, ", "); got != "register clash, unregister done, register done" || server[p] != "new" {
		t.Errorf("%s; then %q", got, server[p])
	}
}
