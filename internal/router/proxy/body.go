package proxy

import (
	"bytes"
	"strconv"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// body is what of a request's body the router looks at. Its slices are parts of
// the body.
type body struct {
	model, salt string
	modelAt     span     // of the model's name, with its quotes
	before      string   // the response that another goes on with
	file        string   // a batch's input
	tokens      []uint32 // the first prompt, if it is given as tokens
	text        []byte   // else the JSON of the prompt
	messages    []byte   // that of the messages
	beside      int      // bytes of what a chat's prompt has beside them
	rest        int      // tokens of the prompts behind the first, of texts by their bytes
	special     []byte   // the JSON of add_special_tokens; nil if it is not there
	input       []byte   // the JSON of what other APIs call so
	chat        bool
	effort      bool // reasoning_effort is given
	background  bool // the answer is not waited for
	stream      bool
	completion  bool // max_completion_tokens is given
	transfer    bool // fields may be, by which engines hand over prompts
	object      bool // the body is a JSON object
	output      int  // most tokens to generate; 0 if not said
	priority    int
	cacheKey    []byte // the JSON of prompt_cache_key, if it is a name
	agent       []byte // that of what metadata calls the session, as agent harnesses do
}

// parseBody reads the fields; others are skipped, and so are tokens of the prompt behind
// the first most. The error says what is wrong with the body as JSON.
func parseBody(data []byte, most int) (b body, err error) {
	var r jsonscan.Reader
	r.Reset(data)
	r.Open('{')
	for first := true; r.More('}', &first); {
		switch key := r.Key(); string(key) {
		case "model":
			r.Peek()
			b.modelAt.begin = r.Offset()
			b.model = text(&r)
			b.modelAt.end = r.Offset()
		case "previous_response_id":
			b.before = text(&r)
		case "input_file_id":
			b.file = text(&r)
		case "cache_salt":
			b.salt = text(&r)
		case promptField:
			b.prompt(&r, most)
		case "messages":
			b.chat, b.messages = true, r.Raw()
		case "tools", "documents", "chat_template_kwargs":
			b.beside += len(r.Raw())
		case "add_special_tokens":
			b.special = r.Raw()
		case "input":
			b.input = r.Raw()
		case "reasoning_effort":
			b.effort = string(r.Raw()) != "null"
		case "background":
			b.background = string(r.Raw()) == "true"
		case "stream":
			b.stream = string(r.Raw()) == "true"
		case "max_tokens", "max_completion_tokens", "max_output_tokens":
			b.completion = b.completion || string(key) == "max_completion_tokens"
			// Any other number is for the engine to judge.
			if n, err := strconv.ParseUint(string(r.Raw()), 10, 31); err == nil {
				b.output = int(n)
			}
		case "priority":
			b.priority, _ = strconv.Atoi(string(r.Raw())) // else it is for the engine to judge
		default:
			b.other(&r, key)
		}
	}
	r.End()
	b.object = r.Err() == nil
	return b, r.Err()
}

// other passes over a member that the router does not use.
func (b *body) other(r *jsonscan.Reader, key []byte) {
	if name := string(key); transferField(name) || nestingField(name) || idField(name) {
		b.transfer = handsOver(name, r.Raw()) || b.transfer
		return
	}
	switch string(key) {
	case "prompt_cache_key":
		b.cacheKey = sessionName(r.Raw())
	case "metadata":
		b.agent = agentName(r.Raw())
	default:
		r.Skip()
	}
}

// text reads a text, or skips a value of another type: the engine says what is
// wrong with it.
func text(r *jsonscan.Reader) string {
	if r.Peek() == '"' {
		return string(r.Str())
	}
	r.Skip()
	return ""
}

// prompt reads a text, tokens, or the first of a list of either, and how long the others are.
func (b *body) prompt(r *jsonscan.Reader, most int) {
	raw := r.Raw()
	if r.Err() != nil {
		return
	}
	b.text, b.tokens, b.rest = raw, nil, 0
	var in jsonscan.Reader
	in.Reset(raw)
	if in.Peek() != '[' {
		return
	}
	in.Open('[')
	switch c := in.Peek(); {
	case c == '"':
		if b.text = in.Raw(); in.Peek() == ',' {
			b.rest = (len(raw) - len(b.text)) / bytesPerToken
		}
	case c == '[':
		b.rest = bytes.Count(raw, comma) + 1 // of all, less the first's
		defer func() { b.rest = max(b.rest-len(b.tokens), 0) }()
		in.Open('[')
		fallthrough
	case c >= '0' && c <= '9':
		list := make([]uint32, 0, min(len(raw)/6, most))
		for first := true; len(list) < most && in.More(']', &first); {
			list = append(list, in.Uint32())
		}
		if in.Err() == nil {
			b.tokens = list
		}
	}
}
