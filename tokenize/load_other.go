package tokenize

func (m *bpe) encode(w *work, p []byte, dst []uint32) []uint32 {
	if m.whole {
		if id := m.vocab.find(p); id != none {
			return append(dst, id)
		}
	}
	return m.merge(w, p, dst)
}
// boundaries cuts a text that no pre-tokenizer cuts.
func (m *bpe) boundaries() []stage { return nil }
func (t *Tokenizer) loadWordPiece(m map[string][]byte) (*words, error) {
	return nil, refused("WordPiece")
}
func (t *Tokenizer) loadUnigram(m map[string][]byte) (*words, error)  { return nil, refused("Unigram") }
func loadTiktoken(data []byte, o Options) (*Tokenizer, error)         { return nil, refused("tiktoken") }
func loadTekken(top map[string][]byte, o Options) (*Tokenizer, error) { return nil, refused("tekken") }
func (t *Tokenizer) chunked(w *work, b []byte, dst []uint32) []uint32 { return t.text(w, b, dst) }
