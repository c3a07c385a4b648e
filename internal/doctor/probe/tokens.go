package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/registry"
)

// model makes tokens of the files that a worker registered with.
type model interface {
	Tokens(ctx context.Context, f tokens.Form, body []byte, dst []uint32) ([]uint32, error)
}

// files are the models that were loaded, by the id of their files and the kind of engine by whose rules chats are written.
type files struct {
	open func(ctx context.Context, w *registry.Worker, kind string) (model, error)
	mu   sync.Mutex
	byID map[string]*loaded
}

type loaded struct {
	once sync.Once
	m    model
	err  error
}

// of returns the model of the worker's files for an engine of the kind, loaded once.
func (f *files) of(ctx context.Context, w *registry.Worker, kind string) (model, error) {
	f.mu.Lock()
	if f.byID == nil {
		f.byID = map[string]*loaded{}
	}
	id := kind + " " + modelfiles.ID(w.Tokenizer)
	l := f.byID[id]
	if l == nil {
		l = &loaded{}
		f.byID[id] = l
	}
	f.mu.Unlock()
	l.once.Do(func() { l.m, l.err = f.open(ctx, w, kind) })
	return l.m, l.err
}

// load fetches the files and reads them.
func (g *gathering) load(ctx context.Context, w *registry.Worker, kind string) (model, error) {
	b, err := modelfiles.OpenBucket(ctx, g.cfg.Conn, g.cfg.Namespace, 0, false)
	if err != nil {
		return nil, err
	}
	set, err := b.Get(ctx, w.Tokenizer)
	if err != nil {
		return nil, err
	}
	o := tokens.Options{}
	if kind == registry.TransferSGLang.Engine() { // all others go by vLLM's rules, or the files'
		o.Engine = kind
	}
	return tokens.Load(set, o)
}

// compare returns how the engine's tokens differ from those of the registered files, or
// why that is not known.
func (g *gathering) compare(ctx context.Context, e *engine, kind string) (differs, unknown string) {
	if len(e.w.Tokenizer) == 0 {
		return "", "no files of a tokenizer are registered (kvpublisher --tokenizer)"
	}
	m, err := g.files.of(ctx, e.w, kind)
	if err != nil {
		return "", "the registered files cannot be used: " + short(err.Error())
	}
	some := false
	for _, q := range tokens.Questions(e.w.Model) {
		ours, err := m.Tokens(ctx, q.Form, q.Body, nil)
		if err != nil {
			continue // that is for engines alone
		}
		theirs, err := e.tokensOf(ctx, q)
		if err != nil {
			unknown = "the engine does not say its tokens: " + short(err.Error())
			continue
		}
		some = true
		if at := tokens.Diff(ours, theirs); at >= 0 {
			return fmt.Sprintf("of %s the engine makes other tokens from position %d on (%d, not %d)", q.Form.Kind(), at, len(theirs), len(ours)), ""
		}
	}
	if some {
		unknown = ""
	}
	return "", unknown
}

// tokensOf asks the engine for what the files were asked.
func (e *engine) tokensOf(ctx context.Context, q tokens.Probe) ([]uint32, error) {
	if q.Form == tokens.Chat {
		var said struct {
			IDs []uint32 `json:"token_ids"`
		}
		err := e.read(ctx, http.MethodPost, "/v1/chat/completions/render", json.RawMessage(q.Body), &said)
		if err == nil && len(said.IDs) > 0 {
			return said.IDs, nil
		}
		if ctx.Err() != nil {
			return nil, errors.Join(err, ctx.Err())
		}
	}
	return e.tokenize(ctx, json.RawMessage(q.Body))
}
