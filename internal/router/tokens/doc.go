// Package tokens makes the token ids of a request's prompt in the process, exactly as the
// engine makes them that serves it, or says why an engine is to be asked.
//
//	m, err := tokens.Load(os.DirFS(dir), tokens.Options{})
//	ids, err := m.Tokens(ctx, tokens.Chat, body, ids[:0])
//	var ask *tokens.AskError // errors.As: ask an engine; ask.Reason is counted
//
// The steps, each in a place of its own:
//
//	body ── readers (form.go) ─► Conversation ── Writer (writer.go) ─► text ── tokenize ─► ids
//
// A further API is a Form with a row in Form.reader: a function from the body to the
// Conversation that the engine makes of it, in the form of a /v1/chat/completions body.
// A model whose chats no template writes has a Writer of its own, chosen by its files
// (Server.writer).
// Neither knows of the other, nor of engines.
//
// Invariants:
//   - Ids are the engine's or there are none. What a reader, a writer or the tokenizer does
//     not know to do exactly is an AskError; so is what the engine would refuse: that is for
//     the engine to say.
//   - A Model is what files say, and nothing else: it knows no engine, no clock but for
//     templates that write the date, and no other model.
//   - That files and engine agree is not taken on trust: a Proof is what is known of it, and
//     ids are used only while it stands.
//
// Ownership: a Model does not change but for its caches and may be used by any number of
// goroutines. Bodies are read during Tokens and not kept.
package tokens
