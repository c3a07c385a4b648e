package proxy

import (
	"cmp"
	"net"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/secure"
	"github.com/kvatlas/kvatlas/internal/router/accesslog"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/shard"
)

// tally is what became of a request, for metrics, the access log and its tenant's
// limits.
type tally struct {
	status   int    // of its answer; 0: there was none
	outcome  string // as in metrics
	queue    time.Duration
	first    time.Duration // until the answer's first byte
	attempts int
	at       shard.RankID // of the last one
	rankless bool         // at is an engine, and none of its ranks
	prefill  *uint64
	prompt   int // tokens, as reported or else as they are known; 0: neither
	cached   int
	output   int
}

// refused notes an answer of the router's own.
func (t *tally) refused(no *refusal) { t.status, t.outcome = no.status, no.reason }

// attempted notes that a worker is asked.
func (t *tally) attempted(pair *route.Pair) {
	t.attempts++
	t.at, t.prefill = pair.Decode.RankID, nil
	if pair.Prefill != nil {
		worker := pair.Prefill.Worker
		t.prefill = &worker
	}
}

// asked notes the engine that a request without a choice goes to.
func (q *call) asked(e *fleet.Engine) {
	q.m, q.model = e.Model(), e.Model().Space.Model
	q.tally.attempts, q.tally.at, q.tally.rankless = 1, shard.RankID{Worker: e.ID}, true
}

// used notes what an answer says, or shows, that it took.
func (t *tally) used(s *stream, said usage) {
	q := s.call
	if t.prompt = said.prompt; t.prompt < 0 {
		t.prompt = q.prompt.Size()
	}
	if t.output = said.completion; t.output < 0 {
		t.output = s.tokens
	}
	t.cached = max(said.cached, 0)
}

// finish is called when a request for an engine is over.
func (p *Proxy) finish(q *call) {
	used := int64(q.tally.prompt) + int64(q.tally.output)
	if q.tally.outcome == "client_gone" && q.tally.attempts > 0 {
		used = max(used, q.payer.taken) // an engine was at work on it, whatever the client saw
	}
	p.settle(q, used)
	q.endTrace()
	p.meters.request(q, time.Since(q.arrival))
}

// recorded is the answer to a request that the access log tells of.
type recorded struct {
	http.ResponseWriter
	status  int
	bytes   int64
	outcome string // of the router's own answer
	call    *call  // of one for engines
	tenant  string // of one that is nobody else's
}

// Unwrap is for http.ResponseController.
func (w *recorded) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *recorded) WriteHeader(status int) {
	if w.status == 0 && status >= 200 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *recorded) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(b)
	w.bytes += int64(n)
	return n, err
}

// recordCall has the access log tell of an engine's request, recordCaller of whom
// another one is.
func recordCall(w http.ResponseWriter, q *call) {
	if rec, ok := w.(*recorded); ok {
		rec.call = q
	}
}

func recordCaller(w http.ResponseWriter, r *http.Request) {
	if rec, ok := w.(*recorded); ok {
		c, _ := secure.CallerOf(r.Context())
		rec.tenant = c.Account
	}
}

// record answers a request and tells the access log of it.
func (p *Proxy) record(w http.ResponseWriter, r *http.Request) {
	begun := time.Now()
	rec := &recorded{ResponseWriter: w}
	path := r.URL.Path
	defer func() { // also when the connection is aborted
		e := accesslog.Entry{
			Time: begun, Method: r.Method, Path: path, Tenant: rec.tenant, Outcome: rec.outcome, Status: rec.status, Bytes: rec.bytes, Total: time.Since(begun),
		}
		if r.Method == http.MethodHead {
			e.Bytes = 0 // what was written as its body is not sent
		}
		if id := w.Header()[headerRequest]; len(id) > 0 {
			e.RequestID = id[0]
		}
		if host, _, err := net.SplitHostPort(r.RemoteAddr); err == nil {
			e.Client = host
		}
		if q := rec.call; q != nil {
			t := &q.tally
			e.Tenant, e.Model, e.Outcome, e.BytesIn = cmp.Or(q.payer.name, rec.tenant), q.model, cmp.Or(t.outcome, rec.outcome), q.size
			e.TraceID = q.span.TraceID()
			e.Queue, e.FirstByte, e.Retries = t.queue, t.first, max(t.attempts-1, 0)
			e.Prompt, e.Cached, e.Output = t.prompt, t.cached, t.output
			if t.attempts > 0 {
				e.Worker, e.Prefill = &t.at.Worker, t.prefill
				if !t.rankless {
					e.DPRank = &t.at.DPRank
				}
			}
		}
		p.cfg.AccessLog.Add(&e)
	}()
	p.answerTo(rec, r)
}
