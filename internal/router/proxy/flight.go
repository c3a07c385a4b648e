package proxy

import (
	"net/http"
	"sync"

	"github.com/kvatlas/kvatlas/internal/router/spool"
)

// flight counts the requests that are being answered: all, and those of each client, as
// one that takes all of the room would leave none to others.
type flight struct {
	most, each int // of all, and of one client

	mu      sync.Mutex
	all     int
	clients map[spool.Client]*guest // nil if one may have all
}

// guest is a client while it has requests that are being answered.
type guest struct {
	spool.Client
	n int // of them
}

// place is a request's own among them; without a guest it is of none that is counted. It is
// left once: at the request's end, or when its body is dropped.
type place struct {
	*guest
	left bool // guarded by flight.mu
}

// newFlight returns one without requests; a share of 0 is all.
func newFlight(most int, share float64) *flight {
	f := &flight{most: most, each: most}
	if share > 0 && share < 1 {
		f.each = max(int(share*float64(most)), 1)
		f.clients = make(map[spool.Client]*guest)
	}
	return f
}

// enter counts one more, if there is room; own is set if there is none only for the client.
// The guest, nil without room, is of the place that leave is to be given.
func (f *flight) enter(c spool.Client) (g *guest, own bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all >= f.most {
		return nil, false
	}
	if f.clients != nil {
		g = f.clients[c]
	}
	switch {
	case g == nil:
		g = &guest{Client: c}
		if f.clients != nil {
			f.clients[c] = g
		}
	case g.n >= f.each:
		return nil, true
	}
	g.n++
	f.all++
	return g, false
}

// leave counts it off, unless that is done.
func (f *flight) leave(at *place) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if at.left || at.guest == nil {
		return
	}
	at.left = true
	f.all--
	if at.n--; at.n == 0 && f.clients != nil {
		delete(f.clients, at.Client)
	}
}

func (f *flight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// enter counts one more request of a client, to be counted off with leave at its end,
// unless there are as many as there may be. Those whose bodies come slowly give way.
func (p *Proxy) enter(r *http.Request) (g *guest, no *refusal) {
	c := clientOf(r)
	g, own := p.flight.enter(c)
	for g == nil && p.spool.Oust(c, own) {
		g, own = p.flight.enter(c)
	}
	switch {
	case g != nil:
		return g, nil
	case own:
		no = refuse(p.cfg.BusyStatus, "client_share", "the router answers as many requests of this client as it may of one client; try again")
	default:
		no = refuse(p.cfg.BusyStatus, "too_many_in_flight", "the router answers as many requests as it may; try again")
	}
	no.kind = "overloaded_error"
	return nil, no
}
