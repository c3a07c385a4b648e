// Package client asks kvatlas over HTTP: kvindexer which workers hold which
// prefix, and kvrouter which worker to take, with reservations.
//
// Invariants:
//   - A call ends with its context, and never later than Config.Retries attempts
//     of Config.Timeout each with the waits between them.
//   - What changes state happens once: an attempt whose answer did not come is
//     undone, or repeated only where repeating does nothing.
//   - The binary and the JSON form of find_matches give the same [Matches].
//   - Nothing but the standard library is needed by who imports this package.
//
// Ownership: a Client owns its connections until Close and is safe for concurrent
// use. What it returns is the caller's.
package client
