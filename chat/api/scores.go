package api

import (
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// ScoreRule is how a model's engine makes prompts of the texts that it scores or ranks, which
// its settings and its kind decide (entrypoints/pooling/scoring/io_processor.py).
type ScoreRule string

// The rules. Others there are not of texts that one after the other make a prompt.
const (
	ScoreApart    ScoreRule = "apart"    // each text is a prompt, first those that are asked about: of models that embed
	ScoreJoined   ScoreRule = "joined"   // of a pair the second follows the first: of rankers without a separator (use_sep_token)
	ScoreTemplate ScoreRule = "template" // the chat template writes a pair, as messages of the roles query and document
)

// scored is the first prompt of a request to /score or /rerank, all of whose prompts one engine
// gets: of texts the request to /v1/completions. They begin with the same query, in all but odd cases.
func scored(req *jinja.Dict, pairs [][2]string, r Rules) (*jinja.Dict, error) {
	var one, two jinja.Value
	for _, names := range pairs {
		a, b := req.Get(names[0]), req.Get(names[1])
		if a.IsMissing() || b.IsMissing() {
			continue
		}
		if !one.IsMissing() {
			return nil, unsupported("texts by names of several forms of the request")
		}
		one, two = a, b
	}
	if one.IsMissing() {
		return nil, bad("a score without the texts")
	}
	first, n, err := scoreTexts(one)
	if err != nil {
		return nil, err
	}
	second, m, err := scoreTexts(two)
	if err != nil {
		return nil, err
	}
	if n > 1 && n != m {
		return nil, bad("%d texts for %d", n, m)
	}
	for _, name := range []string{"truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc"} {
		if v, there := given(req, name); there && v.Truth() {
			return nil, unsupported("%s", name)
		}
	}
	if v, there := given(req, "padding"); there && v != jinja.Str("do_not_pad") {
		return nil, unsupported("padding")
	}
	out := jinja.NewDict(8)
	copied(out, req, "model", "cache_salt")
	out.Set("add_special_tokens", jinja.True)
	switch r.Scores {
	case ScoreApart:
		out.Set("prompt", jinja.Str(first))
	case ScoreJoined:
		out.Set("prompt", jinja.Str(first+second))
	case ScoreTemplate:
		out.Set("messages", jinja.List(dict("role", "query", "content", first), dict("role", "document", "content", second)))
		out.Set("add_generation_prompt", jinja.False)
		return out, scoreKwargs(out, req)
	default:
		return nil, unsupported("a score, whose prompts the model's files do not tell of")
	}
	return out, nil
}

// scoreTexts returns the first of a text or a list of them, and how many there are.
func scoreTexts(v jinja.Value) (first string, n int, err error) {
	list := []jinja.Value{v}
	if is, ok := v.AsList(); ok {
		list = is
	}
	if len(list) == 0 {
		return "", 0, bad("a score of no text")
	}
	for i, v := range list {
		text, ok := v.AsString()
		switch _, isDict := v.AsDict(); {
		case isDict:
			return "", 0, unsupported("a score of what is no text")
		case !ok:
			return "", 0, bad("a text to be scored is no text")
		}
		if i == 0 {
			first = text
		}
	}
	return first, len(list), nil
}

// scoreKwargs are the template's variables, the instruction among them.
func scoreKwargs(out, req *jinja.Dict) error {
	kwargs := jinja.NewDict(4)
	if v, there := given(req, "chat_template_kwargs"); there {
		d, ok := v.AsDict()
		if !ok {
			return bad("chat_template_kwargs is not an object")
		}
		kwargs = d.Clone()
	}
	for _, name := range []string{"chat_template", "tools", "tokenize"} {
		if !kwargs.Get(name).IsMissing() {
			return bad("%s in chat_template_kwargs", name)
		}
	}
	for _, name := range []string{"add_generation_prompt", "continue_final_message", "documents"} {
		if !kwargs.Get(name).IsMissing() {
			return unsupported("%s in chat_template_kwargs", name)
		}
	}
	text, there, err := optional(req, "instruction")
	if err != nil {
		return err
	}
	if there && kwargs.Get("instruction").IsMissing() {
		kwargs.Set("instruction", jinja.Str(text))
	}
	if kwargs.Len() > 0 {
		out.Set("chat_template_kwargs", kwargs.Value())
	}
	return nil
}
