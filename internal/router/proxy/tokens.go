package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/router/upstream"
	"github.com/kvatlas/kvatlas/internal/spans"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
	"github.com/kvatlas/kvatlas/route"
)

// How texts become what the index is asked with.
const (
	TokensEngine = "engine" // by the engine's own /tokenize
	TokensBytes  = "bytes"  // chunks of bytes in place of blocks, for Approximate
	TokensNone   = "none"   // not at all: only token arrays are looked up
)

// bytesPerToken is how many bytes of text are taken for a token where only an
// estimate is needed.
const bytesPerToken = 4

// prompt turns the body into what the router looks at. known is false if the
// prompt's length is an estimate and nothing is looked up.
func (p *Proxy) prompt(ctx context.Context, m *fleet.Model, q *call) (prompt route.Prompt, known bool) {
	seed := blockhash.Seed(q.lora, q.salt)
	switch {
	case q.tokens != nil:
		return route.Prompt{Tokens: q.tokens, Hash: blockhash.Options{Seed: seed}, Rest: q.rest}, true
	case len(q.text) == 0 || !p.cfg.Indexed || p.cfg.Tokens == TokensNone:
	case q.api.read != "" && !p.converse(m, q): // by load
	case p.cfg.Tokens == TokensBytes:
		text := q.text
		if q.chats != nil {
			text = q.chats
		}
		text = text[:min(len(text), p.cfg.MaxPrompt*bytesPerToken)]
		q.hashes = p.hashes.Get().(*[]uint64) //nolint:forcetypeassert // the pool holds nothing else
		*q.hashes = chunks((*q.hashes)[:0], text, int(m.BlockSize)*bytesPerToken, seed)
		return route.Prompt{Local: *q.hashes, Length: len(text) / bytesPerToken, Rest: q.rest}, true
	case (len(q.text)+q.beside)/bytesPerToken > p.cfg.MaxPrompt: // its answer would be as long
		p.obs.tokenizeFailed.Inc()
	default:
		var list []uint32
		harmony, err := p.harmony(ctx, m, q)
		if harmony {
			p.obs.unread[unreadOther].Inc()
			break
		}
		if err == nil {
			list, err = p.tokensOf(ctx, m, q)
		}
		if err == nil {
			return route.Prompt{Tokens: list, Hash: blockhash.Options{Seed: seed}, Rest: q.rest}, true
		}
		if ctx.Err() == nil { // else it is the client that left
			p.obs.tokenizeFailed.Inc()
			p.limit.Warn("tokenize", "an engine did not tokenize a prompt; it counts as not cached", errAttr(err), q.attr())
		}
	}
	return route.Prompt{Local: []uint64{}, Length: q.guess(), Guessed: true}, false
}

// maxGuess is the most tokens that a body is taken for: the bytes of an image are not its
// tokens.
const maxGuess = 32 << 10

// guess estimates the prompt's tokens from its bytes, or from all of the body's.
func (q *call) guess() int {
	n := len(q.text)
	if n == 0 {
		n = len(q.data)
	}
	return min(n/bytesPerToken+q.rest, maxGuess)
}

// chunks hashes the complete chunks of a text.
func chunks(local []uint64, text []byte, size int, seed uint64) []uint64 {
	for ; len(text) >= size; text = text[size:] {
		local = append(local, xxh3.HashSeed(text[:size], seed))
	}
	return local
}

type textKey struct {
	space *fleet.Model
	hash  xxh3.Uint128
}

var errNoEngine = errors.New("no engine is there to ask")

// tokensOf makes the tokens of a prompt in the process, where that is known to be what the
// engines make of it, or else asks one.
func (p *Proxy) tokensOf(ctx context.Context, m *fleet.Model, q *call) (list []uint32, err error) {
	q.ids, err = p.tokens.Of(m.Space).Tokens(ctx, tokens.Request{Form: q.form(), Body: q.older(), Came: conversations[q.api.read], Asked: q.data, Adapter: q.lora, Authorization: first(q.header["Authorization"])})
	if err == nil {
		return q.ids.List, nil
	}
	return p.tokenize(ctx, m, q)
}

// harmony reports whether a response is asked of gpt-oss, whose prompt is not that of the chat which was made
// of it. Where no files say so, an engine's vocabulary does.
func (p *Proxy) harmony(ctx context.Context, m *fleet.Model, q *call) (bool, error) {
	if q.api.read != chats.PathResponses {
		return false, nil
	}
	return p.tokens.Of(m.Space).Vocabulary(ctx, func(ctx context.Context) ([]uint32, error) {
		ask := appendJSON([]byte(`{"prompt":"`+tokens.HarmonyText+`","add_special_tokens":false,"model":`), q.model)
		list, err := p.askEngines(ctx, m, upstream.Payload{Pieces: [][]byte{append(ask, '}')}}, q)
		var status statusError
		if errors.As(err, &status) && (status == http.StatusUnauthorized || status == http.StatusForbidden) {
			err = &tokens.AskerError{Err: err}
		}
		return list, err
	})
}

// form returns the API by which the request came.
func (q *call) form() tokens.Form {
	if q.chat {
		return tokens.Chat
	}
	return tokens.Completion
}

// tokenize asks an engine for the tokens of a text prompt, or of a chat, whose
// body goes there as it is: what fills the template is for the engine to know.
func (p *Proxy) tokenize(ctx context.Context, m *fleet.Model, q *call) ([]uint32, error) {
	ask := q.ask()
	key := textKey{m, xxh3.Hash128Seed(ask, blockhash.Seed("", q.salt))}
	if list, ok := p.texts.get(key, time.Now()); ok {
		p.obs.tokenizeCached.Inc()
		return list, nil
	}
	list, err := p.askEngines(ctx, m, q.pieces([][]byte{ask}), q)
	if err != nil {
		return nil, err
	}
	p.obs.tokenizeAsked.Inc()
	p.texts.put(key, list, int64(4*len(list)+128), time.Now())
	return list, nil
}

// tokenizeBody is what asks /tokenize for the tokens of a text.
func (q *call) tokenizeBody() []byte {
	ask := make([]byte, 0, len(q.text)+len(q.model)+64)
	ask = appendJSON(append(ask, `{"model":`...), q.model)
	ask = append(append(ask, `,"prompt":`...), q.text...)
	if q.special != nil {
		ask = append(append(ask, `,"add_special_tokens":`...), q.special...)
	}
	if q.salt != "" { // for whom alone the text is kept, where it becomes tokens here
		ask = appendJSON(append(ask, `,"cache_salt":`...), q.salt)
	}
	return append(ask, '}')
}

// older is the request as one to /v1/chat/completions or /v1/completions with its prompt.
func (q *call) older() []byte {
	if q.chats == nil && q.api.choices {
		return q.data
	}
	return q.ask()
}

// ask is what an engine is asked for the tokens of the prompt with.
func (q *call) ask() []byte {
	switch {
	case q.chats != nil:
		return q.chats
	case q.chat:
		return q.data
	}
	return q.tokenizeBody()
}

// maxTokenAnswer bounds what of an answer is read to a body of n bytes: a token has
// one byte or more, and its number up to a dozen digits with what stands between; some
// engines say the tokens' texts too. What is in the body beside a prompt of MaxPrompt, as
// images are, does not make it longer.
func (p *Proxy) maxTokenAnswer(n int) int64 {
	return 64*min(int64(n), bytesPerToken*int64(p.cfg.MaxPrompt)) + 1<<20
}

// The routes by which engines say tokens, each with the field of the answer that has them.
const (
	pathTokenize   = "/tokenize"
	pathDetokenize = "/detokenize"
	renders        = "/render" // of an API what its prompt becomes
	pathRender     = chats.PathChat + renders
)

// postTo asks an engine.
func (p *Proxy) postTo(ctx context.Context, e *fleet.Engine, ask upstream.Payload, authorization, path string) (*http.Response, error) {
	u := *e.Base
	u.Path, u.RawPath = e.Base.Path+path, ""
	req := upstream.NewRequest(ctx, http.MethodPost, u, ask)
	req.Header["Content-Type"] = jsonType
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	e.Show(req.Header)
	spans.Inject(ctx, req.Header)
	return p.client.RoundTrip(req)
}

func (p *Proxy) askTokens(ctx context.Context, e *fleet.Engine, ask upstream.Payload, authorization, path string) ([]uint32, error) {
	resp, err := p.postTo(ctx, e, ask, authorization, path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()              //nolint:errcheck // only read
	s := p.answers.Get().(*tokenAnswers) //nolint:forcetypeassert // the pool holds nothing else
	defer p.answers.Put(s)
	s.text.Reset()
	s.most = io.LimitedReader{R: resp.Body, N: p.maxTokenAnswer(ask.Len())}
	_, err = s.text.ReadFrom(&s.most)
	if s.most.R = nil; err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp.StatusCode)
	}
	if strings.HasSuffix(path, renders) {
		return s.read("token_ids")
	}
	return s.read("tokens")
}

// tokenAnswers is room for an answer of /tokenize.
type tokenAnswers struct {
	most   io.LimitedReader // what is read of it
	text   bytes.Buffer
	tokens []uint32
}

var (
	jsonType = []string{"application/json"}
	errOther = errors.New("/tokenize answers without tokens")
)

// read returns the tokens of the answer, which are in the field.
func (s *tokenAnswers) read(field string) ([]uint32, error) {
	var r jsonscan.Reader
	r.Reset(s.text.Bytes())
	r.Open('{')
	found := false
	for first := true; r.More('}', &first); {
		if string(r.Key()) != field {
			r.Skip()
			continue
		}
		found = r.Peek() == '['
		s.tokens = r.Uint32s(s.tokens[:0], math.MaxInt)
	}
	if r.Err() != nil || !found {
		return nil, errOther
	}
	return slices.Clone(s.tokens), nil
}
