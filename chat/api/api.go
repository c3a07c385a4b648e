package api

import (
	"fmt"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// The routes that Chat knows.
const (
	PathChat        = "/v1/chat/completions"
	PathMessages    = "/v1/messages"
	PathCountTokens = "/v1/messages/count_tokens"
	PathResponses   = "/v1/responses"
	PathEmbeddings  = "/v1/embeddings"
	PathClassify    = "/classify"
	PathScore       = "/score"
	PathRerank      = "/rerank"
)

// Rules are what a conversation depends on beside its request.
type Rules struct {
	// Template is what the model's template decides; nil if that is not known.
	Template *Template
	// Scores is how prompts of scores are made; "" if that is not known.
	Scores ScoreRule
	// Past returns what was said up to a response, as JSON: the messages, without those of
	// the system, and the answers. nil knows none.
	Past func(response string) (messages []jinja.Value, ok bool)
}

// Plain reports whether the template writes the messages of a score as they are: it is given
// texts, not parts, and no variables beside the request's.
func Plain(cfg chat.Config) bool {
	d, _ := cfg.Kwargs.AsDict()
	if d != nil && d.Len() > 0 || cfg.Template == "" {
		return false
	}
	switch cfg.ContentFormat {
	case chat.Text:
		return true
	case chat.Auto, "":
		tpl, err := jinja.Compile(cfg.Template)
		return err == nil && !tpl.ReadsParts()
	case chat.Parts:
	}
	return false
}

// Template is what the engine asks of a template once, by rendering with it.
type Template struct {
	// SystemFirst: a message of the system is refused behind others, so the engine puts all
	// of them into the first.
	SystemFirst bool
	// Disabled is the reasoning effort that stands for no thinking: none, or low where the
	// template does not tell that from an effort.
	Disabled string
}

// UnknownPastError is a response that goes on with one that is not known here.
type UnknownPastError struct{ ID string }

func (e *UnknownPastError) Error() string {
	return fmt.Sprintf("the conversation up to the response %.64q is not known", e.ID)
}

// Chat returns the request to /v1/chat/completions whose prompt is that of the request req to
// path, cached for the same salt; of a score it may be one to /v1/completions.
func Chat(path string, req *jinja.Dict, r Rules) (*jinja.Dict, error) {
	out, err := read(path, req, r)
	if err != nil {
		return nil, err
	}
	return out, nil
}

func read(path string, req *jinja.Dict, r Rules) (*jinja.Dict, error) {
	switch path {
	case PathChat:
		return effort(req)
	case PathMessages, PathCountTokens:
		return messages(req, r)
	case PathResponses:
		return responses(req, r)
	case PathEmbeddings, PathClassify:
		return pooled(req)
	case PathScore:
		return scored(req, [][2]string{{"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}, {"text_1", "text_2"}}, r)
	case PathRerank:
		if _, ok := req.Get("query").AsList(); ok {
			return nil, bad("a list of queries")
		}
		return scored(req, [][2]string{{"query", "documents"}}, r)
	}
	return nil, unsupported("the route %s", path)
}

func bad(format string, args ...any) error {
	return &chat.BadRequestError{Msg: fmt.Sprintf(format, args...)}
}

func unsupported(format string, args ...any) error {
	return &jinja.UnsupportedError{What: fmt.Sprintf(format, args...)}
}

// given returns a member that is there and not null.
func given(d *jinja.Dict, name string) (jinja.Value, bool) {
	v := d.Get(name)
	return v, !v.IsMissing() && !v.IsNone()
}

// optional returns a text that may be missing or null; there says that it is not.
func optional(d *jinja.Dict, name string) (text string, there bool, err error) {
	v, there := given(d, name)
	if !there {
		return "", false, nil
	}
	text, ok := v.AsString()
	if !ok {
		return "", false, bad("%s is not a string", name)
	}
	return text, true, nil
}

// dict makes an object of names and values in turn.
func dict(pairs ...any) jinja.Value {
	d := jinja.NewDict(len(pairs) / 2)
	for i := 0; i < len(pairs); i += 2 {
		name, v := pairs[i].(string), pairs[i+1] //nolint:forcetypeassert,gosec // written so below
		switch v := v.(type) {
		case jinja.Value:
			d.Set(name, v)
		case string:
			d.Set(name, jinja.Str(v))
		}
	}
	return d.Value()
}

func textPart(text string) jinja.Value { return dict("type", "text", "text", text) }

// copied puts members of src into dst, as they are.
func copied(dst, src *jinja.Dict, names ...string) {
	for _, name := range names {
		if v, ok := given(src, name); ok {
			dst.Set(name, v)
		}
	}
}

// think notes a request's reasoning effort: as a field of its own, and where /tokenize takes
// it, which does not know the field (vLLM 0.33.0, entrypoints/serve/tokenize/protocol.py).
// Both say the same, so it does not matter who reads which.
func think(out *jinja.Dict, effort string) error {
	kwargs := jinja.NewDict(4)
	if v, ok := given(out, "chat_template_kwargs"); ok {
		d, ok := v.AsDict()
		if !ok {
			return bad("chat_template_kwargs is not an object")
		}
		kwargs = d.Clone()
	}
	if kwargs.Get("enable_thinking").IsMissing() {
		kwargs.Set("enable_thinking", jinja.Bool(effort != "none"))
	}
	kwargs.Set("reasoning_effort", jinja.Str(effort))
	out.Set("chat_template_kwargs", kwargs.Value())
	out.Set("reasoning_effort", jinja.Str(effort))
	return nil
}

// effort is a chat's request that /tokenize understands as the engine's chat does.
func effort(req *jinja.Dict) (*jinja.Dict, error) {
	text, ok, err := optional(req, "reasoning_effort")
	if err != nil || !ok {
		return req, err
	}
	out := req.Clone()
	return out, think(out, text)
}

// pooled is a chat of an embedding or classification: no answer is begun
// (entrypoints/pooling/base/protocol.py).
func pooled(req *jinja.Dict) (*jinja.Dict, error) {
	if _, ok := given(req, "messages"); !ok {
		return nil, unsupported("a pooling request without messages")
	}
	if _, ok := given(req, "truncate_prompt_tokens"); ok {
		return nil, unsupported("truncate_prompt_tokens")
	}
	out := jinja.NewDict(8)
	copied(out, req, "model", "cache_salt", "messages", "add_generation_prompt", "continue_final_message", "add_special_tokens",
		"chat_template", "chat_template_kwargs")
	if out.Get("add_generation_prompt").IsMissing() {
		out.Set("add_generation_prompt", jinja.False)
	}
	return out, nil
}
