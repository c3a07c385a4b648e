// Package proxy is the OpenAI-compatible face of a fleet: it chooses a worker
// for each request and passes the request on and the answer back, chunk by
// chunk.
//
// Invariants:
//   - A booking ends when its request does: at the end of the answer, on an
//     error, or when the client is gone.
//   - Bytes of an engine's answer are passed on as they come, unchanged. An
//     answer that breaks off is not ended as if it were whole.
//   - A request goes to another worker only before the first byte of an answer
//     was passed on, but for a stream's comments, at most Config.Retries times, and no more often than
//     Config.RetryShare of all requests.
//   - Headers that tell the router what to do never reach an engine.
//
// Engines are asked by the goroutine of the request: a stream's chunk costs one read and
// one write, and no hand-over. What asking takes of memory (upstream.Exchange) is kept by the
// client's connection, and used again where nobody else can have any of it: after one
// engine's answer that was read to its end, and before that for the prompt's tokens. All else gets
// a new one.
//
// Where there are prefill workers two are booked as one step, and the answer begins with
// the prefill worker's part; if that fails before, the request is chosen for anew, for a
// decode worker alone.
//
// Ownership: a Proxy owns its caches, its queue and its connections to engines;
// each request's goroutine owns its booking.
package proxy
