package proxy

import (
	"errors"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/spool"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
)

// readBody reads the request's body into q, if there is room for it: bodies are held
// until their requests end, to be sent again if need be.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request, q *call) *refusal {
	if r.Body != nil && r.Body != http.NoBody {
		q.spooled = p.spool.Open(q.client(r), func() {
			p.flight.leave(&q.at) // who waits for the place need not wait until this is noticed
			_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0))
		}, q.at.guest != nil)
		if err := q.spooled.Fill(r.Body, r.ContentLength, p.cfg.MaxBody); err != nil {
			if r.ProtoMajor == 1 {
				w.Header().Set("Connection", "close") // the rest of it is not waited for
			}
			return p.notRead(err)
		}
		q.data = q.spooled.Bytes()
	}
	if no := p.decode(r, q); no != nil {
		if no.status == http.StatusUnsupportedMediaType {
			w.Header().Set("Accept-Encoding", "gzip, zstd")
		}
		return no
	}
	q.size, q.http2 = int64(len(q.data)), r.ProtoMajor == 2
	waitForEngines(w)
	return nil
}

// client returns who shares room with the request.
func (q *call) client(r *http.Request) spool.Client {
	if q.at.guest != nil {
		return q.at.Client
	}
	return clientOf(r)
}

// notRead says why a body was not read.
func (p *Proxy) notRead(err error) *refusal {
	no := refuse(p.cfg.BusyStatus, "no_room", "the router holds as many bytes of requests as it may; try again")
	no.kind = "overloaded_error"
	switch {
	case errors.Is(err, spool.ErrTooLarge):
		return refuse(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than the router allows (--http-max-body)")
	case errors.Is(err, spool.ErrLength):
		return refuse(http.StatusBadRequest, "body", "the body is longer or shorter than its Content-Length says")
	case errors.Is(err, os.ErrDeadlineExceeded):
		return refuse(http.StatusRequestTimeout, "timeout", "the body did not arrive in the time that a request has (--http-read-timeout)")
	case errors.Is(err, spool.ErrSlow):
		return refuse(http.StatusRequestTimeout, "body_too_slow", "the body arrived too slowly while there was little room; try again")
	case errors.Is(err, spool.ErrShare):
		no.reason, no.message = "client_share", "the router holds as many bytes of this client's requests as it may of one client's; try again"
		return no
	case errors.Is(err, spool.ErrNoRoom):
		return no
	}
	return refuse(http.StatusBadRequest, "body", "the body did not arrive whole")
}

// clientOf returns who shares room for bodies: the holders of a token, else an
// address.
func clientOf(r *http.Request) spool.Client {
	if c, ok := secure.CallerOf(r.Context()); ok {
		return spool.Client{Name: "token " + c.Name}
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		if y := passageOf(r); y != nil {
			return spool.Client{Name: y.ID} // of whom nothing is known: each is another
		}
		return spool.Client{}
	}
	return spool.Client{Address: secure.ClientAddress(at.Addr())}
}

// look waits until the body may be read as a whole: those in files are by few at once, as
// what is being read is in memory. done must be called.
func (p *Proxy) look(r *http.Request, q *call) (done func()) {
	if q.spooled == nil || !q.spooled.InFile() {
		return func() {}
	}
	select {
	case p.decoding <- struct{}{}:
	case <-r.Context().Done():
		return func() {} // it ends soon
	}
	return func() {
		q.spooled.Cool()
		<-p.decoding
	}
}

// shortBody is how long a conversation may be that is read whenever it comes.
const shortBody = 64 << 10

// reading waits until a conversation may be read: long ones are by few at once, as what is made
// of them takes several times their memory. done must be called.
func (p *Proxy) reading(q *call) (done func()) {
	if len(q.data) <= shortBody {
		return func() {}
	}
	p.decoding <- struct{}{} // those before are at work, and wait for nobody
	return func() {
		if q.spooled != nil && q.spooled.InFile() {
			q.spooled.Cool()
		}
		<-p.decoding
	}
}

// pieces returns what may be sent of the request, parts of its body among it.
func (q *call) pieces(list [][]byte) upstream.Payload {
	if q.spooled == nil {
		return upstream.Payload{Pieces: list}
	}
	return upstream.Payload{Keeper: q.spooled, Pieces: list}
}

// forget gives back what a request has used.
func (p *Proxy) forget(q *call) {
	q.forgetBody()
	p.flight.leave(&q.at)
	if q.hashes != nil {
		p.hashes.Put(q.hashes)
	}
	if d := q.desk; q.clean && p.cfg.AccessLog == nil { // which tells of it later
		*q = call{}
		p.desks.Put(d)
	}
}

// forgetBody is called when the request is over.
func (q *call) forgetBody() {
	if q.spooled != nil {
		q.spooled.Release()
	}
}
