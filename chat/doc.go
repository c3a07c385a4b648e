// Package chat writes the prompt of a chat as the engine does that serves the model: from
// the body of a /v1/chat/completions request, the model's chat template and the server's
// settings; of models whose prompts no template writes (DeepSeek-V3.2, V4 and V4.1, gpt-oss's harmony) by
// an encoder in code.
//
// Invariants:
//   - The prompt is the engine's, byte for byte, or there is an error. What is not known to
//     be done exactly is refused by name (jinja.UnsupportedError), and the engine is to be
//     asked; what the engine would refuse too is another error.
//   - The rules of requests are vLLM's (0.33.0): which fields reach the template, tools with
//     their fields in its order and null for what they lack, arguments of calls as values
//     and not as text, contents as text or as parts, reasoning under both of its names,
//     default kwargs below the request's. Older releases differ in corners
//     (reasoning_effort that sets enable_thinking; parts without text; arguments that are
//     no object; the headers of harmony's tool results); that is for who compares with the
//     engine to find.
//   - Those of SGLang (0.5.23) are in sglang.go, for who says that it is the engine.
//   - What is done then is transformers 5's: special tokens as variables, a tool_use
//     template among several, messages' reasoning under a third name, the final message
//     continued.
//
// Ownership: a Model is immutable and safe for concurrent use. A body is read during
// Prompt and not kept.
package chat
