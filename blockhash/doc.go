// Package blockhash turns a prompt's tokens into the hashes by which the fleet
// knows its blocks: local hashes of content, and sequence hashes of whole
// prefixes.
//
// Invariants:
//   - A local hash depends on the block's tokens, its multimodal objects, and
//     the prompt's LoRA and salt: never on where the block stands, and never on
//     the machine's byte order.
//   - The hashes are those of Dynamo 1.6.1's router, bit for bit; the test
//     vectors are its own.
//   - Hashing a text prompt allocates nothing that grows with it.
//
// Ownership: functions only; slices stay the caller's. Engine hashes, which the
// engines choose, are not made here: they are opaque everywhere.
package blockhash
