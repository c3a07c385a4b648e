package mockapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/tokenize"
)

// Tokenizer makes an engine's tokens, by a model's own files.
type Tokenizer struct {
	words *tokenize.Tokenizer
	chats *chat.Model // nil: the model has no template
}

// LoadTokenizer reads tokenizer.json, and tokenizer_config.json with the chat template where
// there is one, and config.json, by which a model has an encoder in place of that. template, if not empty, is written by in place of the files' (--chat-template of
// real engines), and kwargs are a JSON object of template variables, or empty
// (--default-chat-template-kwargs). kind is whose rules of requests hold: KindVLLM if empty.
func LoadTokenizer(files fs.FS, kind, template, kwargs string) (*Tokenizer, error) {
	data, err := fs.ReadFile(files, "tokenizer.json")
	if err != nil {
		return nil, fmt.Errorf("tokenizer: %w", err)
	}
	t := &Tokenizer{}
	if t.words, err = tokenize.Load(data, tokenize.Options{}); err != nil {
		return nil, err
	}
	cfg, err := chat.Load(files)
	if err != nil && !(errors.Is(err, fs.ErrNotExist) && template != "") {
		if errors.Is(err, fs.ErrNotExist) {
			return t, nil
		}
		return nil, err
	}
	cfg.Engine = chat.Engine(kind)
	if template != "" {
		cfg.Template, cfg.ToolTemplate, cfg.Encoder = template, "", chat.Jinja
	}
	if cfg.Template == "" && cfg.Encoder == chat.Jinja {
		return t, nil
	}
	if kwargs != "" {
		if cfg.Kwargs, err = jinja.ParseJSON(kwargs); err != nil {
			return nil, fmt.Errorf("template variables: %w", err)
		}
	}
	if t.chats, err = chat.New(cfg); err != nil {
		return nil, err
	}
	return t, nil
}

// encode is the prompt's tokens and how many bytes of text they were.
func (t *Tokenizer) encode(ctx context.Context, q *request, body []byte) (tokens []uint32, size int, err error) {
	text, special := "", true
	switch {
	case q.Messages == nil:
		if text, err = q.text(); err != nil {
			return nil, 0, err
		}
		if q.AddSpecial != nil {
			special = *q.AddSpecial
		}
	case t.chats == nil:
		return nil, 0, errNoTemplate
	default:
		p, err := t.chats.Prompt(ctx, string(body), nil)
		if err != nil {
			return nil, 0, fmt.Errorf("chat: %w", err)
		}
		text, special = string(p.Text), p.AddSpecial
		done := 0
		for _, s := range p.Plain {
			if tokens, err = t.words.Encode(tokens, text[done:s.From], false); err == nil {
				tokens, err = t.words.EncodePlain(tokens, text[s.From:s.To], "")
			}
			if err != nil {
				return nil, 0, err
			}
			done = s.To
		}
		size, text = done, text[done:]
	}
	tokens, err = t.words.Encode(tokens, text, special)
	return tokens, size + len(text), err
}

var errNoTemplate = errors.New("the model has no chat template")

// Prompt is what a body's tokens are, for tests.
func (t *Tokenizer) Prompt(ctx context.Context, body []byte) ([]uint32, error) {
	var q request
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	tokens, _, err := t.encode(ctx, &q, body)
	return tokens, err
}

// generated are the tokens of an answer of n words, and the text of each.
func (t *Tokenizer) generated(prompt []uint32, n int) (tokens []uint32, texts []string, err error) {
	all, err := t.words.Encode(nil, Text(prompt, n), false)
	if err != nil {
		return nil, nil, err
	}
	if len(all) < n {
		return nil, nil, errors.New("the tokenizer makes one token of several numbers")
	}
	texts = make([]string, n)
	for i, id := range all[:n] {
		if texts[i], err = t.words.Decode([]uint32{id}, false); err != nil {
			return nil, nil, err
		}
	}
	return all[:n], texts, nil
}

// Kinds of engines: what else they take as the tokens of a prompt, and how they name themselves.
const (
	KindVLLM   = "vllm"
	KindSGLang = "sglang"
)

// The releases from which on the tokens of a chat's prompt are taken with its request:
// vLLM's renderer takes them from kv_transfer_params.prompt_token_ids (0.26.0 does not), SGLang's
// chat from input_ids (0.5.12.post1 does not).
var takesTokens = map[string][3]int{KindVLLM: {0, 27, 0}, KindSGLang: {0, 5, 13}}

// takesOthers is the first release of vLLM that is known to take those of /v1/messages and
// /v1/responses, too.
var takesOthers = [3]int{0, 33, 0}

func release(r [3]int) string { return fmt.Sprintf("%d.%d.%d", r[0], r[1], r[2]) }

// given returns the tokens that the request brings with it, if this engine takes them.
func (s *Server) given(q *request) []uint32 {
	var tokens []uint32
	if json.Unmarshal(q.Prompt, &tokens) == nil && q.Messages == nil && tokens != nil {
		return tokens
	}
	switch {
	case q.Messages == nil, !s.since(takesTokens[s.cfg.Kind]):
	case s.cfg.Kind == KindSGLang:
		return q.InputIDs
	case q.Transfer != nil:
		return q.Transfer.Tokens
	}
	return nil
}

// since reports whether the engine is of a release or a later one.
func (s *Server) since(first [3]int) bool {
	var release [3]int
	_, _ = fmt.Sscanf(s.cfg.Release, "%d.%d.%d", &release[0], &release[1], &release[2]) // what is missing is 0
	return slices.Compare(release[:], first[:]) >= 0
}

// prompt returns the tokens of a request's prompt: those that it brings, or what the tokenizer
// makes of it in the time that it takes. A real engine's front end has one thread for that.
func (s *Server) prompt(ctx context.Context, q *request, body []byte) (tokens []uint32, given bool, err error) {
	if tokens = s.given(q); len(tokens) > 0 {
		return tokens, true, nil
	}
	if s.cfg.Tokenizer == nil {
		tokens, err = q.tokens()
		return tokens, false, err
	}
	select {
	case s.front <- struct{}{}:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case <-s.stop:
		return nil, false, errClosed
	}
	defer func() { <-s.front }()
	s.Tokenized.Add(1)
	begun := time.Now()
	tokens, size, err := s.cfg.Tokenizer.encode(ctx, q, body)
	if err != nil || s.cfg.TokenizeTime == nil {
		return tokens, false, err
	}
	timer := time.NewTimer(s.cfg.TokenizeTime(size) - time.Since(begun))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return nil, false, ctx.Err()
	case <-s.stop:
		return nil, false, errClosed
	}
	return tokens, false, nil
}
