// Package trace is the request of the mock fleet, the reader of request traces
// in Mooncake's format, and the expansion of a request's ids to block hashes.
//
// A trace is JSON lines, plain or compressed with zstd (told apart by the
// first bytes): timestamp (ms from the start), input_length and output_length
// (tokens), hash_ids (one id for each block of the prompt, where an id names
// the whole prefix up to its block) and, where known, session_id. How many
// tokens an id stands for is a property of the trace: 512 in Mooncake's own.
//
// Invariants:
//   - Reading holds one line at a time, of a bounded length; every error names
//     the line.
//   - The tokens of a request are a function of its ids alone, so every block
//     size gives hashes of the same prompt.
//
// Ownership: a Reader and a Hasher belong to one goroutine. A Request belongs
// to whoever passes it to Next, which reuses its slices.
package trace
