package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
)

// Who may administer engines through the router.
const (
	AdminOperators = "operators" // callers with an operator's token
	AdminOpen      = "open"      // where no tokens are asked for, everybody
	AdminNone      = "none"      // nobody
)

const (
	headerModel = prefix + "Model" // whose engines are meant
	// maxAdministered bounds what is kept of one engine's answer, in bytes, and
	// administered how many engines are asked at once.
	maxAdministered = 64 << 10
	administered    = 16
)

// serveAdministration passes a request that may change engines on to all of a
// model's, or to the one that it names. Nothing is booked or repeated, and engines
// that get no other requests get it too.
func (p *Proxy) serveAdministration(w http.ResponseWriter, r *http.Request) {
	if no := p.notAdministered(w, r); no != nil {
		p.refuse(w, r, no)
		return
	}
	q, done := p.take(w, r)
	if q == nil {
		return
	}
	defer done()
	engines, one, no := p.meant(r, q)
	switch {
	case no != nil:
		p.refuse(w, r, no)
	case one:
		p.administerOne(w, r, q, engines[0])
	default:
		p.administerAll(w, r, q, engines)
	}
}

// notAdministered returns why the caller may not; nil if he may.
func (p *Proxy) notAdministered(w http.ResponseWriter, r *http.Request) *refusal {
	if r.URL.Path == "/" { // no engine has anything there: somebody looks what this is
		return refuse(http.StatusNotFound, "unknown_route",
			"this is kvrouter, which serves the OpenAI API: POST /v1/chat/completions or /v1/completions, GET /v1/models, GET /readyz?verbose; its console is at / of the port of --admin-listen")
	}
	if !p.cfg.PassThrough || p.cfg.Administration == AdminNone {
		return refuse(http.StatusNotFound, "unknown_route", "no such route here")
	}
	if _, known := secure.CallerOf(r.Context()); known || p.cfg.Administration == AdminOpen {
		return nil
	}
	if methods := p.routes.methodsOf(r.URL.Path); methods != nil { // more likely a slip than a wish to administer
		allow := strings.Join(methods, ", ")
		w.Header().Set("Allow", allow)
		return refuse(http.StatusMethodNotAllowed, "method_not_allowed", "use "+allow+" on this route")
	}
	return refuse(http.StatusForbidden, "operators_only",
		"this route is not one of inference: it is for operators with a token (--tokens-file; see --engine-administration and --inference-routes)")
}

// take reads a request that goes to engines as it is, without a choice. It is refused
// if q is nil; else done must be called when it is over.
func (p *Proxy) take(w http.ResponseWriter, r *http.Request) (q *call, done func()) {
	client, no := p.enter(r)
	if no != nil {
		p.refuse(w, r, no)
		return nil, nil
	}
	q = &call{arrival: time.Now(), at: place{guest: client}, name: r.Header[headerRequest], header: r.Header}
	done = func() {
		q.forgetBody()
		p.flight.leave(&q.at)
	}
	recordCall(w, q)
	if no := p.readBody(w, r, q); no != nil {
		p.refuse(w, r, no)
		done()
		return nil, nil
	}
	return q, done
}

// byID orders engines.
func byID(a, b *fleet.Engine) int { return cmp.Compare(a.ID, b.ID) }

// meant returns the engines that the request is for, and whether it names one.
func (p *Proxy) meant(r *http.Request, q *call) (engines []*fleet.Engine, one bool, no *refusal) {
	name := r.Header.Get(headerModel)
	if name == "" {
		if b, err := parseBody(q.data, 0); err == nil {
			name = b.model
		}
	}
	if all := p.fleet.Models(); name == "" && len(all) == 1 {
		q.m = all[0]
	} else if name == "" {
		return nil, false, refuse(http.StatusBadRequest, "missing_model", "several models are served: name the one whose engines are meant in "+headerModel)
	} else if q.m, _ = p.fleet.Lookup(name, r.Header.Get(headerGroup)); q.m == nil {
		return nil, false, p.notServed(name)
	}
	q.model = q.m.Space.Model
	if text := r.Header.Get(headerWorker); text != "" {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return nil, false, refuse(http.StatusBadRequest, "invalid_option", badHeader(headerWorker, "a worker's id").Error())
		}
		e := q.m.Engine(id)
		if e == nil || e.URL == "" {
			return nil, false, refuse(http.StatusNotFound, "unknown_worker", "the model has no such worker, or it has not said where its engine listens")
		}
		return []*fleet.Engine{e}, true, nil
	}
	for _, e := range q.m.Engines() {
		if e.URL != "" {
			engines = append(engines, e)
		}
	}
	if len(engines) == 0 {
		return nil, false, refuse(http.StatusServiceUnavailable, "no_worker", "the model has no engine with an address")
	}
	slices.SortFunc(engines, byID)
	return engines, false, nil
}

// administerOne answers as the engine does.
func (p *Proxy) administerOne(w http.ResponseWriter, r *http.Request, q *call, e *fleet.Engine) {
	ctx, cancel := context.WithTimeout(r.Context(), p.cfg.AdministrationTimeout)
	defer cancel()
	q.asked(e)
	resp, err := p.client.RoundTrip(p.toEngine(ctx, r, q.pieces([][]byte{q.data}), e))
	if err != nil {
		p.limit.Warn("administration", "an engine did not answer an operator", errAttr(err), q.attr(), slog.Uint64("worker", e.ID))
		p.refuse(w, r, refuse(http.StatusBadGateway, "engine_unreachable", "the engine did not answer"))
		return
	}
	p.passOn(w, q, resp, cancel)
}

// passOn gives the client an answer that is not followed.
func (p *Proxy) passOn(w http.ResponseWriter, q *call, resp *http.Response, cancel context.CancelFunc) {
	defer resp.Body.Close() //nolint:errcheck // only read
	copyHeaders(w.Header(), resp.Header)
	q.own(w.Header())
	if resp.ContentLength >= 0 {
		w.Header().Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	w.WriteHeader(resp.StatusCode)
	s := p.newStream(q, resp, route.Whole)
	defer s.free()
	s.follow, s.tail = false, false
	outcome := s.copy(w, resp.Body, resp.ContentLength < 0, cancel)
	q.tally.outcome = outcome
	p.obs.outcome(outcome).Inc()
	if outcome == "engine_broke_off" {
		abort(w)
	}
}

// administeredAnswer is what one of several engines answered.
type administeredAnswer struct {
	Worker uint64 `json:"worker_id,string"`
	Status int    `json:"status"` // 0: none
	Answer any    `json:"answer"` // JSON if it is that, else text; null without
	Cut    bool   `json:"cut,omitempty"`
}

// administerAll asks all the engines and tells what each has answered: with status
// 200 if all did what they were asked, else 502.
func (p *Proxy) administerAll(w http.ResponseWriter, r *http.Request, q *call, engines []*fleet.Engine) {
	answers := make([]administeredAnswer, len(engines))
	room := make(chan struct{}, administered)
	var wait sync.WaitGroup
	for i, e := range engines {
		room <- struct{}{}
		wait.Go(func() {
			defer func() { <-room }()
			answers[i] = p.administer(r, q, e)
		})
	}
	wait.Wait()
	status, outcome := http.StatusOK, "ok"
	for i := range answers {
		if s := answers[i].Status; s < 200 || s > 299 {
			status, outcome = http.StatusBadGateway, "administration_failed"
		}
	}
	body, err := json.Marshal(map[string]any{"model": q.m.Space.Model, "group": q.m.Group, "block_size": q.m.BlockSize, "workers": answers})
	if err != nil {
		p.refuse(w, r, refuse(http.StatusInternalServerError, "internal", err.Error()))
		return
	}
	q.tally.outcome = outcome
	p.obs.outcome(outcome).Inc()
	p.giveTime(w)
	writeJSON(w, status, append(body, '\n'))
}

func (p *Proxy) administer(r *http.Request, q *call, e *fleet.Engine) (a administeredAnswer) {
	a.Worker = e.ID
	ctx, cancel := context.WithTimeout(r.Context(), p.cfg.AdministrationTimeout)
	defer cancel()
	resp, err := p.client.RoundTrip(p.toEngine(ctx, r, q.pieces([][]byte{q.data}), e))
	if err != nil {
		p.limit.Warn("administration", "an engine did not answer an operator", errAttr(err), q.attr(), slog.Uint64("worker", e.ID))
		return a
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	a.Status = resp.StatusCode
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAdministered+1))
	if a.Cut = len(data) > maxAdministered || err != nil; len(data) > maxAdministered {
		data = data[:maxAdministered]
	}
	switch {
	case len(data) == 0:
	case json.Valid(data):
		a.Answer = json.RawMessage(data)
	case utf8.Valid(data):
		a.Answer = string(data)
	default:
		a.Answer = strings.ToValidUTF8(string(data), "\uFFFD")
	}
	return a
}
