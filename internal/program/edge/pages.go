package edge

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/secure"
)

// Pages answers what is asked below one path of a port, whatever library the port's
// server is of.
type Pages interface {
	// Needs says who may ask for a path; tenants may, too.
	Needs(path string) secure.Role
	Answer(*Ask) *Reply
}

// Ask is a request, as far as Pages look at it.
type Ask struct {
	Method string
	Path   string // below the pages' own, escaped as it came
	Query  string
	Known  string // the If-None-Match header
	Body   []byte // of POST
	Tenant *string
	Role   secure.Role // of the caller
}

// Reply is an answer.
type Reply struct {
	Status int
	Type   string
	Tag    string // ETag, with its quotes; empty: not to be kept
	Allow  string
	Body   []byte // shared: it is not to be changed
	Stream Stream // in place of Body, if not nil; who gets it closes it
}

// Stream is the body of an answer without an end.
type Stream interface {
	// Next waits for what is to be sent next, which is shared and not to be changed. The
	// error is io.EOF at the end, and when gone is closed.
	Next(gone <-chan struct{}) ([]byte, error)
	Close()
}

// MaxPageBody is the most bytes of a request's body.
const MaxPageBody = 8 << 20

// streamWait is how long a reader of a Stream may take for one part of it.
const streamWait = 10 * time.Second

// StreamWait returns how long a reader of a Stream may take for one part of it.
func StreamWait() time.Duration { return streamWait }

// Headers sets the answer's.
func (r *Reply) Headers(set func(name, value string)) {
	set("Content-Type", r.Type)
	set("X-Content-Type-Options", "nosniff")
	set("Referrer-Policy", "no-referrer")
	set("Cross-Origin-Opener-Policy", "same-origin")
	set("Cross-Origin-Resource-Policy", "same-origin")
	set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	if r.Tag != "" {
		set("ETag", r.Tag)
		set("Cache-Control", "no-cache")
	} else {
		set("Cache-Control", "no-store")
	}
	if r.Allow != "" {
		set("Allow", r.Allow)
	}
	if r.Stream != nil {
		set("X-Accel-Buffering", "no") // proxies that wait for more would show the past
	}
}

// ReplyJSON returns an answer with the value's form.
func ReplyJSON(v any) *Reply { return &Reply{Status: http.StatusOK, Type: TypeJSON, Body: JSON(v)} }

// ReplyProblem returns an answer that refuses.
func ReplyProblem(p *Problem) *Reply { return &Reply{Status: p.Status, Type: TypeJSON, Body: p.JSON()} }

// ServePages returns a handler of the pages below a path that ends with a slash. Without
// access everybody may ask.
func ServePages(p Pages, access *secure.Access, below string) http.Handler {
	if access == nil {
		access = new(secure.Access)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, ok := strings.CutPrefix(r.URL.EscapedPath(), below)
		if !ok { // the path without its slash: the pages' own links are relative
			w.Header().Set("Location", strings.TrimPrefix(below, "/"))
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		ask := &Ask{Method: r.Method, Path: path, Query: r.URL.RawQuery, Known: r.Header.Get("If-None-Match")}
		c, refusal := access.Check([]byte(r.Header.Get("Authorization")), p.Needs(path))
		if no := Refused(refusal); no != nil {
			if no.Status == http.StatusUnauthorized {
				w.Header().Set("WWW-Authenticate", "Bearer")
			}
			writeReply(w, r, ReplyProblem(no))
			return
		}
		ask.Tenant, ask.Role = c.Tenant, c.Role
		if r.Method == http.MethodPost {
			var err error
			if ask.Body, err = io.ReadAll(http.MaxBytesReader(w, r.Body, MaxPageBody)); err != nil {
				no := Bad("body", MalformedRequest, "the body did not arrive")
				if large := new(http.MaxBytesError); errors.As(err, &large) {
					no = Refuse(http.StatusRequestEntityTooLarge, "body", BodyTooLarge, "the body is too large")
				}
				writeReply(w, r, ReplyProblem(no))
				return
			}
		}
		writeReply(w, r, p.Answer(ask))
	})
}

// Refused returns the problem of a caller that may not ask; nil for one that may.
func Refused(r secure.Refusal) *Problem {
	switch r {
	case secure.Unauthenticated:
		return Refuse(http.StatusUnauthorized, "Authorization", Unauthenticated, "give a valid token: Authorization: Bearer …")
	case secure.Forbidden:
		return Refuse(http.StatusForbidden, "Authorization", Forbidden, "the token is for less than this")
	case secure.Allowed:
	}
	return nil
}

func writeReply(w http.ResponseWriter, r *http.Request, a *Reply) {
	a.Headers(w.Header().Set)
	if a.Stream != nil {
		defer a.Stream.Close()
	}
	w.WriteHeader(a.Status)
	switch {
	case r.Method == http.MethodHead:
	case a.Stream == nil:
		_, _ = w.Write(a.Body) // the client may be gone
	default:
		copyStream(w, r, a.Stream)
	}
}

// copyStream sends the stream until it ends, or its reader is gone or too slow.
func copyStream(w http.ResponseWriter, r *http.Request, s Stream) {
	c := http.NewResponseController(w)
	// The server's limits are for requests and answers that end. A reader that is gone
	// is known by its context, which a deadline for reading would end, too. Where there
	// are no deadlines, nothing is to be lifted.
	_ = c.SetReadDeadline(time.Time{})
	for {
		part, err := s.Next(r.Context().Done())
		if err != nil {
			return
		}
		_ = c.SetWriteDeadline(time.Now().Add(streamWait))
		if _, err := w.Write(part); err != nil {
			return
		}
		if err := c.Flush(); err != nil {
			return
		}
	}
}
