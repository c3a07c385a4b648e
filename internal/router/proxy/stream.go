package proxy

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/route"
	"github.com/kvatlas/kvatlas/route/predict"
)

// answer passes the engine's answer on and follows the booking by it. It returns a failure where
// nothing but comments came: then another engine may go on. ctx is the attempt's.
func (p *Proxy) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, s *stream, pair *route.Pair, resp *http.Response, cancel context.CancelFunc) *failure {
	best, q := &pair.Decode, s.call
	switch {
	case !q.opened:
		p.openAnswer(w, q, pair, resp)
	case resp.StatusCode != http.StatusOK || !s.judge.events: // it cannot go on with that
		p.giveBack(w, r, q, nil)
		return nil
	}
	if q.refusedBefore && !clientsFault(resp.StatusCode) {
		p.prefillFailed(q, errRefused) // the request is good after all
	}

	if q.keeps != "" {
		s.naming, s.worker = &naming{kind: q.keeps}, best.Worker
	}
	if q.recalled && s.follow {
		s.hears = &listening{events: s.events, most: p.cfg.ResponseBytes, over: !plainAnswer(resp.Header)}
	}
	outcome := s.copy(w, resp.Body, s.flushed(resp), cancel)
	switch {
	case outcome != "ok" && r.Context().Err() != nil:
		if outcome = "client_gone"; s.ends.whole(s.last) { // it was not to wait for more
			q.m.Router.Succeeded(q.id, s.stage)
		}
	case outcome == "ok" && (s.judge.end() == fails || s.ends.broken(s.last)):
		outcome = "engine_failed" // in the middle of an answer, or with nothing else
	}
	ended := s.wait.stop()
	if f := p.goesOn(ctx, r, s, resp, outcome, ended); f != nil {
		waitForEngines(w) // as before the first one's answer
		return f
	}
	q.tally.outcome = outcome
	if s.hears != nil && outcome == "ok" {
		p.remember(q, best.Worker, s.hears)
	}
	said := s.spoken.sum.all()
	if s.list != nil {
		said = s.list.end()
	}
	if s.follow {
		q.tally.used(s, said)
	}
	p.obs.outcome(outcome).Inc()
	if outcome == "ok" && resp.StatusCode < 400 && s.judge.said != refuses {
		q.m.Router.Succeeded(q.id, s.stage)
	}
	if outcome == "ok" && s.usage && said.completion > 0 {
		q.m.Router.Output(q.id, said.completion)
	}
	if outcome == "ok" {
		p.handedOver(q, s, pair, said)
	}
	if outcome == "ok" && said.cached >= 0 && q.known && pair.Prefill == nil {
		p.compareCached(q, best, route.Whole, said)
	}
	if outcome == "engine_broke_off" || outcome == "engine_failed" {
		p.obs.engineErrors.Inc()
		if s.part.failed() {
			p.prefillFailed(q, s.part.why) // behind a comment, which is too late for another attempt
		} else {
			q.m.Router.Failed(q.id, s.stage, route.Failure{})
		}
	}
	if outcome == "engine_broke_off" {
		abort(w)
	}
	return nil
}

// openAnswer sends the answer's head.
func (p *Proxy) openAnswer(w http.ResponseWriter, q *call, pair *route.Pair, resp *http.Response) {
	h := w.Header()
	copyHeaders(h, resp.Header)
	q.own(h)
	if resp.ContentLength >= 0 && len(h["Content-Length"]) != 1 {
		h.Set("Content-Length", strconv.FormatInt(resp.ContentLength, 10))
	}
	p.nameWorkers(h, q, pair)
	q.tally.status = resp.StatusCode
	w.WriteHeader(resp.StatusCode)
}

// goesOn is for an answer that has broken off, or ended, after nothing but comments: another engine goes
// on with it, unless this one was given up, and may be at work on it still; gave says for what its wait ended.
func (p *Proxy) goesOn(ctx context.Context, r *http.Request, s *stream, resp *http.Response, outcome, gave string) *failure {
	q := s.call
	ended := outcome == "engine_failed"
	if !ended && outcome != "engine_broke_off" || ended && !p.cfg.Retry500 || !s.judge.onlyComments() || resp.ContentLength >= 0 || q.final() || ctx.Err() != nil && gave != waitOverdue {
		return nil
	}
	q.opened = true
	if s.part.failed() {
		return p.notPrefilled(r, q, s.part.why)
	}
	p.obs.engineErrors.Inc()
	return &failure{
		blame: q.m.Router.Failed(q.id, s.stage, route.Failure{}), fault: ended, retry: whyBrokeOff,
		refusal: refuse(http.StatusBadGateway, "engine_broke_off", "the engine's answer broke off"),
	}
}

// abort ends the request so that the client sees that the answer is not whole: what
// comes behind it, an end as well, is late. An HTTP/1.1 connection is closed for that,
// and an HTTP/2 stream reset.
func abort(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // both servers can
}

// tailSize is how much of an answer's end is looked at for how it ends.
const tailSize = 4 << 10

// stream is an answer on its way.
type stream struct {
	proxy  *Proxy
	call   *call
	tokens int  // of the answer that were seen
	follow bool // the booking follows the answer
	events bool // server-sent events: one for each token, about
	tail   bool // look for what it says of its tokens
	spoken spoken
	usage  bool    // which says how many tokens were generated: nobody sees them come
	ends   ending  // what tells whether it is whole
	list   *listed // nil if it is no list of answers, each with its own usage
	begun  bool
	part   *prefill

	judge   judge
	counts  events
	spoke   bool          // what came last has something but comments
	wait    *wait         // for its first token; it may go on behind comments
	waited  bool          // that is over
	overdue time.Duration // how long it may give nothing before that speaks against its worker; 0 is for ever
	idle    idleWatch
	naming  *naming    // nil if nothing is kept, or its name is known
	hears   *listening // nil unless what the answer says is kept
	worker  uint64

	stage route.Stage
	*room
	n   int   // bytes of buf that were read and not passed on
	err error // that came with them
}

// room is what a stream needs while it lasts.
type room struct {
	buf  []byte
	last []byte // the end of the answer, where that is kept
	of   *stream
}

func (p *Proxy) newStream(q *call, resp *http.Response, stage route.Stage) *stream {
	ok := resp.StatusCode == http.StatusOK
	room := p.buffers.Get().(*room) //nolint:forcetypeassert // the pool holds nothing else
	room.last = room.last[:0]
	if room.of == nil {
		room.of = new(stream)
	}
	*room.of = stream{
		proxy: p, call: q, stage: stage, follow: ok, usage: ok && !q.stream, tail: ok && (q.known && stage == route.Whole || !q.stream || q.payer.levels != nil || p.cfg.AccessLog != nil),
		events: strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream"),
		judge:  newJudge(q, resp),
		room:   room,
		spoken: spoken{sum: noCounts()},
	}
	room.of.counts.answer = q.api.splits // the routes of which it is known what an event carries
	if ok {
		room.of.ends = room.of.judge.ending(q.api.read)
	}
	return room.of
}

// free gives the room back, and itself with it, unless a timer may still look at it.
func (s *stream) free() {
	room, p := s.room, s.proxy
	if s.idle.timer != nil {
		room.of = nil
	} else {
		*s = stream{}
	}
	p.buffers.Put(room)
}

// first reads the beginning of the body, until it says something, or there is something
// for the client to see at once. The error is for an answer that breaks off before a byte
// of it: another worker may do better.
func (s *stream) first(body io.Reader) error {
	for s.err == nil && (s.n == 0 || s.judge.on && s.judge.said == unsaid && !s.judge.ping && s.n < len(s.buf)) {
		var n int
		n, s.err = body.Read(s.buf[s.n:])
		s.judge.see(s.buf[s.n : s.n+n])
		s.count(s.buf[s.n : s.n+n])
		s.n += n
	}
	switch {
	case s.err == io.EOF: //nolint:errorlint // readers return it bare
		s.judge.end()
	case s.n == 0:
		return s.err
	}
	return nil
}

// cutBy ends the wait for the beginning, unless only comments have come, and returns why the request was
// cancelled just as it came; "" if it was not, or if all of the answer is there.
func (s *stream) cutBy() string {
	if s.err == nil && s.follow && s.judge.onlyComments() {
		return ""
	}
	if ended := s.wait.stop(); s.err == nil {
		return ended
	}
	return ""
}

// The stream of an engine that may break off behind its first token is kept back until it has
// probeEvents, and that of one that was left out for probeHold: what fails until then fails for no client.
const (
	probeEvents = 2 // behind the first: some begin with one without a token
	probeHold   = 250 * time.Millisecond
)

// whole reads on before anything of an answer that does not stream goes to the client: to its
// end, or as much as there is room for. The error is for one that breaks off until then, which
// can still be told by a status. That a stalled one holds its head back is the price; without its
// end it is of no use to its client. A probe's stream is read on for a moment; it is late if it gave
// nothing for so long that it was given up. That may be the request's way, as where a tool's call comes in
// one piece: so no request is given up twice for it, nor where no other worker may go on.
func (s *stream) whole(resp *http.Response, cancel context.CancelFunc, best *route.Answer) (late bool, err error) {
	streams := s.flushed(resp)
	probe := (best.Probe || best.Unproven) && streams && s.judge.said == good && !s.call.final() && s.call.left > 0 && !s.call.stalled
	var up *time.Timer
	if probe && s.overdue > 0 {
		up = time.AfterFunc(s.overdue, cancel)
	}
	for begun := time.Now(); s.err == nil && s.n < len(s.buf) && (!streams || probe && s.held(best, begun)); {
		var n int
		n, s.err = s.next(resp.Body, s.buf[s.n:], cancel)
		s.judge.see(s.buf[s.n : s.n+n])
		s.n += n
		if up != nil && s.err == nil && s.spoke {
			if late = !up.Stop(); late {
				s.err = context.Canceled
			}
			up.Reset(s.overdue)
		}
	}
	late = up != nil && !up.Stop() || late
	switch {
	case s.err == io.EOF: //nolint:errorlint // readers return it bare
		return false, nil
	case late:
		s.call.stalled = true
		s.err = context.Canceled
	case s.err == nil || streams && !probe:
		return false, nil
	}
	s.idle.stop()
	return late, s.err
}

// held reports whether a probe's stream has yet to go on.
func (s *stream) held(best *route.Answer, begun time.Time) bool {
	seen := s.buf[:s.n]
	few := s.judge.events && bytes.Count(seen, []byte("\ndata:")) < probeEvents && !bytes.Contains(seen, []byte("data: [DONE]"))
	return few || best.Probe && time.Since(begun) < probeHold
}

// cut reports whether all of the answer is there, and it is not whole.
func (s *stream) cut() bool {
	if s.err != io.EOF { //nolint:errorlint // readers return it bare
		return false
	}
	s.ends.see(s.buf[:s.n])
	return s.ends.broken(s.buf[:s.n])
}

// flushed reports whether the client is to see each part of the answer as it comes.
func (s *stream) flushed(resp *http.Response) bool { return resp.ContentLength < 0 || s.events }

// copy passes the body on until its end and returns how it went.
func (s *stream) copy(w http.ResponseWriter, body io.Reader, flush bool, cancel context.CancelFunc) string {
	p, control := s.proxy, http.NewResponseController(w)
	defer s.idle.stop()
	var deadline time.Time // of writing, as it was set
	if s.call.http2 {
		defer p.giveTime(w) // for what the server still holds of it
	}
	for n, err, seen := s.n, s.err, true; ; n, err = s.next(body, s.buf, cancel) {
		if n > 0 {
			chunk := s.buf[:n]
			if !seen { // by first
				s.judge.see(chunk)
			}
			s.see(chunk)
			seen = false
			// Each write has nearly all of its time: to set it anew costs as much as
			// passing on a token.
			if now := time.Now(); deadline.Sub(now) < p.cfg.WriteTimeout-p.cfg.WriteTimeout/16 {
				deadline = now.Add(p.cfg.WriteTimeout)
				_ = control.SetWriteDeadline(deadline) // both servers can
			}
			if _, werr := w.Write(chunk); werr != nil {
				return "client_gone"
			}
			if flush && err != io.EOF { //nolint:errorlint // readers return it bare. The end goes with it
				if werr := control.Flush(); werr != nil {
					return "client_gone"
				}
			}
			if s.call.http2 {
				deadline = time.Time{}
				_ = control.SetWriteDeadline(deadline)
			}
		}
		switch {
		case err == io.EOF: //nolint:errorlint // readers return it bare
			if n == 0 { // the end came long after the last part, perhaps
				p.giveTime(w)
			}
			return "ok"
		case err != nil:
			return "engine_broke_off"
		}
	}
}

// nameWorkers says in an answer's headers who gave it.
func (p *Proxy) nameWorkers(h http.Header, q *call, pair *route.Pair) {
	if !p.cfg.WorkerHeader {
		return
	}
	h.Set(headerWorker, strconv.FormatUint(pair.Decode.Worker, 10))
	h.Set(headerRank, strconv.FormatUint(uint64(pair.Decode.DPRank), 10))
	if pair.Prefill != nil {
		h.Set(headerPrefill, strconv.FormatUint(pair.Prefill.Worker, 10))
	}
	if q.trusted {
		h.Set(headerReceipt, receipt(pair))
	}
}

// next reads on. An engine that gives nothing for too long is given up.
func (s *stream) next(body io.Reader, into []byte, cancel context.CancelFunc) (int, error) {
	s.idle.begin(s, cancel)
	n, err := body.Read(into)
	s.idle.pause()
	switch s.count(into[:n]); {
	case s.spoke || !s.waited && s.judge.said == unsaid: // that wait bounds it
		s.idle.came()
	default:
		s.idle.waits()
	}
	return n, err
}

// count notes what came.
func (s *stream) count(chunk []byte) {
	s.spoke = len(chunk) > 0
	if s.judge.events {
		s.spoke = s.counts.see(chunk)
	}
}

// see follows the booking by a chunk.
func (s *stream) see(chunk []byte) {
	if !s.follow {
		return
	}
	router := s.call.m.Router
	if s.naming != nil && s.naming.see(s.proxy, s.call, s.worker, chunk) {
		s.naming = nil
	}
	if s.hears != nil {
		s.hears.see(chunk)
	}
	s.ends.see(chunk)
	if !s.begun && s.judge.on && s.judge.said == unsaid && s.events {
		if !s.judge.onlyComments() {
			s.wait.stop() // no other may go on
			s.waited = true
		}
	} else if !s.begun {
		s.begun, s.waited = true, true
		s.wait.stop()
		s.part.begin() // it may have been a comment that began it
		router.MarkPrefillComplete(s.call.id)
		s.call.tally.first = time.Since(s.call.arrival)
		s.proxy.obs.firstByte.Update(s.call.tally.first.Seconds())
		s.proxy.queue.wake(s.call.m)
		if text := bytes.TrimLeft(chunk, " \t\r\n"); s.tail && !s.events && len(text) > 0 && text[0] == '[' {
			s.list = &listed{sum: noCounts()}
		}
	}
	if n := s.counts.take(); n > 0 {
		s.tokens += n
		router.Output(s.call.id, n)
	}
	switch {
	case s.list != nil:
		s.list.see(chunk)
	case s.tail && s.events:
		s.spoken.see(chunk)
	case s.tail:
		s.spoken.seeWhole(chunk)
	}
	if s.ends.choices {
		s.last = append(s.last, chunk...)
		if over := len(s.last) - tailSize; over > tailSize {
			s.last = append(s.last[:0], s.last[over:]...)
		}
	}
}

// compareCached compares what the engine found cached with what was predicted.
func (p *Proxy) compareCached(q *call, best *route.Answer, stage route.Stage, said usage) {
	if best.Unknown || said.prompt < 0 && q.prompt.Local != nil { // then its tokens were estimated from its bytes
		return
	}
	a, ok := q.m.Router.Reported(q.id, stage, q.prompt, route.Usage{Prompt: max(said.prompt, 0), Cached: said.cached})
	if !ok {
		return
	}
	q.traceFound(&a)
	switch q.m.Check.Observe(best.RankID, a.Selected, a.Actual) {
	case predict.TurnedWrong:
		p.cfg.Log.Warn("the worker does not find cached what its events say: look for another hash seed, block size or salt, or lost events",
			slog.Uint64("worker", best.Worker), slog.Uint64("dp_rank", uint64(best.DPRank)), slog.String("model", q.m.Space.Model))
	case predict.TurnedRight:
		p.cfg.Log.Info("the worker's cache is as predicted again",
			slog.Uint64("worker", best.Worker), slog.Uint64("dp_rank", uint64(best.DPRank)), slog.String("model", q.m.Space.Model))
	case predict.Same:
	}
}
