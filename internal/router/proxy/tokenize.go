package proxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	chats "github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
	"github.com/kvatlas/kvatlas/internal/router/tokens"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
	"github.com/kvatlas/kvatlas/shard"
)

// ownTokens answers /tokenize, /detokenize and /v1/messages/count_tokens as vLLM does, where that
// is known to be what the model's engines answer; otherwise one of those is to.
func (p *Proxy) ownTokens(w http.ResponseWriter, r *http.Request, q *call) bool {
	if r.Method != http.MethodPost || q.m == nil || !q.object {
		return false
	}
	var answer []byte
	var err error
	switch r.URL.Path {
	case pathTokenize:
		answer, err = p.tokenized(r, q)
	case pathDetokenize:
		answer, err = p.detokenized(q)
	case chats.PathCountTokens:
		answer, err = p.counted(r, q)
	default:
		return false
	}
	if err != nil {
		return false // counted by its reason
	}
	q.tally.status, q.tally.outcome, q.tally.first = http.StatusOK, "ok", time.Since(q.arrival)
	p.obs.outcome("ok").Inc()
	q.own(w.Header())
	p.giveTime(w)
	writeJSON(w, http.StatusOK, answer)
	return true
}

var errForEngine = errors.New("an engine is to say that")

// tokenized is the answer of /tokenize.
func (p *Proxy) tokenized(r *http.Request, q *call) ([]byte, error) {
	length := q.m.MaxLength()
	if length == 0 || len(q.data)/bytesPerToken > p.cfg.MaxPrompt || !tokenizeReads(q.data) || !plainTokenize(q.data) {
		return nil, errForEngine
	}
	ids, err := p.tokens.Of(q.m.Space).Tokens(r.Context(), tokens.Request{Form: q.form(), Body: q.data, Adapter: q.lora, Authorization: first(q.header["Authorization"])})
	if err != nil {
		return nil, err
	}
	list := ids.List
	if list == nil {
		list = []uint32{}
	}
	q.tally.prompt = len(list)
	return edge.JSON(struct {
		Count  int      `json:"count"`
		Length int      `json:"max_model_len"`
		Tokens []uint32 `json:"tokens"`
		Texts  *string  `json:"token_strs"` // always null
	}{len(list), length, list, nil}), nil
}

// counted is the answer of /v1/messages/count_tokens, of a prompt that the engine would not find
// too long.
func (p *Proxy) counted(r *http.Request, q *call) ([]byte, error) {
	length, vllm := q.m.MaxLength(), q.m.OwnedBy("vllm")
	if length == 0 || !vllm || len(q.data)/bytesPerToken > p.cfg.MaxPrompt {
		return nil, errForEngine
	}
	done := p.reading(q)
	chat, err := p.asChat(q.m, q, chats.PathCountTokens, vllm)
	done()
	if err != nil {
		return nil, err
	}
	ids, err := p.tokens.Of(q.m.Space).Tokens(r.Context(), tokens.Request{Form: tokens.Chat, Body: chat, Adapter: q.lora, Authorization: first(q.header["Authorization"])})
	if err != nil {
		return nil, err
	}
	n := len(ids.List)
	if n > length {
		return nil, errForEngine
	}
	q.tally.prompt = n
	type original struct {
		Tokens int `json:"original_input_tokens"`
	}
	return edge.JSON(struct {
		Tokens  int      `json:"input_tokens"`
		Context original `json:"context_management"`
	}{n, original{n}}), nil
}

// plainTokenize reports whether a request to /tokenize is what the router answers as any engine does: one
// text, or a chat, without the tokens' texts. Of several texts, or of both, engines make one thing
// or another, or nothing.
func plainTokenize(body []byte) bool {
	var r jsonscan.Reader
	r.Reset(body)
	r.Open('{')
	texts, chats := 0, 0
	for first := true; r.More('}', &first); {
		switch string(r.Key()) {
		case promptField:
			if texts++; r.Peek() != '"' {
				return false
			}
		case "messages":
			chats++
		case "return_token_strs":
			if v := string(r.Raw()); v != "false" && v != "null" {
				return false
			}
			continue
		}
		r.Skip()
	}
	return r.Err() == nil && texts+chats == 1
}

// detokenized is the answer of /detokenize: vLLM's, with special tokens. SGLang's is another.
func (p *Proxy) detokenized(q *call) ([]byte, error) {
	if q.lora != "" || len(q.data)/bytesPerToken > p.cfg.MaxPrompt {
		return nil, errForEngine
	}
	text, err := p.tokens.Of(q.m.Space).Text(tokens.Request{Form: tokens.Detokenize, Body: q.data, Authorization: first(q.header["Authorization"])})
	if err != nil {
		return nil, err
	}
	return edge.JSON(map[string]string{"prompt": text}), nil
}

// tokenPaths are the routes by which engines say tokens, or the text of some.
func tokenPaths() []string {
	return []string{pathTokenize, pathDetokenize, "/v1/tokenize", "/v1/detokenize", "/chat_tokenize", chats.PathCountTokens}
}

// askedTokens answers a client's own question for tokens, or for their text, as an engine does: which one
// is chosen as for the router's questions, and another is asked if it fails or is late. It leaves to a choice
// by load what it cannot do: what names an engine, what is longer than prompts are, and a fleet without one.
func (p *Proxy) askedTokens(w http.ResponseWriter, r *http.Request, q *call) bool {
	if r.Method != http.MethodPost || q.final() || q.options.DPRank != nil || len(q.data)/bytesPerToken > p.cfg.MaxPrompt || !slices.Contains(tokenPaths(), r.URL.Path) {
		return false
	}
	a := p.askSoonest(r.Context(), q.m, q.mayAsk(), q.seat, p.cfg.FirstByte, func(ctx context.Context, e *fleet.Engine) tokenAnswer {
		return p.asClient(ctx, r, q, e)
	})
	if a.engine == nil {
		return false
	}
	q.tally.attempts, q.tally.at, q.tally.rankless = 1, shard.RankID{Worker: a.engine.ID}, true
	f := &failure{given: a.given}
	switch {
	case r.Context().Err() != nil:
		q.tally.outcome = "client_gone"
		p.obs.outcome("client_gone").Inc()
		return true
	case a.given != nil:
	case errors.Is(a.err, errTokensLate):
		f.refusal = refuse(http.StatusGatewayTimeout, "engine_timeout", "no engine answers in time")
	default:
		p.limit.Warn("engine", "an engine did not answer", errAttr(a.err), q.attr())
		f.refusal = refuse(http.StatusBadGateway, "engine_unreachable", "no engine that was asked answers")
	}
	if a.err != nil {
		p.obs.engineErrors.Inc()
	}
	if p.cfg.WorkerHeader {
		w.Header().Set(headerWorker, strconv.FormatUint(a.engine.ID, 10))
	}
	q.tally.first = time.Since(q.arrival)
	p.giveBack(w, r, q, f)
	return true
}

// mayAsk returns the engines that the request may go to.
func (q *call) mayAsk() map[uint64]*fleet.Engine {
	all, o := q.m.Engines(), &q.options
	if o.Allowed == nil && o.Excluded == nil {
		return all
	}
	some := make(map[uint64]*fleet.Engine)
	for id, e := range all {
		if (o.Allowed == nil || slices.Contains(o.Allowed, id)) && !slices.Contains(o.Excluded, id) {
			some[id] = e
		}
	}
	return some
}

// asClient sends an engine the client's request and reads all of the answer.
func (p *Proxy) asClient(ctx context.Context, r *http.Request, q *call, e *fleet.Engine) (a tokenAnswer) {
	resp, err := p.client.RoundTrip(p.toEngine(ctx, r, q.pieces([][]byte{q.data}), e))
	if err != nil {
		return tokenAnswer{err: err}
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	most := p.maxTokenAnswer(len(q.data))
	body, err := io.ReadAll(io.LimitReader(resp.Body, most+1))
	switch {
	case err != nil:
		return tokenAnswer{err: err}
	case int64(len(body)) > most, resp.StatusCode == http.StatusOK && len(body) == 0:
		return tokenAnswer{err: errOther}
	case resp.StatusCode >= http.StatusBadRequest:
		a.err = statusError(resp.StatusCode)
	}
	a.given = &given{resp.StatusCode, resp.Header.Clone(), body} // the next request has the header's memory
	return a
}
