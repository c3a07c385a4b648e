package proxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/route"
)

// kindOverloaded is the type of an error that says that all is busy, of both APIs.
const kindOverloaded = "overloaded_error"

// refusal is an answer of the router's own, in the form of OpenAI's API.
type refusal struct {
	status       int
	kind, reason string // OpenAI's type, and a word of a fixed list
	message      string
	after        time.Duration // when to try again, if that is known
}

func (r *refusal) Error() string { return r.message }

func refuse(status int, reason, message string) *refusal {
	kind := "invalid_request_error"
	if status >= 500 {
		kind = "server_error"
	}
	return &refusal{status: status, kind: kind, reason: reason, message: message}
}

// refusedBy turns an error of a choice into an answer.
func (p *Proxy) refusedBy(err error) *refusal {
	switch {
	case errors.Is(err, route.ErrOverloaded):
		r := refuse(p.cfg.BusyStatus, "overloaded", err.Error())
		r.kind = kindOverloaded
		return r
	case errors.Is(err, route.ErrNoWorker):
		return refuse(http.StatusServiceUnavailable, "no_worker", err.Error())
	case errors.Is(err, route.ErrSettings):
		return refuse(http.StatusBadRequest, "invalid_option", err.Error())
	}
	return refuse(http.StatusServiceUnavailable, "cancelled", err.Error())
}

func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, no *refusal) {
	p.refuseAs(w, no, no.json(asksMessages(r.URL.Path)))
}

// refuseAs is refuse in another form.
func (p *Proxy) refuseAs(w http.ResponseWriter, no *refusal, body []byte) {
	p.obs.outcome(no.reason).Inc()
	if rec, ok := w.(*recorded); ok {
		rec.outcome = no.reason
	}
	p.giveTime(w)
	h := w.Header()
	if no.after > 0 || no.status == http.StatusServiceUnavailable || no.status == p.cfg.BusyStatus {
		h.Set("Retry-After", strconv.FormatInt(int64(max((no.after+time.Second-1)/time.Second, 1)), 10))
	}
	writeJSON(w, no.status, body)
}

// json returns the refusal's form, that of OpenAI's API or of Anthropic's.
func (r *refusal) json(anthropic bool) []byte {
	if anthropic {
		return edge.JSON(map[string]any{"type": "error", "error": map[string]any{
			"message": r.message, "type": r.anthropicType(), "code": r.reason,
		}})
	}
	return edge.JSON(map[string]any{"error": map[string]any{
		"message": r.message, "type": r.kind, "param": nil, "code": r.reason,
	}})
}

// anthropicType returns the type of an error of Anthropic's API (https://docs.anthropic.com/en/api/errors).
func (r *refusal) anthropicType() string {
	switch r.status {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	}
	switch {
	case r.kind == kindOverloaded:
		return kindOverloaded
	case r.status >= 500:
		return "api_error"
	}
	return "invalid_request_error"
}

// keepOut answers a request whose caller may not make it. What is none of inference is said to be that: a
// path that is not quite right would else look like a wrong token.
func (p *Proxy) keepOut(w http.ResponseWriter, r *http.Request, status int, header, message string) {
	no := refuse(status, edge.Unauthenticated, message)
	if status == http.StatusForbidden {
		no.reason = edge.Forbidden
	}
	switch c := p.routes.of(r); {
	case passageOf(r) != nil && !c.passes(r.URL.Path):
		no = notBehindGateway()
	case c == selecting:
		p.refuseAs(w, no, edge.Refuse(status, header, no.reason, message).JSON())
		return
	case c == administration && header == "Authorization" && status == http.StatusForbidden:
		no = cmp.Or(p.notAdministered(w, r), no)
	}
	p.refuse(w, r, no)
}

// giveTime gives the client its time to take what is written next: until then there was
// none (see waitForEngines).
func (p *Proxy) giveTime(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(p.cfg.WriteTimeout)) // both servers can
}

// waitForEngines takes the server's deadlines away, which are for the client: left in
// force the one for reading would end a long answer as if the client were gone, and the
// one for writing an HTTP/2 stream for which nothing is written yet.
func waitForEngines(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Time{})
	_ = control.SetWriteDeadline(time.Time{})
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func appendJSON(dst []byte, text string) []byte {
	b, err := json.Marshal(text)
	if err != nil {
		b = []byte(`""`)
	}
	return append(dst, b...)
}

// attr names the request in logs.
func (q *call) attr() slog.Attr {
	if len(q.name) == 0 {
		return slog.Attr{}
	}
	return slog.String("request_id", q.name[0])
}

func errAttr(err error) slog.Attr { return slog.Any("error", err) }
