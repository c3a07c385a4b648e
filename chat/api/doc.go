// Package api makes of the requests of other APIs the one to /v1/chat/completions that has the
// same prompt: /v1/messages and its count_tokens, /v1/responses, and the chats of
// /v1/embeddings and /classify, and the first prompts of /score and /rerank. So there is one form of a conversation, from which package
// chat writes the prompt, or which an engine is asked with.
//
// Invariants:
//   - The rules are those of vLLM's release 0.33.0, whose files each function names. What
//     depends on what is not known here (Rules), or is made up anew by the engine for each
//     request, is refused by name with a jinja.UnsupportedError; what the engine would refuse
//     as well is a chat.BadRequestError.
//   - Only what the prompt is built of is read. Fields that no prompt depends on are left out,
//     and nothing is made of a field that is not known: engines ignore those, too.
//   - SGLang joins system texts, thinking and turns otherwise (its release 0.5.23,
//     anthropic/serving.py and openai/serving_responses.py), partly by the parser of its
//     model's reasoning, which nobody outside knows: its engines are not spoken for.
//
// Ownership: the values of a request are shared with what is made of it; neither is changed.
package api
