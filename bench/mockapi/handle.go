package mockapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/kvatlas/kvatlas/chat/api"
)

// maxLength is how many tokens a prompt and its answer may have, as engines say.
const maxLength = 1 << 20

// request is what the engine understands of OpenAI's.
type request struct {
	Model    string          `json:"model"`
	Prompt   json.RawMessage `json:"prompt"`
	Messages []struct {
		Role    string `json:"role"`
		Content any    `json:"content"`
	} `json:"messages"`
	Stream        bool `json:"stream"`
	MaxTokens     *int `json:"max_tokens"`
	StreamOptions struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
	Salt       string    `json:"cache_salt"`
	AddSpecial *bool     `json:"add_special_tokens"`
	Transfer   *transfer `json:"kv_transfer_params"`
	InputIDs   []uint32  `json:"input_ids"` // SGLang
	bootstrap
}

// text is the prompt of a completion.
func (q *request) text() (text string, err error) {
	if err = json.Unmarshal(q.Prompt, &text); err != nil {
		err = fmt.Errorf("prompt: %w", err)
	}
	return text, err
}

// tokens returns the prompt's tokens where there is no tokenizer.
func (q *request) tokens() ([]uint32, error) {
	if q.Messages != nil {
		text := ""
		for _, m := range q.Messages {
			text += fmt.Sprintf("%s: %v\n", m.Role, m.Content)
		}
		return Tokens(text), nil
	}
	text, err := q.text()
	return Tokens(text), err
}

func (s *Server) routes() {
	s.mux = http.NewServeMux()
	s.mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	s.mux.HandleFunc("GET /v1/models", s.models)
	s.mux.HandleFunc("GET /metrics", s.metrics)
	s.mux.HandleFunc("GET "+kvPath+"{name}", s.serveKV)
	if s.cfg.Peer {
		s.mux.HandleFunc("POST "+peerPath, s.servePeer)
	}
	if s.cfg.Transfer == TransferMooncake && s.cfg.Prefill {
		s.mux.HandleFunc("GET /query", s.bootstrapServer)
	}
	s.mux.HandleFunc("POST /tokenize", s.tokenize)
	s.mux.HandleFunc("POST /detokenize", s.detokenize)
	s.mux.HandleFunc("GET "+map[string]string{KindVLLM: "/version", KindSGLang: "/server_info"}[s.cfg.Kind], s.version)
	s.mux.HandleFunc("POST /v1/completions", s.complete)
	s.mux.HandleFunc("POST /v1/chat/completions", s.complete)
	if s.cfg.Kind == KindVLLM && s.since(takesOthers) {
		for _, path := range []string{api.PathChat, api.PathMessages, api.PathResponses} {
			s.mux.HandleFunc("POST "+path+"/render", s.render)
		}
	}
	s.mux.HandleFunc("POST /v1/messages", s.otherwise)
	s.mux.HandleFunc("POST "+api.PathCountTokens, s.count)
	s.mux.HandleFunc("POST /v1/responses", s.otherwise)
	s.mux.HandleFunc("GET /v1/responses/{id}", s.kept)
	if s.cfg.Scores != "" {
		for _, path := range []string{api.PathScore, "/v1" + api.PathScore, api.PathRerank, "/v1" + api.PathRerank, "/v2" + api.PathRerank} {
			s.mux.HandleFunc("POST "+path, s.score)
		}
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.is(WrongClock) {
		w.Header().Set("Date", time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat))
	}
	s.mux.ServeHTTP(w, r)
}

func answer(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		status, body = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}

func fail(w http.ResponseWriter, status int, err error) {
	answer(w, status, map[string]any{"error": map[string]any{"message": err.Error(), "code": status}})
}

// failLate is fail for what is known once the request is being served: streams have their status by then.
func failLate(w http.ResponseWriter, stream bool, err error) {
	if !stream {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	_, _ = fmt.Fprintf(w, "data: {\"error\":{\"message\":%q,\"code\":500}}\n\ndata: [DONE]\n\n", err) // the client may be gone
}

func (s *Server) tokenize(w http.ResponseWriter, r *http.Request) {
	q, body, err := read(r)
	var tokens []uint32
	if err == nil {
		tokens, _, err = s.prompt(r.Context(), &q, body)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"count": len(tokens), "max_model_len": maxLength, "tokens": tokens})
}

// detokenize answers under the name that vLLM has for the text, and the one that SGLang has.
func (s *Server) detokenize(w http.ResponseWriter, r *http.Request) {
	var q struct {
		Tokens []uint32 `json:"tokens"`
		Skip   *bool    `json:"skip_special_tokens"` // SGLang's; vLLM keeps them
	}
	err := json.NewDecoder(r.Body).Decode(&q)
	text := ""
	switch {
	case err != nil:
	case s.cfg.Tokenizer == nil:
		err = errNoTokenizer
	default:
		skip := s.cfg.Kind == KindSGLang
		if q.Skip != nil {
			skip = skip && *q.Skip
		}
		text, err = s.cfg.Tokenizer.words.Decode(q.Tokens, skip)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	name := "prompt"
	if s.cfg.Kind == KindSGLang {
		name = "text"
	}
	answer(w, http.StatusOK, map[string]any{name: text})
}

func (s *Server) version(w http.ResponseWriter, _ *http.Request) {
	answer(w, http.StatusOK, map[string]any{"version": s.cfg.Release})
}

func read(r *http.Request) (q request, body []byte, err error) {
	if body, err = io.ReadAll(r.Body); err == nil {
		err = json.Unmarshal(body, &q)
	}
	return q, body, err
}

// complete answers a request to generate.
func (s *Server) complete(w http.ResponseWriter, r *http.Request) {
	s.Requests.Add(1)
	s.Live.Add(1)
	defer s.Live.Add(-1)
	q, body, err := read(r)
	var prompt []uint32
	if err == nil && s.serves(q.Model) {
		var given bool
		if prompt, given, err = s.prompt(r.Context(), &q, body); err == nil && s.cfg.Seen != nil {
			s.cfg.Seen(body, prompt, given)
		}
	}
	output := s.cfg.Default
	if q.MaxTokens != nil {
		output = *q.MaxTokens
	}
	k := s.rankOf(r)
	switch {
	case err == nil && !s.serves(q.Model):
		fail(w, http.StatusNotFound, fmt.Errorf("the model %q does not exist", q.Model))
		return
	case err == nil && (len(prompt) == 0 || output < 1 || output > 1<<20 || k == nil):
		err = errRequest
	case err == nil && s.cfg.Transfer == TransferSGLang && s.cfg.Prefill && (q.Room == nil || q.Port == nil || q.Host == ""):
		err = errBootstrap
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	var fault Fault
	if s.cfg.Fault != nil {
		fault = s.cfg.Fault(r)
	}
	switch {
	case fault.Drop:
		hangUp(w)
		return
	case fault.Status != 0:
		fail(w, fault.Status, errBusy)
		return
	}
	tokens, texts, err := s.words(prompt, output)
	if err != nil {
		fail(w, http.StatusInternalServerError, err)
		return
	}
	if s.is(WrongLost) && (q.Transfer != nil && q.Transfer.RemotePrefill || q.Room != nil && !s.cfg.Prefill) {
		s.Lost.Add(1)
		failLate(w, q.Stream, errLost)
		return
	}
	received, cached := s.receive(r.Context(), &q, len(prompt))
	j, err := s.generate(r.Context(), k, &q, prompt, tokens, received)
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err)
		return
	}
	a := &reply{w: w, chat: q.Messages != nil, stream: q.Stream, usage: q.StreamOptions.IncludeUsage, model: q.Model,
		prompt: len(prompt), remote: cached, texts: texts, unreported: s.is(WrongUnreported)}
	if s.follow(r, j, a, fault) {
		s.offer(r, &q, a)
		a.end()
		return
	}
	k.abort(j) // nobody waits for the rest
	if r.Context().Err() != nil {
		s.Aborted.Add(1)
	}
}

// follow writes the answer as it is generated, and reports whether it is whole.
func (s *Server) follow(r *http.Request, j *job, a *reply, fault Fault) bool {
	select {
	case a.cached = <-j.cached:
		switch {
		case s.is(WrongClaims):
			a.cached = a.prompt
		case a.remote >= 0:
			a.cached = a.remote
		}
	case err := <-j.refused:
		fail(a.w, http.StatusServiceUnavailable, err)
		return false
	case <-s.stop:
		hangUp(a.w)
		return false
	case <-r.Context().Done():
		return false
	}
	for {
		select {
		case n, more := <-j.tokens:
			if !more {
				return true
			}
			for range n {
				if a.token(); fault.BreakAfter > 0 && a.sent >= fault.BreakAfter {
					hangUp(a.w)
					return false
				}
			}
		case <-s.stop:
			hangUp(a.w)
			return false
		case <-r.Context().Done():
			return false
		}
	}
}

// offer keeps a prompt for the engine that is to go on with it.
func (s *Server) offer(r *http.Request, q *request, a *reply) {
	switch {
	case s.cfg.Transfer == TransferVLLM && q.Transfer != nil && q.Transfer.RemoteDecode:
		if t := s.offered(r, a.prompt, a.cached); t != nil {
			s.kv.give(t.Request, a.prompt, a.cached)
			a.transfer = t
		}
	case s.cfg.Transfer == TransferMooncake && q.Transfer != nil && q.Transfer.RemoteDecode:
		s.kv.give(transferName(q.Transfer.ID), a.prompt, a.cached)
	case s.cfg.Transfer == TransferSGLang && s.cfg.Prefill:
		s.kv.give(roomName(*q.Room), a.prompt, a.cached)
	}
}

// hangUp ends the connection in the middle of an answer.
func hangUp(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		_ = conn.Close() // the client may be gone
	}
}

// reply is an answer in the making.
type reply struct {
	w             http.ResponseWriter
	chat, stream  bool
	usage         bool // at a stream's end
	model         string
	prompt        int
	cached        int
	remote        int // what of it the engine had that computed the prompt; below 0: none did
	texts         []string
	unreported    bool // nothing is said of what was cached
	sent          int
	transfer      *transfer // for the engine that goes on
	text, scratch []byte
}

func (a *reply) token() {
	t := a.texts[a.sent]
	a.sent++
	if !a.stream {
		a.text = append(a.text, t...)
		return
	}
	if a.sent == 1 {
		a.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	a.scratch = append(a.scratch[:0], `data: {"id":"cmpl-mock","object":"`...)
	if a.chat {
		a.scratch = append(a.scratch, `chat.completion.chunk","choices":[{"index":0,"delta":{"content":"`...)
		a.scratch = append(append(a.scratch, t...), `"},"finish_reason":null}]}`...)
	} else {
		a.scratch = append(a.scratch, `text_completion","choices":[{"index":0,"text":"`...)
		a.scratch = append(append(a.scratch, t...), `","finish_reason":null}]}`...)
	}
	a.write()
}

// write sends one event; the client may be gone.
func (a *reply) write() {
	a.scratch = append(a.scratch, "\n\n"...)
	_, _ = a.w.Write(a.scratch)
	_ = http.NewResponseController(a.w).Flush()
}

func (a *reply) end() {
	usage := `{"prompt_tokens":` + strconv.Itoa(a.prompt) + `,"completion_tokens":` + strconv.Itoa(a.sent) +
		`,"total_tokens":` + strconv.Itoa(a.prompt+a.sent)
	if !a.unreported {
		usage += `,"prompt_tokens_details":{"cached_tokens":` + strconv.Itoa(a.cached) + `}`
	}
	usage += "}"
	if a.stream {
		if a.usage {
			a.scratch = append(a.scratch[:0], `data: {"id":"cmpl-mock","choices":[],"usage":`+usage+`}`...)
			a.write()
		}
		a.scratch = append(a.scratch[:0], "data: [DONE]"...)
		a.write()
		return
	}
	choice := map[string]any{"index": 0, "finish_reason": "length", "text": string(a.text)}
	if a.chat {
		delete(choice, "text")
		choice["message"] = map[string]any{"role": "assistant", "content": string(a.text)}
	}
	whole := map[string]any{"id": "cmpl-mock", "model": a.model, "choices": []any{choice}, "usage": json.RawMessage(usage)}
	if a.transfer != nil {
		whole["kv_transfer_params"] = a.transfer.json()
	}
	answer(a.w, http.StatusOK, whole)
}
