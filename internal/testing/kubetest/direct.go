package kubetest

import (
	"errors"
	"io"
	"net/http"
	"sync"
)

// errCut is what a client sees of an answer that ends in the middle, or of none.
var errCut = errors.New("the connection was cut")

// RoundTrip implements http.RoundTripper: it asks the server without a network, so that a test
// may have a clock of its own.
func (a *API) RoundTrip(r *http.Request) (*http.Response, error) {
	body, out := io.Pipe()
	w := &direct{out: out, header: http.Header{}, head: make(chan int, 1)}
	done := make(chan struct{})
	go func() { // ends with the request's context at the latest
		defer close(done)
		defer func() {
			err := io.EOF
			if why := recover(); why != nil {
				err = errCut
			}
			_ = out.CloseWithError(err) // never fails
		}()
		a.ServeHTTP(w, r)
		w.WriteHeader(http.StatusOK)
	}()
	select {
	case status := <-w.head:
		return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.header, Body: body, ContentLength: -1, Request: r}, nil
	case <-done:
		return nil, errCut
	case <-r.Context().Done():
		_ = body.Close() // never fails
		return nil, r.Context().Err()
	}
}

// direct is the answer to one request.
type direct struct {
	out    *io.PipeWriter
	header http.Header
	once   sync.Once
	head   chan int // has room for the status
}

func (d *direct) Header() http.Header { return d.header }

func (d *direct) WriteHeader(status int) { d.once.Do(func() { d.head <- status }) }

func (d *direct) Write(b []byte) (int, error) {
	d.WriteHeader(http.StatusOK)
	return d.out.Write(b)
}

// Flush is for http.ResponseController.
func (d *direct) Flush() {}
