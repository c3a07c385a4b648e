// Package event is the model of what engines publish about their KV caches,
// and the codecs between that model and the wire.
//
// Invariants:
//   - A decoder never panics, never allocates more than the input's own size
//     allows, and reads every declared length against the bytes that remain.
//   - What a decoder returns shares no memory with its input.
//   - Decoded slices belong to the Decoder that made them and live until its
//     next call.
//
// Ownership: a Batch is owned by whoever holds it; nothing here keeps one.
package event
