// Package upstream sends requests to engines over HTTP/1.1 connections that are
// kept open.
//
// It is an http.RoundTripper for a proxy that has the whole body of a request in
// memory: the caller's goroutine writes the request and reads the answer itself,
// which spares the two goroutines and four hand-overs of http.Transport. What it
// does not do itself (https, long bodies, bodies of other types) it leaves to one.
//
// Invariants:
//   - A connection is used again only after an answer that was read to its end,
//     and only if nothing came on it since.
//   - A request is sent once. Whether to repeat it is for the caller to know.
//   - The end of a request's context ends the wait for its answer, and the
//     answer's body.
//
// Ownership: a Client owns its idle connections; a connection in use belongs to
// the goroutine of its request until the answer's body is closed or at its end.
package upstream
