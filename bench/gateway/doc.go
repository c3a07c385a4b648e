// Package gateway asks an endpoint picker as Envoy does, by external processing, without an
// Envoy: for tests of what Envoy cannot be made to do, and for measuring any picker.
//
// Invariants:
//   - An Exchange sends what its Request says, in Envoy's order, and waits where Envoy waits.
//   - What a picker does that the protocol forbids is an error, but where Request.Lenient takes
//     it as far as the request could still be served.
//
// Ownership: a Client has one connection, which any number of exchanges share.
package gateway
