package proxy

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
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
		return route.Prompt{Tokens: q.tokens, Hash: blockhash.Options{Seed: seed}}, true
	case len(q.text) == 0 || !p.cfg.Indexed || p.cfg.Tokens == TokensNone:
	case p.cfg.Tokens == TokensBytes:
		text := q.text[:min(len(q.text), p.cfg.MaxPrompt*bytesPerToken)]
		q.hashes = p.hashes.Get().(*[]uint64) //nolint:forcetypeassert // the pool holds nothing else
		*q.hashes = chunks((*q.hashes)[:0], text, int(m.BlockSize)*bytesPerToken, seed)
		return route.Prompt{Local: *q.hashes, Length: len(text) / bytesPerToken}, true
	case len(q.text)/bytesPerToken > p.cfg.MaxPrompt: // its answer would be as long
		p.obs.tokenizeFailed.Inc()
	default:
		tokens, err := p.tokenize(ctx, m, q)
		if err == nil {
			return route.Prompt{Tokens: tokens, Hash: blockhash.Options{Seed: seed}}, true
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
	return min(n/bytesPerToken, maxGuess)
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

// tokenize asks an engine for the tokens of a text prompt, or of a chat, whose
// body goes there as it is: what fills the template is for the engine to know.
func (p *Proxy) tokenize(ctx context.Context, m *fleet.Model, q *call) ([]uint32, error) {
	ask := q.data
	if !q.chat {
		ask = make([]byte, 0, len(q.text)+len(q.model)+32)
		ask = append(ask, `{"model":`...)
		ask = appendJSON(ask, q.model)
		ask = append(ask, `,"prompt":`...)
		ask = append(append(ask, q.text...), '}')
	}
	key := textKey{m, xxh3.Hash128(ask)}
	if tokens, ok := p.texts.get(key, time.Now()); ok {
		p.obs.tokenizeCached.Inc()
		return tokens, nil
	}
	tokens, err := p.askEngines(ctx, m, q.pieces([][]byte{ask}), q)
	if err != nil {
		return nil, err
	}
	p.obs.tokenizeAsked.Inc()
	p.texts.put(key, tokens, int64(4*len(tokens)+128), time.Now())
	return tokens, nil
}

// maxTokenAnswer bounds what of an answer is read to a body of n bytes: a token has
// one byte or more, and its number up to a dozen digits with what stands between; some
// engines say the tokens' texts too. What is in the body beside a prompt of MaxPrompt, as
// images are, does not make it longer.
func (p *Proxy) maxTokenAnswer(n int) int64 {
	return 64*min(int64(n), bytesPerToken*int64(p.cfg.MaxPrompt)) + 1<<20
}

func (p *Proxy) askTokens(ctx context.Context, e *fleet.Engine, ask upstream.Payload, q *call) ([]uint32, error) {
	u := *e.Base
	u.Path, u.RawPath = e.Base.Path+"/tokenize", ""
	req := newRequest(ctx, http.MethodPost, &u, ask)
	req.Header = http.Header{"Content-Type": jsonType}
	if auth := q.header["Authorization"]; len(auth) > 0 {
		req.Header["Authorization"] = auth
	}
	e.Show(req.Header)
	spans.Inject(ctx, req.Header)
	resp, err := p.client.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()              //nolint:errcheck // only read
	s := p.answers.Get().(*tokenAnswers) //nolint:forcetypeassert // the pool holds nothing else
	defer p.answers.Put(s)
	s.text.Reset()
	if _, err := s.text.ReadFrom(io.LimitReader(resp.Body, p.maxTokenAnswer(ask.Len()))); err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, statusError(resp.StatusCode)
	}
	return s.read()
}

// tokenAnswers is room for an answer of /tokenize.
type tokenAnswers struct {
	text   bytes.Buffer
	tokens []uint32
}

var (
	jsonType = []string{"application/json"}
	errOther = errors.New("/tokenize answers without tokens")
)

// read returns the tokens of the answer.
func (s *tokenAnswers) read() ([]uint32, error) {
	var r jsonscan.Reader
	r.Reset(s.text.Bytes())
	r.Open('{')
	found := false
	for first := true; r.More('}', &first); {
		if string(r.Key()) != "tokens" {
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
