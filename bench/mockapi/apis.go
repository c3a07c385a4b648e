package mockapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Other APIs are answered through chat's: the request becomes one to /v1/chat/completions with
// the same prompt, and its answer that of the API.

// past is what responses said, by their ids.
type past struct {
	mu sync.Mutex
	n  int
	of map[string][]jinja.Value
}

// maxPast bounds the responses that are kept; the oldest are forgotten all at once.
const maxPast = 4096

// keep gives a response's conversation a name.
func (p *past) keep(messages []jinja.Value) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil || len(p.of) >= maxPast {
		p.of = make(map[string][]jinja.Value)
	}
	p.n++
	id := fmt.Sprintf("resp_%p_%d", p, p.n)
	p.of[id] = messages
	return id
}

func (p *past) answered(id, text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	d := jinja.NewDict(2)
	d.Set("role", jinja.Str("assistant"))
	d.Set("content", jinja.Str(text))
	p.of[id] = append(p.of[id], d.Value())
}

// said is what a response that goes on with another one has before it: not the system's word.
func (p *past) said(id string) (out []jinja.Value, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, ok := p.of[id]
	for _, m := range all {
		if d, _ := m.AsDict(); d.Get("role") != jinja.Str("system") {
			out = append(out, m)
		}
	}
	return out, ok
}

// kept tells of a response, or that the engine has none of the name.
func (s *Server) kept(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	if _, ok := s.past.said(id); !ok {
		fail(w, http.StatusNotFound, errors.New("no such response"))
		return
	}
	answer(w, http.StatusOK, map[string]any{"id": id, "object": "response"})
}

// translated makes of a request the one to /v1/chat/completions that has the same prompt; nil if
// it has been refused.
func (s *Server) translated(w http.ResponseWriter, r *http.Request, path string) (req, chat *jinja.Dict) {
	body, err := io.ReadAll(r.Body)
	var v jinja.Value
	if err == nil {
		v, err = jinja.ParseJSON(string(body))
	}
	req, ok := v.AsDict()
	if err == nil && !ok {
		err = errors.New("not an object")
	}
	if err == nil {
		chat, err = api.Chat(path, req, api.Rules{Template: &api.Template{Disabled: "none"}, Scores: s.cfg.Scores, Past: s.past.said})
	}
	var lost *api.UnknownPastError
	if errors.As(err, &lost) {
		fail(w, http.StatusNotFound, err)
		return nil, nil
	} else if err != nil {
		fail(w, http.StatusBadRequest, err)
		return nil, nil
	}
	return req, chat
}

// render says the tokens of a request's prompt, as vLLM does at each API's path with /render.
func (s *Server) render(w http.ResponseWriter, r *http.Request) {
	if prompt, ok := s.promptOf(w, r, strings.TrimSuffix(r.URL.Path, "/render")); ok {
		answer(w, http.StatusOK, object{"token_ids": prompt})
	}
}

// count answers /v1/messages/count_tokens.
func (s *Server) count(w http.ResponseWriter, r *http.Request) {
	if prompt, ok := s.promptOf(w, r, r.URL.Path); ok {
		answer(w, http.StatusOK, object{"input_tokens": len(prompt), "context_management": object{"original_input_tokens": len(prompt)}})
	}
}

// promptOf returns the tokens of a request to the path; false if it has been refused.
func (s *Server) promptOf(w http.ResponseWriter, r *http.Request, path string) (prompt []uint32, ok bool) {
	_, chat := s.translated(w, r, path)
	if chat == nil {
		return nil, false
	}
	body, err := jinja.AppendJSON(nil, chat.Value())
	var q request
	if err == nil {
		err = json.Unmarshal(body, &q)
	}
	if err == nil {
		prompt, _, err = s.prompt(r.Context(), &q, body)
	}
	if err != nil {
		fail(w, http.StatusBadRequest, err)
	}
	return prompt, err == nil
}

// score answers /score and /rerank, having computed the first prompt: scores nobody looks at.
func (s *Server) score(w http.ResponseWriter, r *http.Request) {
	_, chat := s.translated(w, r, r.URL.Path[strings.LastIndexByte(r.URL.Path, '/'):])
	if chat == nil {
		return
	}
	chat.Set("max_tokens", jinja.Int(1))
	body, err := jinja.AppendJSON(nil, chat.Value())
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	asked := r.Clone(r.Context())
	asked.Body = io.NopCloser(bytes.NewReader(body))
	done := unread{header: http.Header{}, status: http.StatusOK}
	s.complete(&done, asked)
	answer(w, done.status, object{"object": "list", "data": []any{}, "results": []any{}})
}

// unread is where an answer goes that nobody reads.
type unread struct {
	header http.Header
	status int
}

func (u *unread) Header() http.Header         { return u.header }
func (u *unread) WriteHeader(status int)      { u.status = status }
func (u *unread) Write(b []byte) (int, error) { return len(b), nil }

// otherwise answers a request by another API than OpenAI's older ones.
func (s *Server) otherwise(w http.ResponseWriter, r *http.Request) {
	req, chat := s.translated(w, r, r.URL.Path)
	if chat == nil {
		return
	}
	if params, is := req.Get(paramsName).AsDict(); is && !s.since(takesOthers) {
		without := jinja.NewDict(params.Len())
		for i := range params.Len() {
			if k, v := params.At(i); k != jinja.Str("prompt_token_ids") {
				name, _ := k.AsString()
				without.Set(name, v)
			}
		}
		req.Set(paramsName, without.Value())
	}
	for _, name := range []string{"stream", "max_tokens", "cache_salt", paramsName, "bootstrap_host", "bootstrap_port", "bootstrap_room"} {
		if x := req.Get(name); !x.IsMissing() {
			chat.Set(name, x)
		}
	}
	usage := jinja.NewDict(1)
	usage.Set("include_usage", jinja.True)
	chat.Set("stream_options", usage.Value())
	model, _ := req.Get("model").AsString()
	t := translator{ResponseWriter: w, path: r.URL.Path, model: model}
	if t.path == api.PathResponses {
		if most := req.Get("max_output_tokens"); !most.IsMissing() {
			chat.Set("max_tokens", most)
		}
		messages, _ := chat.Get("messages").AsList()
		t.id, t.past = s.past.keep(messages), &s.past
	}
	text, err := jinja.AppendJSON(nil, chat.Value())
	if err != nil {
		fail(w, http.StatusBadRequest, err)
		return
	}
	asked := r.Clone(r.Context())
	asked.Body = io.NopCloser(bytes.NewReader(text))
	s.complete(&t, asked)
}

const paramsName = "kv_transfer_params"

// translator takes a chat's answer and gives that of another API. Each write is a whole
// answer or a whole event.
type translator struct {
	http.ResponseWriter
	path, id, model string
	past            *past // of responses
	status          int
	begun           bool
	text            strings.Builder
	usage           usage
}

// Unwrap is for http.ResponseController.
func (t *translator) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (t *translator) WriteHeader(status int) {
	t.status = status
	t.ResponseWriter.WriteHeader(status)
}

type usage struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Details    struct {
		Cached int `json:"cached_tokens"`
	} `json:"prompt_tokens_details"`
}

// Write implements http.ResponseWriter.
func (t *translator) Write(b []byte) (int, error) {
	if t.status >= http.StatusBadRequest {
		return t.ResponseWriter.Write(b)
	}
	data, event := bytes.CutPrefix(b, []byte("data: "))
	if string(bytes.TrimSpace(data)) == "[DONE]" {
		t.end()
		return len(b), nil
	}
	var c struct {
		Choices []struct {
			Delta, Message struct{ Content string }
		}
		Usage  *usage
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return 0, err
	}
	if c.Usage != nil {
		t.usage = *c.Usage
	}
	if !event {
		if len(c.Choices) > 0 {
			t.text.WriteString(c.Choices[0].Message.Content)
		}
		if t.past != nil {
			t.past.answered(t.id, t.text.String())
		}
		whole := t.whole()
		if c.Params != nil {
			whole[paramsName] = c.Params
		}
		text, err := json.Marshal(whole)
		if err == nil {
			_, err = t.ResponseWriter.Write(text)
		}
		return len(b), err
	}
	t.begin()
	if len(c.Choices) > 0 {
		t.delta(c.Choices[0].Delta.Content)
	}
	return len(b), nil
}

type object = map[string]any

// send writes an event.
func (t *translator) send(kind string, members object) {
	if members == nil {
		members = object{}
	}
	members["type"] = kind
	text, err := json.Marshal(members)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(t.ResponseWriter, "event: %s\ndata: %s\n\n", kind, text) // the client may be gone
	_ = http.NewResponseController(t.ResponseWriter).Flush()
}

// whole is the answer, as far as it has come.
func (t *translator) whole() object {
	if t.past == nil {
		return object{"id": "msg_mock", "type": "message", "role": "assistant", "model": t.model, "stop_reason": "max_tokens", "stop_sequence": nil,
			"content": []any{object{"type": "text", "text": t.text.String()}}, "usage": t.used()}
	}
	return object{"id": t.id, "object": "response", "created_at": 1, "model": t.model, "status": "completed", "parallel_tool_calls": true, "temperature": 1,
		"top_p": 1, "tool_choice": "auto", "tools": []any{}, "output": []any{t.item("completed")}, "usage": t.used()}
}

func (t *translator) item(status string) object {
	content := []any{}
	if status == "completed" {
		content = append(content, t.part())
	}
	return object{"type": "message", "id": "msg_mock", "role": "assistant", "status": status, "content": content}
}

func (t *translator) part() object {
	return object{"type": "output_text", "text": t.text.String(), "annotations": []any{}}
}

func (t *translator) used() object {
	u := t.usage
	if t.past == nil {
		return object{"input_tokens": u.Prompt - u.Details.Cached, "cache_read_input_tokens": u.Details.Cached, "output_tokens": u.Completion}
	}
	return object{"input_tokens": u.Prompt, "input_tokens_details": object{"cached_tokens": u.Details.Cached}, "output_tokens": u.Completion,
		"output_tokens_details": object{"reasoning_tokens": 0}, "total_tokens": u.Prompt + u.Completion}
}

// begin sends what goes before the first token.
func (t *translator) begin() {
	if t.begun {
		return
	}
	t.begun = true
	if t.past == nil {
		m := t.whole()
		m["content"], m["stop_reason"] = []any{}, nil
		t.send("message_start", object{"message": m})
		t.send("content_block_start", object{"index": 0, "content_block": object{"type": "text", "text": ""}})
		return
	}
	r := t.whole()
	r["status"], r["output"], r["usage"] = "in_progress", []any{}, nil
	t.send("response.created", object{"response": r, "sequence_number": 0})
	t.send("response.in_progress", object{"response": r, "sequence_number": 1})
	t.send("response.output_item.added", object{"output_index": 0, "item": t.item("in_progress"), "sequence_number": 2})
	t.send("response.content_part.added", object{"output_index": 0, "content_index": 0, "item_id": "msg_mock", "part": t.part(), "sequence_number": 3})
}

func (t *translator) delta(text string) {
	t.text.WriteString(text)
	if t.past == nil {
		t.send("content_block_delta", object{"index": 0, "delta": object{"type": "text_delta", "text": text}})
		return
	}
	t.send("response.output_text.delta", object{"output_index": 0, "content_index": 0, "item_id": "msg_mock", "delta": text, "logprobs": []any{}, "sequence_number": 4})
}

func (t *translator) end() {
	if t.past == nil {
		t.send("content_block_stop", object{"index": 0})
		t.send("message_delta", object{"delta": object{"stop_reason": "max_tokens", "stop_sequence": nil}, "usage": t.used()})
		t.send("message_stop", nil)
		return
	}
	t.past.answered(t.id, t.text.String())
	t.send("response.output_text.done", object{"output_index": 0, "content_index": 0, "item_id": "msg_mock", "text": t.text.String(), "logprobs": []any{}, "sequence_number": 5})
	t.send("response.content_part.done", object{"output_index": 0, "content_index": 0, "item_id": "msg_mock", "part": t.part(), "sequence_number": 6})
	t.send("response.output_item.done", object{"output_index": 0, "item": t.item("completed"), "sequence_number": 7})
	t.send("response.completed", object{"response": t.whole(), "sequence_number": 8})
}
