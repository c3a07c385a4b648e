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
	clients map[spool.Client]int // nil if one may have all
}

// newFlight returns one without requests; a share of 0 is all.
func newFlight(most int, share float64) *flight {
	f := &flight{most: most, each: most}
	if share > 0 && share < 1 {
		f.each = max(int(share*float64(most)), 1)
		f.clients = make(map[spool.Client]int)
	}
	return f
}

// enter counts one more, if there is room; own is set if there is none only for the client.
func (f *flight) enter(c spool.Client) (ok, own bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.all >= f.most:
		return false, false
	case f.clients == nil:
	case f.clients[c] >= f.each:
		return false, true
	default:
		f.clients[c]++
	}
	f.all++
	return true, false
}

// leave counts it off.
func (f *flight) leave(c spool.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.all--
	if f.clients == nil {
		return
	}
	if f.clients[c]--; f.clients[c] == 0 {
		delete(f.clients, c)
	}
}

func (f *flight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.all
}

// enter counts one more request of a client, to be counted off with leave at its end,
// unless there are as many as there may be.
func (p *Proxy) enter(r *http.Request) (c spool.Client, no *refusal) {
	c = clientOf(r)
	ok, own := p.flight.enter(c)
	switch {
	case ok:
		return c, nil
	case own:
		no = refuse(p.cfg.BusyStatus, "client_share", "the router answers as many requests of this client as it may of one client; try again")
	default:
		no = refuse(p.cfg.BusyStatus, "too_many_in_flight", "the router answers as many requests as it may; try again")
	}
	no.kind = "overloaded_error"
	return c, no
}
