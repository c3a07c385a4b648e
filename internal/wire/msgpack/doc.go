// Package msgpack reads msgpack from a byte slice without copying, allocating
// or trusting a declared length.
//
// Invariants:
//   - No input makes it panic, recurse, or loop longer than the input is.
//   - The first error stays; every later read returns zero values, so that a
//     caller may check once, but loops by counts read before the error.
//   - A container's length is refused if its elements cannot fit in the bytes
//     that remain, so that a caller may allocate by it.
//
// Ownership: a Reader borrows its input; Str and Bin return parts of it.
//
// Format: github.com/msgpack/msgpack/blob/master/spec.md. Hand-written because
// the engines' payloads are mostly token arrays, which a reader that decides
// on each first byte in one loop decodes faster than a general library, and
// because what is left is small.
package msgpack
