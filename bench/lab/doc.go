// Package lab is a fleet in virtual time: engines of package mock, the index
// fed by their events, routers of package route, and requests that arrive as a
// source says. It shows what a routing policy does to first-token times,
// throughput and reuse without an accelerator.
//
// The engines are models. The index (package shard) and the routers (package
// route) are the product's own.
//
// Invariants:
//   - The same Config and the same source give the same Result.
//   - Every request ends; Result says how.
//   - Nothing sleeps or reads a clock: the routers' clock is the virtual one.
//   - Memory is that of the requests under way, of 8 bytes for each figure of
//     a request, and of the messages that are on their way; in a closed loop also
//     that of all requests to come, and with +sessions that of where each session went last.
//
// Ownership: a run, with its index, belongs to the goroutine that calls [Run].
package lab
