package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"slices"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/tokenize"
)

// words makes the tokens of an engine's prompts by a model's files.
type words struct {
	dir    string // of the files
	whole  *mockapi.Tokenizer
	pieces *tokenize.Tokenizer
}

// loadWords reads the files that -tokenizers or -model-files names.
func (s *scene) loadWords(from string) (w *words, err error) {
	w = new(words)
	if w.dir, w.pieces, err = s.modelFiles(from); err != nil {
		return nil, err
	}
	w.whole, err = mockapi.LoadTokenizer(os.DirFS(w.dir), "", "", "")
	return w, err
}

// prompts makes the tokens of chats that follow each other, as bytes in order, four each.
// An engine shares its processors with what is measured: of a chat that begins as the
// last one did it tokenizes the last message, by which a real one's time is as little here.
type prompts struct {
	head   []byte // of the body, before the last message
	tokens []byte // of the prompt until there
	all    []byte
	ids    []uint32
}

func appendTokens(dst []byte, ids []uint32) []byte {
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint32(dst, id)
	}
	return dst
}

// of returns the tokens of a chat; they are good until the next call.
func (p *prompts) of(ctx context.Context, w *words, body []byte) ([]byte, error) {
	const user = `{"role":"user","content":"`
	at := bytes.LastIndex(body, []byte(user))
	if at < 0 {
		at = len(body)
	}
	text, _, _ := bytes.Cut(body[min(at+len(user), len(body)):], []byte(`"}`)) // chat.lua's need no unescaping
	var err error
	// The template's marks are tokens of their own: what is before one says nothing of what follows.
	p.ids, err = w.pieces.Encode(p.ids[:0], "<|im_start|>user\n"+string(text)+"<|im_end|>\n<|im_start|>assistant\n", false)
	if err != nil {
		return nil, err
	}
	if len(p.head) == 0 || !bytes.Equal(p.head, body[:at]) {
		whole, err := w.whole.Prompt(ctx, body)
		if err != nil {
			return nil, err
		}
		n := len(whole) - len(p.ids)
		if n < 0 || !slices.Equal(whole[n:], p.ids) { // of a template or a vocabulary that is not so
			p.head, p.ids, n = nil, whole, 0
		} else {
			p.head = append(p.head[:0], body[:at]...)
		}
		p.tokens = appendTokens(p.tokens[:0], whole[:n])
	}
	p.all = appendTokens(append(p.all[:0], p.tokens...), p.ids)
	return p.all, nil
}
