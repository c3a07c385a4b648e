package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"

	"github.com/kvatlas/kvatlas/internal/extproc"
)

// Client asks one picker.
type Client struct{ conn *grpc.ClientConn }

// AnyCertificate speaks TLS as gateways do, which take any certificate.
func AnyCertificate() *tls.Config {
	return &tls.Config{InsecureSkipVerify: true} //nolint:gosec // measured, not trusted
}

// Dial returns a Client of the picker at address; nil speaks no TLS.
func Dial(address string, speak *tls.Config) (*Client, error) {
	with := insecure.NewCredentials()
	if speak != nil {
		with = credentials.NewTLS(speak)
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(with),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(extproc.Codec{}), grpc.MaxCallRecvMsgSize(64<<20)),
		grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(4<<20),
		experimental.WithBufferPool(extproc.Pool), grpc.WithReadBufferSize(128<<10), grpc.WithWriteBufferSize(128<<10))
	if err != nil {
		return nil, fmt.Errorf("asking %s: %w", address, err)
	}
	return &Client{conn}, nil
}

// Close closes the connection.
func (c *Client) Close() error { return c.conn.Close() }

// Health asks for a service's health.
func (c *Client) Health(ctx context.Context, service string) (extproc.Serving, error) {
	var a extproc.HealthResponse
	err := c.conn.Invoke(ctx, "/grpc.health.v1.Health/Check", &extproc.HealthRequest{Service: service}, &a)
	return a.Status, err
}

// Request is a request of a client, and what its engine answers.
type Request struct {
	Method, Path string // POST without
	Headers      []extproc.Header
	Body         []byte
	Sized        bool // Content-Length says how long it is, as clients' do
	Part         int  // bytes of each message; 0 is 64 KiB
	Trailers     bool // end the body
	Buffered     bool // else FULL_DUPLEX_STREAMED
	Silent       bool // say nothing of modes, as old Envoys do
	Subset       []string
	Subsets      bool
	Source       string

	Status int    // of the answer; 0 is 200
	Served string // who gives it
	// Picked, if set, is called when the request may go on; it may set Served. Heard is, when the
	// head of the answer was.
	Picked  func(*Result)
	Heard   func()
	Answer  [][]byte
	NoBody  bool // of the answer comes: response_body_mode NONE
	Lenient bool // with what other pickers do beside the protocol; the body is not kept

	// Cut, if not 0, is after how many messages the exchange ends: with a reset, or, if Close
	// is set, as if there were no more to say.
	Cut   int
	Close bool
	Stuck bool // the body's last part never comes
}

// Result is what the picker made of it.
type Result struct {
	Endpoint  string // of the header
	Told      string // of dynamic metadata
	Scores    []extproc.Score
	Set       map[string]string
	Remove    []string
	Body      []byte            // as the engine gets it
	Own       map[string]string // headers set in the answer
	Status    int               // of the picker's own answer; 0 is none
	Text      []byte            // its body
	Messages  int               // that were sent
	Choice    time.Duration     // until the whole request may go on
	Answering time.Duration     // how long the parts of the answer were waited for
}

// Errors of Do.
var (
	// ErrCut: the exchange ended where Request.Cut says.
	ErrCut = errors.New("cut")
	// ErrProtocol: the picker does what the protocol forbids.
	ErrProtocol = errors.New("the picker breaks the protocol")
)

// exchange is one on its way.
type exchange struct {
	*Request
	stream grpc.ClientStream
	cancel context.CancelFunc
	result Result
	sent   int // parts of the body
}

// Do asks for one request, and plays its answer.
func (c *Client) Do(ctx context.Context, r *Request) (*Result, error) {
	within, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.conn.NewStream(within, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+extproc.Service+"/"+extproc.Process)
	if err != nil {
		return nil, err
	}
	x := &exchange{Request: r, stream: stream, cancel: cancel}
	err = x.run(ctx)
	return &x.result, err
}

func (x *exchange) run(ctx context.Context) error {
	begun := time.Now()
	if err := x.ask(); err != nil || x.result.Status != 0 {
		return err
	}
	x.result.Choice = time.Since(begun)
	if x.Picked != nil {
		x.Picked(&x.result)
		if err := ctx.Err(); err != nil {
			return err // which a stream that is cancelled does not always say at once
		}
	}
	if err := x.answer(); err != nil || x.result.Status != 0 {
		return err
	}
	if err := x.stream.CloseSend(); err != nil {
		return err
	}
	var m extproc.Response
	if err := x.stream.RecvMsg(&m); !errors.Is(err, io.EOF) && err != nil {
		return err
	}
	return nil
}

// send sends a message. io.EOF is that the picker has ended the stream.
func (x *exchange) send(m *extproc.Request) error {
	if x.Cut > 0 && x.result.Messages == x.Cut {
		if x.Close {
			_ = x.stream.CloseSend() // never fails
			for {
				var m extproc.Response
				if err := x.stream.RecvMsg(&m); err != nil {
					return ErrCut
				}
				m.Release()
			}
		}
		x.cancel()
		return ErrCut
	}
	x.result.Messages++
	return x.stream.SendMsg(m)
}

// ask sends the request and waits until all of it may go on.
func (x *exchange) ask() error {
	mode, alone := extproc.ModeFullDuplex, len(x.Body) == 0 && !x.Trailers
	if x.Buffered {
		mode = extproc.ModeBuffered
	}
	answer := mode
	if x.NoBody {
		answer = extproc.ModeNone
	}
	method := "POST"
	if x.Method != "" {
		method = x.Method
	}
	head := &extproc.Request{
		Kind: extproc.RequestHeaders, End: alone, Subset: x.Subset, Subsets: x.Subsets, Source: x.Source, HasModes: !x.Silent, RequestMode: mode, ResponseMode: answer,
		Headers: append([]extproc.Header{{Name: ":method", Value: method}, {Name: ":path", Value: x.Path}, {Name: ":authority", Value: "a.test"}, {Name: ":scheme", Value: "http"}}, x.Headers...),
	}
	if x.Sized {
		head.Headers = append(head.Headers, extproc.Header{Name: "content-length", Value: strconv.Itoa(len(x.Body))})
	}
	if err := x.send(head); err != nil {
		return err
	}
	if x.Buffered && !alone {
		if err := x.hear(extproc.RequestHeaders); err != nil || x.result.Status != 0 {
			return err
		}
	}
	// Envoy sends the body while it comes, and does not wait.
	failed := x.body()
	if failed != nil && !errors.Is(failed, io.EOF) {
		return failed
	}
	return x.choice(alone)
}

func (x *exchange) body() error {
	part := x.Part
	if part == 0 {
		part = 64 << 10
	}
	if x.Buffered {
		part = len(x.Body)
	}
	for rest := x.Body; len(rest) > 0; {
		n := min(part, len(rest))
		if n == len(rest) && x.Stuck {
			return nil
		}
		m := &extproc.Request{Kind: extproc.RequestBody, Body: rest[:n], End: n == len(rest) && !x.Trailers}
		if err := x.send(m); err != nil {
			return err
		}
		x.sent++
		rest = rest[n:]
	}
	if x.Trailers {
		return x.send(&extproc.Request{Kind: extproc.RequestTrailers})
	}
	return nil
}

// choice waits for the endpoint and for the body.
func (x *exchange) choice(alone bool) error {
	replies, over := 0, alone
	for x.result.Endpoint == "" || !over {
		var m extproc.Response
		if err := x.stream.RecvMsg(&m); err != nil {
			return err
		}
		x.take(&m)
		switch {
		case m.Kind == extproc.Immediate:
			return nil
		case m.Kind == extproc.RequestBody && m.Streamed && x.result.Endpoint == "" && !x.Lenient:
			return fmt.Errorf("%w: the body before the header answer", ErrProtocol)
		case m.Kind == extproc.RequestBody && m.Streamed:
			if !x.Lenient {
				x.result.Body = append(x.result.Body, m.Body...)
			}
			over = over || m.End && !x.Trailers
		case m.Kind == extproc.RequestBody:
			if !x.Lenient && !x.Buffered {
				return fmt.Errorf("%w: a part of the body is not sent back", ErrProtocol)
			}
			if m.Replace {
				x.result.Body = bytes.Clone(m.Body)
			}
			replies++
			over = over || x.Buffered || replies == x.sent
		case m.Kind == extproc.RequestTrailers && x.Trailers:
			over = true
		case m.Kind != extproc.RequestHeaders:
			return fmt.Errorf("%w: message %d in answer to the request", ErrProtocol, m.Kind)
		}
		m.Release()
	}
	return nil
}

// take notes what a message tells.
func (x *exchange) take(m *extproc.Response) {
	r := &x.result
	if m.Kind == extproc.Immediate {
		r.Status, r.Text = m.Status, bytes.Clone(m.Body)
	}
	to := &r.Set
	if m.Kind == extproc.ResponseHeaders || m.Kind == extproc.Immediate {
		to = &r.Own
	} else {
		r.Remove = append(r.Remove, m.Remove...)
	}
	for _, h := range m.Set {
		if *to == nil {
			*to = make(map[string]string)
		}
		(*to)[h.Name] = h.Value
		if h.Name == extproc.EndpointKey {
			r.Endpoint = h.Value
		}
	}
	if m.Endpoint != "" {
		r.Told, r.Scores = m.Endpoint, m.Scores
	}
}

// hear waits for the answer to a message.
func (x *exchange) hear(kind extproc.Kind) error {
	var m extproc.Response
	if err := x.stream.RecvMsg(&m); err != nil {
		return err
	}
	defer m.Release()
	x.take(&m)
	if m.Kind != kind && m.Kind != extproc.Immediate {
		return fmt.Errorf("%w: message %d in answer to %d", ErrProtocol, m.Kind, kind)
	}
	return nil
}

// answer plays the engine's answer.
func (x *exchange) answer() error {
	status := "200"
	if x.Status != 0 {
		status = strconv.Itoa(x.Status)
	}
	answer, kind := x.Answer, "application/json"
	if len(answer) > 0 && bytes.HasPrefix(answer[0], []byte("data:")) {
		kind = "text/event-stream"
	}
	if x.NoBody {
		answer = nil
	}
	head := &extproc.Request{
		Kind: extproc.ResponseHeaders, End: len(x.Answer) == 0, Served: x.Served,
		Headers: []extproc.Header{{Name: ":status", Value: status}, {Name: "content-type", Value: kind}},
	}
	if err := x.exchange(head); err != nil || x.result.Status != 0 {
		return err
	}
	if x.Heard != nil {
		x.Heard()
	}
	for i, part := range answer {
		if err := x.exchange(&extproc.Request{Kind: extproc.ResponseBody, Body: part, End: i == len(answer)-1}); err != nil || x.result.Status != 0 {
			return err
		}
	}
	return nil
}

// exchange sends a message and waits for its answer.
func (x *exchange) exchange(m *extproc.Request) error {
	begun := time.Now()
	err := x.send(m)
	if err == nil || errors.Is(err, io.EOF) {
		err = x.hear(m.Kind)
	}
	x.result.Answering += time.Since(begun)
	return err
}
