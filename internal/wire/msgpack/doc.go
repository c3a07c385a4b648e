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
// because what is left is small. Measured (BENCHMARKS.md, Readers): tinylib/msgp
// v1.6.5, which also reads from a slice, takes 4 times as long, vmihailenco/msgpack
// v5.4.1 11 times, hashicorp/go-msgpack v2 into values of any type 39 times. The
// first two return an array's declared length as it stands; msgp refuses hashes with
// a sign, and vmihailenco cuts a token of 64 bits to 32 without an error.
package msgpack
