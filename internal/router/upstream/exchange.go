package upstream

import (
	"context"
	"net/http"
	"net/url"
	"sync"
)

// Exchange is what a request to an engine takes of memory, for its caller's next one: its
// context, the request, and the head of what comes back. RoundTrip watches over such a context,
// and answers in it, without allocating.
//
// It is one request's at a time, and may be used for another one once the answer was read to
// its end, and nobody looks at request or answer, or may end the context. Who has ended it, or
// does not know that, makes a new one.
type Exchange struct {
	context.Context //nolint:containedctx // it is one
	// Cancel ends it.
	Cancel context.CancelFunc

	mu   sync.Mutex
	held func() // to be called at the context's end
	let  func() bool

	blank, request *http.Request
	url            url.URL
	body           Body
	out, in        http.Header
	values         []string // of in
	response       http.Response
	answer         answer
}

// mostKept is how many headers a map has room for that is used again.
const mostKept = 64

// NewExchange returns one whose context ends with the parent's.
func NewExchange(parent context.Context) *Exchange {
	x := new(Exchange)
	x.Context, x.Cancel = context.WithCancel(parent)
	x.let = x.release
	x.blank = new(http.Request).WithContext(x)
	x.request = new(http.Request)
	context.AfterFunc(x.Context, x.end)
	return x
}

// end calls what is held. It is called on a goroutine of its own.
func (x *Exchange) end() {
	x.mu.Lock()
	held := x.held
	x.held = nil
	x.mu.Unlock()
	if held != nil {
		held()
	}
}

// hold has f called at the context's end, unless it is released before; at once if that was.
func (x *Exchange) hold(f func()) {
	x.mu.Lock()
	x.held = f
	x.mu.Unlock()
	if x.Err() != nil {
		x.end()
	}
}

// release reports whether f will not be called any more.
func (x *Exchange) release() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	held := x.held != nil
	x.held = nil
	return held
}

// Forget lets go of the last request, and of the connection that it went on, before the Exchange is kept
// for one that may be long in coming. The values of the answer's headers stay as they are until then.
func (x *Exchange) Forget() {
	*x.request, x.url, x.body = *x.blank, url.URL{}, Body{}
	x.response, x.answer = http.Response{}, answer{ended: true}
	x.out, x.in = emptied(x.out), emptied(x.in)
}

// NewRequest returns a request to an engine without headers. Where the context is an Exchange it is made
// in that, unless http.Transport sends it, which may look at it when it is over.
func NewRequest(ctx context.Context, method string, u url.URL, data Payload) *http.Request {
	length := data.Len()
	x, ok := ctx.(*Exchange)
	if !ok || !direct(u.Scheme, length) {
		own := u
		req := new(http.Request).WithContext(ctx) // first, as it makes a copy
		req.Header = make(http.Header)
		if fill(req, method, &own, length); length > 0 {
			req.Body = data.Body()
		}
		return req
	}
	x.out = emptied(x.out)
	x.url = u
	*x.request = *x.blank
	fill(x.request, method, &x.url, length)
	x.request.Header = x.out
	if length > 0 {
		data.begin(&x.body, length)
		x.request.Body = &x.body
	}
	return x.request
}

func fill(req *http.Request, method string, u *url.URL, length int) {
	req.Method, req.URL, req.Host, req.Proto, req.ProtoMajor, req.ProtoMinor = method, u, u.Host, "HTTP/1.1", 1, 1
	req.ContentLength = int64(length)
}

// emptied returns a map without headers.
func emptied(h http.Header) http.Header {
	if h == nil || len(h) > mostKept {
		return make(http.Header)
	}
	clear(h)
	return h
}

// reply returns an empty answer, with room for so many values of headers.
func (x *Exchange) reply(lines int) (resp *http.Response, values []string) {
	if x == nil {
		return &http.Response{Header: make(http.Header, lines)}, make([]string, 0, lines)
	}
	if cap(x.values) < lines || cap(x.values) > mostKept {
		x.values = make([]string, 0, lines)
	}
	x.in = emptied(x.in)
	x.response = http.Response{Header: x.in}
	return &x.response, x.values[:0]
}

// newAnswer returns what the answer's body is read by.
func (x *Exchange) newAnswer() *answer {
	if x == nil {
		return new(answer)
	}
	return &x.answer
}
