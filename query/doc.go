// Package query answers over HTTP which workers hold which prefix.
//
//	POST /v1/find_matches   holders of a prompt's prefix, by tokens or hashes
//	GET  /v1/workers        workers and how many blocks each holds
//	GET  /livez /readyz     whether the process lives, and may be asked
//	GET  /metrics /version
//
// Invariants:
//   - A request changes nothing but counters. What is refused is answered with
//     {"error":{"field","reason","message"}}, a fitting status, and counted by
//     reason.
//   - Every byte of a body is checked: a field, type or number that is not
//     exactly as documented is refused, never guessed at.
//   - Memory per request is bounded by the limits of [Config].
//   - An answer is built without reflection, in memory that requests reuse.
//
// Ownership: a Server owns its listener's connections and its scratch memory.
// Spaces belong to whoever applies events; the Server only reads them.
package query
