// Package mockapi gives a mock engine the HTTP endpoints of a real one: OpenAI's
// completions, chats and responses and Anthropic's messages with token streaming,
// /tokenize, /detokenize, /v1/models and /health, in the time that a real engine would
// take. With a model's files it tokenizes as a real one does, one text at a time, and
// takes tokens in the place of a text where its kind and release do.
//
// Invariants:
//   - What an answer says was cached is what the engine's cache held, by the
//     same blocks that its events name.
//   - The text of an answer depends on its prompt only, so that whoever reads it
//     can tell whether a byte was lost.
//
// Ownership: a Server's goroutine owns its mock.Engine and hands the progress of
// each request to the request's own goroutine; Close ends it.
package mockapi
