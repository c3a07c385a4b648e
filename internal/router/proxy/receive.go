package proxy

import (
	"errors"
	"io"
	"net/http"
	"time"
)

// readBody reads the request's body into q, if there is room for it: the bodies
// of all requests under way are held in memory, to be sent again if need be.
func (p *Proxy) readBody(w http.ResponseWriter, r *http.Request, q *call) *refusal {
	if r.Body == nil || r.Body == http.NoBody {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return nil
	}
	// A body of unknown length may be as long as any.
	if q.held = r.ContentLength; q.held < 0 {
		q.held = p.cfg.MaxBody
	}
	tooLarge := refuse(http.StatusRequestEntityTooLarge, "body_too_large", "the body is larger than the router allows (--http-max-body)")
	if q.held > p.cfg.MaxBody {
		q.held = 0
		return tooLarge
	}
	if p.held.Add(q.held) > p.cfg.BodyMemory {
		no := refuse(p.cfg.BusyStatus, "no_room", "the router holds as many bytes of requests as it may; try again")
		no.kind = "overloaded_error"
		return no
	}
	data, err := readAll(http.MaxBytesReader(w, r.Body, p.cfg.MaxBody), r.ContentLength)
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return tooLarge
	case err != nil:
		return refuse(http.StatusBadRequest, "body", "the body did not arrive whole")
	}
	p.held.Add(int64(len(data)) - q.held)
	q.data, q.held = data, int64(len(data))
	// The server's read deadline was for the request; left in force it would end a
	// long answer as if the client were gone.
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	return nil
}

// forgetBody is called when the request is over.
func (p *Proxy) forgetBody(q *call) { p.held.Add(-q.held) }

// readAll reads a body whose length may be known.
func readAll(r io.Reader, length int64) ([]byte, error) {
	if length < 0 || length > 1<<20 { // memory comes with the bytes, not with the promise of them
		return io.ReadAll(r)
	}
	b := make([]byte, length)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	return b, nil
}
