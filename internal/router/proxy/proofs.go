package proxy

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// Tokens returns what makes prompts' tokens in the process.
func (p *Proxy) Tokens() *tokens.Source { return p.tokens }

// FollowTokens keeps the models' tokenizers in line with the fleet, and compares them with
// what its engines make, until ctx ends.
func (p *Proxy) FollowTokens(ctx context.Context) { p.tokens.Run(ctx, p.tokenEngines) }

const (
	pathTokens      = "/v1/tokenizers"
	pathRetryTokens = pathTokens + "/retry"
)

// tokenizers answers GET /v1/tokenizers.
func (p *Proxy) tokenizers(w http.ResponseWriter, _ *http.Request) {
	list := p.tokens.Status()
	if list == nil {
		list = []tokens.Status{}
	}
	p.giveTime(w)
	writeJSON(w, http.StatusOK, edge.JSON(map[string]any{"tokenizers": list}))
}

// retryTokens answers POST /v1/tokenizers/retry: an operator wants the files of a model, or of
// all, compared with its engines anew.
func (p *Proxy) retryTokens(w http.ResponseWriter, r *http.Request) {
	n, name := 0, r.URL.Query().Get("model_name")
	if name == "" {
		n = p.tokens.Retry("")
	} else {
		for _, model := range p.fleet.ModelsOf(name) {
			n += p.tokens.Retry(model)
		}
	}
	if n == 0 && r.URL.Query().Has("model_name") {
		p.refuse(w, r, p.notServed(name))
		return
	}
	p.giveTime(w)
	writeJSON(w, http.StatusOK, edge.JSON(map[string]any{"models": n}))
}

// WrongTokens says which models' files do not make what their engines make; "" if all do.
func (p *Proxy) WrongTokens() string {
	var list []string
	for _, x := range p.tokens.Status() {
		switch d := x.Difference; {
		case d != nil:
			list = append(list, fmt.Sprintf("%s: worker %d makes other %s than the files, from position %d on", x.Model, d.Worker, d.Made(), d.Position))
		case x.Error != "":
			list = append(list, x.Model+": "+x.Error)
		case x.Mixed:
			list = append(list, x.Model+": "+x.NoChats)
		}
	}
	return strings.Join(list, "; ")
}

// tokenEngines returns the engines that may be asked, by model, in the order of their workers.
func (p *Proxy) tokenEngines() map[event.Space][]tokens.Engine {
	all := map[event.Space][]tokens.Engine{}
	if p.cfg.Tokens != TokensEngine || !p.cfg.Indexed {
		return all
	}
	for _, m := range p.fleet.Models() {
		list := []tokens.Engine{}
		for id, e := range m.Engines() {
			if e.URL != "" && e.Healthy() {
				list = append(list, tokens.Engine{Worker: id, Is: e.Process(), Software: e.Owned(), Files: p.tokens.Registered(e.Files())})
			}
		}
		slices.SortFunc(list, func(a, b tokens.Engine) int { return cmp.Compare(a.Worker, b.Worker) })
		all[m.Space] = list
	}
	return all
}

var errGone = errors.New("the engine is gone")

// engineTokens asks one engine what it makes of a request's prompt: what renders its API, or
// /tokenize where that has all that counts.
func (p *Proxy) engineTokens(ctx context.Context, q tokens.Question) ([]uint32, error) {
	e := p.questioned(&q)
	if e == nil {
		return nil, errGone
	}
	ask := func(body []byte, path string) ([]uint32, error) {
		list, err := p.askTokens(ctx, e, upstream.Payload{Pieces: [][]byte{body}}, q.Authorization, path)
		return list, silent(err)
	}
	switch q.Form {
	case tokens.Completion:
		b, err := parseBody(q.Body, p.cfg.MaxPrompt)
		if err != nil || b.text == nil {
			return nil, fmt.Errorf("%w: it is asked with texts", tokens.ErrSilent)
		}
		return ask((&call{body: b}).tokenizeBody(), pathTokenize)
	case tokens.Chat:
		list, err := ask(q.Body, pathRender)
		if errors.Is(err, tokens.ErrSilent) && tokenizeReads(q.Body) {
			return ask(q.Body, pathTokenize)
		}
		return list, err
	case tokens.Message:
		return ask(q.Body, chats.PathMessages+renders)
	case tokens.Response:
		return ask(q.Body, chats.PathResponses+renders)
	case tokens.Detokenize:
	}
	return nil, tokens.ErrSilent
}

// engineSoftware asks one engine what it is.
func (p *Proxy) engineSoftware(ctx context.Context, q tokens.Question) string {
	e := p.questioned(&q)
	if e == nil {
		return ""
	}
	return e.Owner(ctx, fleet.ClientBy(p.client), p.cfg.TokenizeTimeout)
}

// questioned returns the engine that a question is for; nil if it is no more.
func (p *Proxy) questioned(q *tokens.Question) *fleet.Engine {
	for _, m := range p.fleet.Models() {
		if e := m.Engine(q.Worker); m.Space == q.Space && e != nil && e.Process() == q.Is {
			return e
		}
	}
	return nil
}

// engineText asks one engine for the text of ids, as vLLM says it.
func (p *Proxy) engineText(ctx context.Context, q tokens.Question) (string, error) {
	e := p.questioned(&q)
	if e == nil {
		return "", errGone
	}
	resp, err := p.postTo(ctx, e, upstream.Payload{Pieces: [][]byte{q.Body}}, q.Authorization, pathDetokenize)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusOK {
		return "", silent(statusError(resp.StatusCode))
	}
	var said struct{ Prompt *string }
	data, err := io.ReadAll(io.LimitReader(resp.Body, p.maxTokenAnswer(len(q.Body))))
	if err != nil {
		return "", err
	}
	if json.Unmarshal(data, &said) != nil || said.Prompt == nil {
		return "", fmt.Errorf("%w: it says no text as vLLM does", tokens.ErrSilent)
	}
	return *said.Prompt, nil
}

// silent makes a tokens.ErrSilent of an answer that another try would not change.
func silent(err error) error {
	var status statusError
	switch {
	case errors.Is(err, errOther):
	case !errors.As(err, &status):
		return err
	default:
		switch int(status) {
		case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented:
		default:
			return err
		}
	}
	return fmt.Errorf("%w: %w", tokens.ErrSilent, err)
}

// tokenizeReads reports whether /tokenize goes by all of a chat's body by which its prompt is
// written: of some fields it knows nothing.
func tokenizeReads(body []byte) bool {
	var r jsonscan.Reader
	r.Reset(body)
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch name := string(r.Key()); name {
		case "reasoning_effort", "documents", "tool_choice":
			if v := string(r.Raw()); v != "null" && !(name == "tool_choice" && v != `"none"`) {
				return false
			}
		default:
			r.Skip()
		}
	}
	return r.Err() == nil
}

// first returns the first of a header's values; "" if there is none.
func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
