// Package downstream serves clients' HTTP/1.1 connections to an http.Handler.
//
// One goroutine has a connection: it reads a request, calls the handler and writes what
// that answers. net/http's server has another read beside each handler, to see the client
// go, which costs a wake-up, two hand-overs and several system calls a request. Here one
// goroutine of the Server looks at the sockets of the requests that last, a few times a
// second. What speaks HTTP/2 is given to an http.Server, which remains the judge of it.
//
// fasthttp, which kvindexer has, gives out an answer after its handler has returned, by
// reading it: a stream would pass through one more goroutine, or the handlers would be
// turned inside out.
//
// Invariants:
//   - A request is read in one way only. What servers disagree about (two lengths, a
//     length that is no number, an encoding but chunked, white space about names, folded
//     lines, bytes that lines may not have) is refused, and its connection ended.
//   - The context of a request ends when its client is gone, soon after that was to be
//     seen, or when its connection ends. It lasts beyond the handler, which can look itself (Gone).
//   - What a handler has read of a request, its strings too, stays as it is. The Request
//     itself and the maps of headers are the connection's, for its next request: nobody
//     may look at them once the handler has returned.
//   - An answer that is shorter than it says ends its connection, and one that is cut and whose
//     end would be its connection's (HTTP/1.0) resets it.
//
// Ownership: a Server owns its connections and the goroutine that looks after clients;
// all of a connection but its deadline for reading is its own goroutine's.
package downstream
