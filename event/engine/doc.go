// Package engine decodes what inference engines publish about their KV caches
// over ZMQ (the msgpack payload of a message) into the event model: vLLM,
// SGLang, TensorRT-LLM, Mooncake and Dynamo's TensorRT-LLM publisher, in every
// layout of their releases from 2025 to 2026, mixed as they come.
//
// Invariants:
//   - No payload makes a decoder panic or allocate more than a fixed multiple
//     of the payload's own size.
//   - One event that cannot be used never costs the others: it is left out and
//     its blocks are counted under the reason.
//   - Local hashes are computed here, from the tokens, the LoRA name, the salt
//     and the multimodal identifiers, so that they are those of a request with
//     the same content. Engine hashes are taken as they are.
//
// Ownership: a Decoder belongs to one publisher stream (one engine process,
// one rank), because it remembers what the stream said about salts and cache
// groups. What it returns lives until its next call.
package engine
