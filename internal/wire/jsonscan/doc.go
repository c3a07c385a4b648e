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
// Ownership: a Reader borrows its input; strings it returns live until its
// next read.
package jsonscan
