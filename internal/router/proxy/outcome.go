package proxy

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route"
)

// Why a request goes to another worker, in metrics.
const (
	whyGone        = "gone"        // the worker has just left
	whyUnreachable = "unreachable" // no connection, or none that lasted to the answer
	whyOverdue     = "overdue"     // it gives nothing to anybody
	whyBrokeOff    = "broke_off"   // before its client saw any of the answer
	whyFull        = "full"        // 429, or 503 and 529 with a time to come again
	whyStatus500   = "status_500"  // it failed at the request, or the request is at fault
	whyStatus5xx   = "status_5xx"
	whyNothing     = "nothing" // status 200, and an error or nothing with it
	whyRefused     = "refused" // it does not know the model, the route, or the router: others may
)

// failure is why an attempt gave no answer that was passed on.
type failure struct {
	*refusal
	retry string // why another worker may do better; "" if none would
	whole bool   // a decode worker alone may do better
	other bool   // and another than this one, if there is one
	fault bool   // the request itself may be at fault
	weak  bool   // and is taken to be, where no other engine can be asked
	blame route.Blame
	// prefill is what a prefill worker was blamed for in the same attempt.
	prefill route.Blame
	given   *given // what the engine answered; nil if that is not for the client
}

// given is an engine's answer that is kept while another is asked.
type given struct {
	status int
	header http.Header
	body   []byte
}

// maxGiven is the most bytes of such an answer; longer ones are passed on at once.
// givenWithin is its time: an engine that fails may do so in the middle of it.
const (
	maxGiven    = 64 << 10
	givenWithin = 5 * time.Second
)

// readGiven reads an answer that is to be kept; cancel ends it.
func readGiven(resp *http.Response, cancel context.CancelFunc) ([]byte, error) {
	late := time.AfterFunc(givenWithin, cancel)
	defer late.Stop()
	return io.ReadAll(io.LimitReader(resp.Body, maxGiven))
}

// judgeStatus says what an answer's head tells of the engine: nothing against it (why
// is empty), that it has no room, that it fails, or that it refuses what others may take.
func judgeStatus(status int, h http.Header, now time.Time) (f route.Failure, why string) {
	if status < http.StatusBadRequest {
		return f, ""
	}
	after, said := retryAfter(h.Get("Retry-After"), now)
	switch {
	case status == http.StatusTooManyRequests, said && (status == http.StatusServiceUnavailable || status == 529):
		return route.Failure{Full: true, RetryAfter: after}, whyFull
	case status == http.StatusInternalServerError:
		return f, whyStatus500
	case refusesOnly(status):
		return f, whyRefused
	case status < 500:
		return f, ""
	}
	return f, whyStatus5xx
}

// refusesOnly reports whether a status says that this engine will not have the request: it asks for
// another key, or has no such model or route. A client may be the cause of each, and so may be how the
// engine was started, which then answers at once and looks idle. That the request is wrong
// (400, 422, …) is taken as said.
func refusesOnly(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusGone, http.StatusMisdirectedRequest, http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return true
	}
	return false
}

// retryAfter reads seconds or a date (RFC 9110, 10.2.3).
func retryAfter(text string, now time.Time) (time.Duration, bool) {
	if text = strings.TrimSpace(text); text == "" {
		return 0, false
	}
	if s, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(s) * time.Second, true
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}

// failed notes what an answer tells against its engine. It returns nil if the answer is
// for the client whatever others would say: then resp.Body may be another one.
func (p *Proxy) failed(q *call, stage route.Stage, resp *http.Response, cancel context.CancelFunc) *failure {
	if resp.StatusCode < http.StatusBadRequest {
		return nil
	}
	against, why := judgeStatus(resp.StatusCode, resp.Header, time.Now())
	f := &failure{retry: why}
	switch why {
	case "":
		if !clientsFault(resp.StatusCode) {
			return nil
		}
		if f = p.calledWrong(q, stage); f == nil {
			return nil
		}
	case whyRefused:
		if !p.cfg.Retry500 || !q.wants || q.final() {
			q.alone(stage)
			return nil // nobody to compare it with
		}
		f.fault, f.weak = true, true
	}
	if why != "" && (!f.weak || q.generates) { // not each engine has each of the other routes
		f.blame = q.m.Router.Failed(q.id, stage, against)
	}
	if why == whyStatus500 {
		f.fault = p.cfg.Retry500
		if !f.fault {
			return nil
		}
	}
	p.obs.engineErrors.Inc()
	if q.final() {
		return nil // no other may
	}
	if why == whyStatus5xx || why == whyFull && resp.StatusCode != http.StatusTooManyRequests {
		f.refusal = refuse(resp.StatusCode, "engine_unavailable", "the engine answers "+strconv.Itoa(resp.StatusCode))
		return f
	}
	body, err := readGiven(resp, cancel)
	if err != nil {
		f.refusal = refuse(http.StatusBadGateway, "engine_unreachable", "the engine's answer breaks off")
		return f
	}
	if len(body) == maxGiven {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), resp.Body), resp.Body}
		return nil
	}
	f.given = &given{resp.StatusCode, resp.Header, body}
	return f
}

// calledWrong is for an answer that calls the request wrong, which goes to the client: nil. But
// where its engine says so of all that it gets, another one is asked, and tells whose fault it is.
func (p *Proxy) calledWrong(q *call, stage route.Stage) *failure {
	if !p.cfg.Retry500 || !q.generates || q.final() {
		q.alone(stage)
		return nil // nobody to compare it with
	}
	blame := q.m.Router.Failed(q.id, stage, route.Failure{Wrong: true})
	if blame.None() && !q.doubted {
		return nil
	}
	q.doubted = true
	return &failure{blame: blame, retry: whyRefused, fault: true, weak: true}
}

// alone notes what only a gateway could ask another engine about, which does not tell: that the
// request is called wrong. Its client may be the cause; what others serve in the meantime tells whether
// the engine does so to all that it gets.
func (q *call) alone(stage route.Stage) {
	if q.passage != nil && q.generates && q.options.Worker == nil {
		q.m.Router.Failed(q.id, stage, route.Failure{Wrong: true, Alone: true})
	}
}

// saysNothing is for an answer with status 200 that has an error in its beginning, or
// nothing to its end: nobody has seen anything of it, and it counts as status 500.
// Without a failure it is passed on.
func (p *Proxy) saysNothing(q *call, s *stream, resp *http.Response, cancel context.CancelFunc) *failure {
	f := &failure{blame: q.m.Router.Failed(q.id, s.stage, route.Failure{}), retry: whyNothing, fault: true}
	if !p.cfg.Retry500 || q.final() {
		return nil // no other may, and what there is goes to the client
	}
	p.keep(f, s, resp, cancel)
	return f
}

// keep keeps what has begun as an answer while another engine is asked.
func (p *Proxy) keep(f *failure, s *stream, resp *http.Response, cancel context.CancelFunc) {
	body := append([]byte(nil), s.buf[:s.n]...)
	if s.err == nil {
		rest, _ := readGiven(resp, cancel) // an error may break off
		body = append(body, rest...)
	}
	p.obs.engineErrors.Inc()
	if f.given = (&given{resp.StatusCode, resp.Header, body}); len(body) == 0 {
		f.given, f.refusal = nil, refuse(http.StatusBadGateway, "engine_unavailable", "the engine answers with nothing")
	}
}

// giveBack ends a request with what the last attempt brought.
func (p *Proxy) giveBack(w http.ResponseWriter, r *http.Request, q *call, f *failure) {
	if q.opened { // it has its status
		q.tally.outcome = "engine_broke_off"
		p.obs.outcome(q.tally.outcome).Inc()
		abort(w)
		return
	}
	if f.given == nil {
		q.tally.refused(f.refusal)
		p.refuse(w, r, f.refusal)
		return
	}
	if q.tally.status, q.tally.outcome = f.given.status, "ok"; f.given.status >= http.StatusBadRequest {
		q.tally.outcome = "engine_" + strconv.Itoa(f.given.status)
	}
	p.obs.outcome(q.tally.outcome).Inc()
	h := w.Header()
	copyHeaders(h, f.given.header)
	q.own(h)
	h.Set("Content-Length", strconv.Itoa(len(f.given.body)))
	p.giveTime(w)
	w.WriteHeader(f.given.status)
	_, _ = w.Write(f.given.body) // the client may be gone
}
