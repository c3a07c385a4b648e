// Package upstream sends requests to engines over HTTP/1.1 connections that are
// kept open.
//
// It is an http.RoundTripper for a proxy that has the whole body of a request in
// memory: the caller's goroutine writes the request and reads the answer itself,
// which spares the two goroutines and four hand-overs of http.Transport. What it
// does not do itself (https, long bodies, bodies of other types) it leaves to one, and
// answers that have anything odd to http.ReadResponse.
//
// A caller that asks one request after another may do so in one Exchange, which is their context:
// what a request and its answer's head take of memory is then used again.
//
// fasthttp's HostClient, whose caller reads and writes too, was tried behind the
// same tests (1.74, with connections that learn from SetWriteDeadline, its first call,
// whose request they are for). Whole answers pass as fast, streams a quarter slower:
// it gives out each chunk by itself (BENCHMARKS.md, What the router adds). And:
//   - A chunked answer that breaks off between two chunks ends like a whole one, with
//     io.EOF: the client would not learn that its stream is cut.
//   - What follows an answer in the same read is thrown away with the reader, and the
//     connection used again, out of step with the engine.
//   - Nothing but a deadline ends the wait for an answer's head, which of an answer
//     in one piece comes when all of it is computed: an engine would go on for a
//     client that is gone. The same deadline is that of the body.
//   - Idle connections have no bound but their age: 200 where 100 may be kept.
//   - Answers without a Content-Type get one.
//   - An engine that refuses a body is not heard before all of it is written.
//
// Invariants:
//   - A connection is used again only after an answer that was read to its end,
//     and only if nothing came on it since.
//   - A request is sent once, and once more on a new connection if it went on one that
//     had been idle and ended before a byte of the answer, or with a 408: the request
//     and the engine's word that none had come in time have crossed. Whether to repeat
//     it otherwise is for the caller to know.
//   - The end of a request's context ends the wait for its answer, and the
//     answer's body.
//
// Ownership: a Client owns its idle connections; a connection in use belongs to
// the goroutine of its request until the answer's body is closed or at its end.
package upstream
