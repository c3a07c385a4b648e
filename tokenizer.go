package kvatlas

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
	models "github.com/kvatlas/kvatlas/internal/router/tokens"
)

// ErrAskEngine is wrapped by the errors of a Tokenizer about prompts of which only an engine
// knows the tokens, or which it would refuse.
var ErrAskEngine = errors.New("an engine is to be asked for the tokens")

// ErrTokensDiffer is wrapped by the error of Tokenizer.Prove where an engine's tokens are others.
var ErrTokensDiffer = errors.New("the engine makes other tokens")

// Tokenizer makes the tokens of prompts as the engines do that serve its model. Its methods are
// safe for concurrent use.
type Tokenizer struct{ model *models.Model }

// LoadTokenizer reads a model's files from a directory: tokenizer.json, tokenizer_config.json,
// chat_template.jinja and kvatlas.json, as kvrouter's --tokenizers. turnCache is how many bytes of
// texts are kept with their tokens, by which a conversation's next turn tokenizes what is new.
func LoadTokenizer(dir string, turnCache int) (*Tokenizer, error) {
	set, err := modelfiles.Read(os.DirFS(dir))
	if err != nil {
		return nil, fmt.Errorf("loading a tokenizer from %s: %w", dir, err)
	}
	return loadTokenizer(set, turnCache)
}

func loadTokenizer(set modelfiles.Set, turnCache int) (*Tokenizer, error) {
	m, err := models.Load(set, models.Options{TurnCache: turnCache})
	if err != nil {
		return nil, fmt.Errorf("loading a tokenizer: %w", err)
	}
	return &Tokenizer{m}, nil
}

// Tokenizer loads the files that the space's workers have registered with (kvpublisher
// --tokenizer). Load them again when workers come: they may name others.
func (a *Atlas) Tokenizer(ctx context.Context, sp event.Space, turnCache int) (*Tokenizer, error) {
	m, err := a.fleet.Open(sp)
	if err != nil {
		return nil, fmt.Errorf("opening model %q: %w", sp.Model, err)
	}
	var list []modelfiles.File
	for _, e := range m.Engines() {
		files := e.Files()
		switch {
		case len(files) == 0:
		case list == nil:
			list = files
		case !slices.Equal(list, files):
			return nil, fmt.Errorf("the workers of model %q name different files of a tokenizer", sp.Model)
		}
	}
	conn := a.replica.Conn()
	if list == nil || conn == nil {
		return nil, fmt.Errorf("no worker of model %q names the files of its tokenizer", sp.Model)
	}
	b, err := modelfiles.OpenBucket(ctx, conn, a.replica.Namespace(), 0, false)
	if err != nil {
		return nil, err
	}
	set, err := b.Get(ctx, list)
	if err != nil {
		return nil, err
	}
	return loadTokenizer(set, turnCache)
}

// Completion returns the tokens of the prompt of a request to /v1/completions; of several prompts
// those of the first.
func (t *Tokenizer) Completion(ctx context.Context, body []byte) ([]uint32, error) {
	return t.tokens(ctx, models.Completion, body)
}

// Chat returns the tokens of the prompt of a request to /v1/chat/completions.
func (t *Tokenizer) Chat(ctx context.Context, body []byte) ([]uint32, error) {
	return t.tokens(ctx, models.Chat, body)
}

func (t *Tokenizer) tokens(ctx context.Context, f models.Form, body []byte) ([]uint32, error) {
	ids, err := t.model.Tokens(ctx, f, body, nil)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrAskEngine, err)
	}
	return ids, nil
}

// Memory is about how many bytes the tokenizer takes, its caches when full included.
func (t *Tokenizer) Memory() int { return t.model.Memory() }

// Prove compares a few texts and chats with what an engine makes of them: its /tokenize, or what
// renders its chats. model is the name that it knows the model by. Do so before the tokens are
// used, and with a few requests now and then: an error that wraps ErrTokensDiffer says that they
// are not the engine's.
func (t *Tokenizer) Prove(ctx context.Context, model string, ask func(ctx context.Context, chat bool, body []byte) ([]uint32, error)) error {
	for _, q := range models.Questions(model) {
		if q.Form != models.Completion && q.Form != models.Chat {
			continue // no tokens of such are given
		}
		ours, err := t.model.Tokens(ctx, q.Form, q.Body, nil)
		if err != nil {
			continue // it is not made here
		}
		theirs, err := ask(ctx, q.Form == models.Chat, q.Body)
		if err != nil {
			return fmt.Errorf("asking the engine: %w", err)
		}
		if at := models.Diff(ours, theirs); at >= 0 {
			return fmt.Errorf("%w: from position %d on (%d, not %d)", ErrTokensDiffer, at, len(theirs), len(ours))
		}
	}
	return nil
}
