// Package mock is an inference engine without a model: the paged KV cache, the
// scheduler and the events of one, as a state machine.
//
// An [Engine] is one data-parallel rank: requests wait, run in steps (chunked
// prefill and batched decode under one token budget) and share cached prefixes;
// blocks that no request uses are evicted in LRU order, the tails of chains
// first, to host memory and from there to disk where it has these tiers, and
// are loaded back instead of computed. [Timing] says how long a step takes on a real engine, and a [Fleet]
// steps many engines in the order of virtual time.
//
// Invariants:
//   - Pure: no clock, goroutine or I/O. The same calls give the same events.
//   - Between calls, the set of blocks that an engine's events imply for a tier
//     is the set that it holds there. That of the device, and that of all tiers,
//     is prefix-closed: with a block, all blocks before it are there.
//   - No tier ever holds more than its blocks; a block that a running request
//     uses is never evicted.
//   - Of a hybrid model (Config.Groups) a prefix is reused up to the largest boundary that
//     every group allows, and what a group holds is what its events imply.
//   - An event set, not raw copies: no block is stored twice on a tier without a
//     removal between.
//
// Ownership: an Engine and a Fleet belong to one goroutine. An event passed to
// the sink lives until the sink returns.
package mock
