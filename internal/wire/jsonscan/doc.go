// Package jsonscan reads JSON from a byte slice, value by value, without
// allocating per value.
//
// Invariants:
//   - No input makes it panic or nest deeper than a fixed limit.
//   - The first error stays; every later read returns zero values and every
//     loop over members ends.
//   - Numbers are exact: a u64 is read from its digits, never through a float,
//     and what is not a u64 is refused.
//
// A reader of our own, because requests and events are mostly arrays of numbers,
// which are read here from 64 bytes at a time; measured against encoding/json and
// valyala/fastjson v1.6.10 (BENCHMARKS.md, Readers: before it was 64, and before vectors). fastjson takes
// 3.5 times as long for tokens and hashes and builds a tree of 230 times the input, and lets pass what is
// no JSON: --1, 01, nan, \q, control characters. It is quicker for long texts, since it
// only looks for their ends. encoding/json takes 8 to 13 times as long, and takes
// "Tokens" for "tokens".
//
// Ownership: a Reader borrows its input; strings it returns live until its
// next read.
package jsonscan
