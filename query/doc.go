// Package query answers over HTTP which workers hold which prefix.
//
//	POST /v1/find_matches   holders of a prompt's prefix, by tokens or hashes
//	POST /v1/explain        the same, with reasons
//	GET  /v1/workers        workers and how many blocks each holds
//	GET  /v1/dump           events that rebuild a space elsewhere
//	POST /query /register   the routes of Mooncake's and of Dynamo's indexers
//	GET  /livez /readyz     whether the process lives, and may be asked
//
// and more: see routes.go, and api/openapi.yaml, which tests compare with
// every answer that they get.
//
// Invariants:
//   - A request changes nothing but counters, a registration apart. What is
//     refused is answered with {"error":{"field","reason","message"}}, a fitting
//     status, and counted by reason.
//   - A caller sees spaces and workers through its view only: a tenant's has no
//     others.
//   - Every byte of a body is checked: a field, type or number that is not
//     exactly as documented is refused, never guessed at.
//   - Memory per request is bounded by the limits of [Config].
//   - An answer is built without reflection, in memory that requests reuse.
//
// Ownership: a Server owns its listener's connections and its scratch memory.
// Spaces belong to whoever applies events; the Server only reads them.
package query
