// Package picker is the router as a gateway's endpoint picker: the protocol of the Gateway API
// Inference Extension (proposal 004, v1.0), which is Envoy's external processing by gRPC with
// names for endpoints.
//
// Each stream is one request. What it says is made an http.Request, which a proxy.Proxy answers
// as any other; where that would send it to an engine, the gateway is told to. So tenants,
// tokens, bookings, accounts, metrics and logs are the same, and this package knows none of them.
//
// Invariants:
//   - What is sent when is for the machine (machine.go) to say, which is pure: the header answer
//     comes before any part of the body, and only it changes headers.
//   - The engine's answer is not held back: a message of it is let go on before anybody here
//     reads it. At most one message of each direction is in memory beside the request's body,
//     which is bounded as all requests' are (package spool).
//   - However a stream ends, so does its request's context, at once unless the engine's answer was whole,
//     and Process returns after its handler.
//   - A stream whose head does not come ends with the time that a request has; one that was
//     answered in place of an engine ends at once.
//   - Headers by which engines behind a sidecar are told whom to ask are the router's to set: a
//     client's are removed.
//
// Ownership: a stream's machine and the order of what is sent are under its mutex; its messages
// are read by a goroutine that ends with it; the request is its handler's, which Process runs.
package picker
