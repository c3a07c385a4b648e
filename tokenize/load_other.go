package tokenize

func (m *bpe) encode(w *work, p []byte, dst []uint32) []uint32 {
	if m.whole {
		if id := m.vocab.find(p); id != none {
			return append(dst, id)
		}
	}
	return m.merge(w, p, dst)
}

func (t *Tokenizer) loadWordPiece(m map[string][]byte) (*words, error) {
	return nil, refused("WordPiece")
}
func (t *Tokenizer) loadUnigram(m map[string][]byte) (*words, error) { return nil, refused("Unigram") }
