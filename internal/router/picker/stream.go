package picker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kvatlas/kvatlas/internal/extproc"
	"github.com/kvatlas/kvatlas/internal/router/proxy"
)

// partSize is how much of a body is sent back in one message: some gateways take 64 KiB, with all
// that is about it.
const partSize = 62000

var (
	errGone = errors.New("the gateway has ended the request")
	errLate = fmt.Errorf("the gateway's request: %w", os.ErrDeadlineExceeded)
)

// stream is one request of a gateway. It is an http.ResponseWriter, and a proxy.Gateway.
type stream struct {
	server *Server
	grpc   grpc.ServerStream
	ctx    context.Context // of the request
	cancel context.CancelFunc
	late   *time.Timer

	came    []extproc.Header // the request's head
	body    *io.PipeWriter   // what of it comes
	bodyIn  *io.PipeReader
	heads   chan head      // has room for the answer's head
	chunks  *io.PipeWriter // what of the answer comes
	answer  *io.PipeReader
	begun   chan func()   // has room for the handler, which process runs
	overdue chan struct{} // closed where the request has not come in time

	mu      sync.Mutex // of what follows, and of the order of what is sent
	machine machine
	own     []extproc.Header // the router's headers of the answer
	sendErr error
	whole   bool // the answer's end has come
	// immediate is set once the router's own answer was sent.
	immediate bool

	header http.Header // of an answer of the router's: the handler's, as all below
	status int
	text   []byte
	picked bool // the gateway was told where it goes
	told   bool // and the answer's head came
}

// head is the head of an engine's answer.
type head struct {
	*http.Response
	served string
}

// process is ExternalProcessor/Process. It has the handler's goroutine; who reads the messages
// ends with the stream, which ends with process at the latest.
func (s *Server) process(g grpc.ServerStream) error {
	x := &stream{server: s, grpc: g, heads: make(chan head, 1), header: make(http.Header), begun: make(chan func(), 1), overdue: make(chan struct{})}
	x.machine.request, x.machine.response = extproc.ModeFullDuplex, extproc.ModeFullDuplex
	x.ctx, x.cancel = context.WithCancel(context.WithoutCancel(g.Context()))
	x.bodyIn, x.body = io.Pipe()
	x.answer, x.chunks = io.Pipe()
	x.late = time.AfterFunc(s.cfg.ReadTimeout, func() { _ = x.body.CloseWithError(errLate); close(x.overdue) })
	defer context.AfterFunc(g.Context(), x.gone)() // which may be at once
	defer x.end()
	s.meters.streams.Add(1)
	defer s.meters.streams.Add(-1)
	ended := make(chan error, 1)
	go func() {
		defer x.gone()
		ended <- x.receive()
	}()
	select {
	case serve := <-x.begun:
		if serve(); x.refused() {
			return nil // whatever else comes of the request
		}
		return <-ended
	case err := <-ended:
		return err
	case <-x.overdue:
		x.silence()
		return s.fault("late", codes.DeadlineExceeded, "no head has come in the time that a request has")
	}
}

// refused reports whether the gateway was given an answer in place of an engine's.
func (x *stream) refused() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.immediate
}

// silence has nothing sent from now on.
func (x *stream) silence() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.machine.step(inCut)
	x.sendErr = errLate
}

// receive takes the messages until there are no more.
func (x *stream) receive() error {
	m := new(extproc.Request) // what is kept of one is copied
	for {
		switch err := x.grpc.RecvMsg(m); {
		case errors.Is(err, io.EOF):
			return x.take(inClosed, m)
		case err != nil:
			_ = x.take(inCut, m)
			if why := status.Code(err); why == codes.Internal || why == codes.ResourceExhausted { // it is no cut, but a message that is none
				return x.server.fault("message", why, err.Error())
			}
			return err
		}
		err := x.take(inputOf(m), m)
		m.Release()
		if err != nil {
			return err
		}
	}
}

// gone ends the request where nothing more is heard of it, unless its answer was whole: what is made
// of that is for the handler to say, who may not have read it all yet.
func (x *stream) gone() {
	x.mu.Lock()
	whole := x.whole
	x.mu.Unlock()
	if !whole {
		x.end()
	}
}

// end ends what has not ended.
func (x *stream) end() {
	x.late.Stop()
	x.cancel()
	_ = x.body.CloseWithError(errGone)
	_ = x.chunks.CloseWithError(errGone)
}

func inputOf(m *extproc.Request) input {
	pick := func(end, more input) input {
		if m.End {
			return end
		}
		return more
	}
	switch m.Kind {
	case extproc.RequestHeaders:
		return pick(inHeadAlone, inHead)
	case extproc.RequestBody:
		return pick(inBodyEnd, inBody)
	case extproc.RequestTrailers:
		return inTrailers
	case extproc.ResponseHeaders:
		return pick(inAnswerOnly, inAnswer)
	case extproc.ResponseBody:
		return pick(inChunkEnd, inChunk)
	case extproc.ResponseTrailers:
		return inAnswerTrailers
	case extproc.None, extproc.Immediate:
	}
	return inNothing
}

// take does what a message asks for. What is sent is sent first; then the handler, which may be
// slow, is given its part.
func (x *stream) take(in input, m *extproc.Request) error {
	x.mu.Lock()
	if m.HasModes {
		x.machine.request, x.machine.response = m.RequestMode, m.ResponseMode
	}
	if m.Observes {
		x.mu.Unlock()
		return x.server.fault("observability_mode", codes.FailedPrecondition, "in observability_mode nothing can be picked")
	}
	was := x.machine.state
	acts := x.machine.step(in)
	for _, a := range acts {
		switch a {
		case tellEnd:
			x.whole = true
		case goOn:
			x.sendLocked(x.goOnLocked(in, m))
		case echoChunk:
			x.sendLocked(&extproc.Response{Kind: extproc.ResponseBody, Streamed: true, Body: m.Body, End: m.End})
		}
	}
	err := x.sendErr
	x.mu.Unlock()
	for _, a := range acts {
		switch a {
		case serve:
			if !x.serve(m) {
				return x.server.fault("head", codes.InvalidArgument, "the head has no method or no path")
			}
		case feed:
			write(x.body, m.Body)
		case feedEnd:
			x.late.Stop()
			_ = x.body.Close() // never fails
		case tell:
			x.heads <- head{response(m), m.Served} //nolint:bodyclose // once; who reads it gives it the body, which is the stream's
		case tellChunk:
			write(x.chunks, m.Body)
		case tellEnd:
			_ = x.chunks.Close() // never fails
		case cancel:
			x.end()
		case fault:
			if was == opened && in == inHead {
				return x.server.fault("body_mode", codes.FailedPrecondition, "the request's body must come: request_body_mode FULL_DUPLEX_STREAMED or BUFFERED")
			}
			return x.server.fault("order", codes.InvalidArgument, "no message is expected here: "+in.String()+" while "+was.String())
		}
	}
	return err
}

// write gives the handler a part, unless it is done with it. One without a byte would be a read of
// nothing, which readers take so many of only.
func write(to *io.PipeWriter, part []byte) {
	if len(part) > 0 {
		_, _ = to.Write(part)
	}
}

// goOnLocked answers a message without a change, but for the router's headers of an answer.
func (x *stream) goOnLocked(in input, m *extproc.Request) *extproc.Response {
	r := &extproc.Response{Kind: m.Kind}
	if in == inAnswer || in == inAnswerOnly {
		r.Set = x.own
	}
	return r
}

// sendLocked sends a message, unless one before could not be.
func (x *stream) sendLocked(r *extproc.Response) {
	if x.sendErr == nil {
		x.sendErr = x.grpc.SendMsg(r)
	}
}

// serve starts the handler.
func (x *stream) serve(m *extproc.Request) bool {
	r := request(m)
	if r == nil {
		return false
	}
	x.came = m.Headers
	y := &proxy.Passage{Gateway: x, ID: x.server.name()}
	if m.Subsets {
		y.Subset = append([]string{}, m.Subset...)
	}
	nowhere := m.Subsets && len(m.Subset) == 0
	if name := r.Header.Get(headerObjective); name != "" {
		y.Priority = x.server.priority(name)
	}
	r.Body = http.NoBody
	if !m.End {
		r.Body = x.bodyIn
	}
	r = r.WithContext(proxy.WithPassage(x.ctx, y))
	x.begun <- func() {
		defer x.answer.CloseWithError(errGone) //nolint:errcheck // never fails
		defer x.bodyIn.CloseWithError(errGone) //nolint:errcheck // never fails
		defer x.finish()
		if nowhere {
			http.Error(x, "the gateway names no endpoint", http.StatusServiceUnavailable)
			x.server.meters.faults("empty_subset").Inc()
			return
		}
		x.server.cfg.Handler.ServeHTTP(x, r)
	}
	return true
}

// finish sends the router's own answer, if it has given one.
func (x *stream) finish() {
	if why := recover(); why != nil { //nolint:revive // it is deferred
		x.server.cfg.Log.Error("a request made its handler panic", slog.Any("panic", why), slog.String("stack", string(debug.Stack())))
		x.status, x.text = http.StatusInternalServerError, nil
	}
	if x.status == 0 && x.ctx.Err() == nil && !x.picked {
		x.status = http.StatusOK
	}
	if x.status == 0 {
		return
	}
	if x.status == x.server.cfg.BusyStatus {
		x.status = http.StatusTooManyRequests
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if slices.Contains(x.machine.step(inRefused), refuse) {
		x.immediate = true
		x.sendLocked(&extproc.Response{Kind: extproc.Immediate, Status: x.status, Set: headersOf(x.header), Body: x.text, Details: "kvrouter"})
	}
}

// Header implements http.ResponseWriter.
func (x *stream) Header() http.Header { return x.header }

// WriteHeader implements http.ResponseWriter.
func (x *stream) WriteHeader(status int) {
	if x.status == 0 && status >= 200 {
		x.status = status
	}
}

// Write implements http.ResponseWriter. What the gateway has already is not kept.
func (x *stream) Write(b []byte) (int, error) {
	x.WriteHeader(http.StatusOK)
	select {
	case <-x.ctx.Done():
		return 0, errGone
	default:
	}
	if !x.told {
		x.text = append(x.text, b...)
	}
	return len(b), nil
}

// Flush is for http.ResponseController.
func (x *stream) Flush() {}

// SetWriteDeadline is for http.ResponseController: the gateway has deadlines of its own.
func (x *stream) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline is for http.ResponseController: one that is past ends the reading of the body.
func (x *stream) SetReadDeadline(t time.Time) error {
	if !t.IsZero() && time.Until(t) <= 0 {
		_ = x.bodyIn.CloseWithError(errLate) // never fails
	}
	return nil
}

// HandOn implements proxy.Gateway.
func (x *stream) HandOn(req *http.Request, to proxy.Picked) (*http.Response, string, error) {
	x.picked = true
	if err := x.send(req, &to); err != nil {
		return nil, "", err
	}
	select {
	case h := <-x.heads:
		x.told = true
		h.Request, h.Body = req, x.answer
		context.AfterFunc(req.Context(), func() { _ = x.answer.CloseWithError(context.Cause(req.Context())) }) // never fails
		return h.Response, h.served, nil
	case <-req.Context().Done():
		return nil, "", req.Context().Err()
	}
}

// send tells the gateway where the request goes, and gives it the body.
func (x *stream) send(req *http.Request, to *proxy.Picked) error {
	length := int(max(req.ContentLength, 0))
	first := &extproc.Response{Kind: extproc.RequestHeaders, Reroute: true, Endpoint: strings.Join(to.Endpoints, ","), Scores: scoresOf(to.Scores)}
	first.Set, first.Remove = changes(x.came, req, to, length)
	own := headersOf(to.Header)
	x.mu.Lock()
	defer x.mu.Unlock()
	x.own = own
	for _, a := range x.machine.step(inPicked) {
		switch a {
		case direct:
			x.sendLocked(first)
		case directWhole:
			first.Kind, first.Replace, first.Body = extproc.RequestBody, true, make([]byte, length)
			if _, err := io.ReadFull(bodyOf(req), first.Body); err != nil {
				return err
			}
			x.sendLocked(first)
		case echo:
			if err := x.echoLocked(req, length, x.machine.trailed); err != nil {
				return err
			}
		case endTrailers:
			x.sendLocked(&extproc.Response{Kind: extproc.RequestTrailers})
		}
	}
	if x.machine.state == passed {
		return errGone
	}
	return x.sendErr
}

func bodyOf(req *http.Request) io.Reader {
	if req.Body == nil {
		return http.NoBody
	}
	return req.Body
}

// echoLocked sends the body. Between its parts others may send, and end the exchange.
func (x *stream) echoLocked(req *http.Request, length int, trailed bool) error {
	room := x.server.parts.Get().(*[]byte) //nolint:forcetypeassert // the pool holds nothing else
	defer x.server.parts.Put(room)
	for left := length; ; {
		part := (*room)[:min(left, partSize)]
		if _, err := io.ReadFull(bodyOf(req), part); err != nil {
			return err
		}
		left -= len(part)
		x.sendLocked(&extproc.Response{Kind: extproc.RequestBody, Streamed: true, Body: part, End: left == 0 && !trailed})
		if left == 0 {
			return nil
		}
		x.mu.Unlock()
		x.mu.Lock()
		if x.sendErr != nil || x.machine.state == passed {
			return errGone
		}
	}
}
