package chat

import (
	"errors"
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// conversation reads messages as the engine hands them to the template.
type conversation struct {
	parts bool // contents as lists of parts
	media bool
}

func (c *conversation) read(v jinja.Value) ([]jinja.Value, error) {
	msgs, ok := v.AsList()
	if !ok {
		return nil, bad("messages is not an array")
	}
	out := make([]jinja.Value, len(msgs))
	for i, m := range msgs {
		d, ok := m.AsDict()
		if !ok {
			return nil, bad("message %d is not an object", i)
		}
		var err error
		if out[i], err = c.message(d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// message makes of one message the dict that the template sees. Fields that the engine
// does not know are not in it.
func (c *conversation) message(m *jinja.Dict) (jinja.Value, error) {
	role, ok := m.Get("role").AsString()
	if !ok {
		return jinja.Value{}, bad("a message without a role")
	}
	content, err := c.content(m.Get("content"), role == "system")
	if err != nil {
		return jinja.Value{}, err
	}
	out := jinja.NewDict(m.Len() + 2)
	var reasoning jinja.Value
	if role == "assistant" {
		reasoning = m.Get("reasoning")
		if reasoning.IsMissing() || reasoning.IsNone() {
			reasoning = m.Get("reasoning_content")
		}
		if reasoning.IsNone() {
			reasoning = jinja.Value{}
		}
		if !reasoning.IsMissing() {
			if _, ok := reasoning.AsString(); !ok {
				return jinja.Value{}, bad("reasoning that is not a string")
			}
			// transformers puts the name that gpt-oss reads in front.
			out.Set("thinking", reasoning)
		}
	}
	out.Set("role", jinja.Str(role))
	if role == "tool" {
		content = c.toolContent(content)
	}
	out.Set("content", content)
	switch role {
	case "assistant":
		calls, err := toolCalls(m.Get("tool_calls"))
		if err != nil {
			return calls, err
		}
		if !calls.IsMissing() {
			out.Set("tool_calls", calls)
		}
		if !reasoning.IsMissing() {
			out.Set("reasoning", reasoning)
			out.Set("reasoning_content", reasoning)
		}
	case "tool":
		if id := m.Get("tool_call_id"); !id.IsMissing() {
			out.Set("tool_call_id", id)
		}
	}
	for _, name := range []string{"name", "task"} {
		if v := m.Get(name); !v.IsMissing() {
			if _, ok := v.AsString(); ok {
				out.Set(name, v)
			}
		}
	}
	if role == "developer" {
		if tools := m.Get("tools"); !tools.IsMissing() && !tools.IsNone() {
			return jinja.Value{}, unsupported("tools of a developer message")
		}
		out.Set("tools", jinja.None)
	}
	return out.Value(), nil
}

// content reads a message's content: text, parts, or nothing. Of parts as one text those
// without any do not count.
func (c *conversation) content(v jinja.Value, system bool) (jinja.Value, error) {
	if text, ok := v.AsString(); ok {
		if system && strings.HasPrefix(text, billing) {
			return c.content(jinja.List(v), system)
		}
		if c.parts {
			return jinja.List(textPart(text)), nil
		}
		return v, nil
	}
	list, ok := v.AsList()
	if !ok && !v.IsMissing() && !v.IsNone() {
		return v, bad("a content that is neither text nor parts")
	}
	var parts []jinja.Value
	var texts []string
	add := func(text string, of *jinja.Dict) {
		if system && strings.HasPrefix(text, billing) {
			if _, text, _ = strings.Cut(text, "\n"); text == "" {
				return
			}
		}
		parts = append(parts, partOf(text, of))
		if text != "" {
			texts = append(texts, text)
		}
	}
	for _, p := range list {
		if text, ok := p.AsString(); ok {
			add(text, nil)
			continue
		}
		d, ok := p.AsDict()
		if !ok {
			return v, bad("a content part that is not an object")
		}
		text, kind, err := readPart(d)
		if err != nil {
			return v, err
		}
		switch kind {
		case "":
		case "text":
			add(text, d)
		default:
			if !c.parts {
				// Where the medium's mark goes depends on the model.
				return v, unsupported("%s in a template that takes contents as text", kind)
			}
			c.media = true
			part := jinja.NewDict(1)
			part.Set("type", jinja.Str(kind))
			parts = append(parts, part.Value())
		}
	}
	if c.parts {
		return jinja.List(parts...), nil
	}
	return jinja.Str(strings.Join(texts, "\n")), nil
}

// billing begins a line that Claude Code puts before its system prompt, another in each
// request; the engine leaves it out.
const billing = "x-anthropic-billing-header"

func textPart(text string) jinja.Value { return partOf(text, nil) }

// partOf is a text part with the fields that the engine does not know, such as cache_control.
func partOf(text string, of *jinja.Dict) jinja.Value {
	d := jinja.NewDict(2)
	d.Set("type", jinja.Str("text"))
	d.Set("text", jinja.Str(text))
	for i := range lenOf(of) {
		k, v := of.At(i)
		if name, _ := k.AsString(); !slices.Contains(partFields, name) {
			d.Set(name, v)
		}
	}
	return d.Value()
}

// partFields are those that the engine knows.
var partFields = []string{
	"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio", "name",
	"prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url",
}

// readPart reads a content part: its text, or of what kind of media it is; no kind is a
// part that is left out.
func readPart(d *jinja.Dict) (text, kind string, err error) {
	typ, _ := d.Get("type").AsString()
	field := typ
	switch typ {
	case "text", "input_text", "output_text":
		field = "text"
	case "refusal", "thinking":
	case "image_url", "input_image":
		return "", "image", nil
	case "audio_url", "input_audio":
		return "", "audio", nil
	case "video_url":
		return "", "video", nil
	default:
		return "", "", unsupported("a content part of type %q", typ)
	}
	v := d.Get(field)
	if v.IsMissing() || v.IsNone() {
		if typ == "text" || typ == "refusal" {
			return "", "", nil
		}
		return "", "", bad("a content part without its text")
	}
	text, ok := v.AsString()
	if !ok {
		return "", "", bad("a content part whose text is none")
	}
	return text, "text", nil
}

// toolContent makes one text of the result of a tool, for templates know no other.
func (c *conversation) toolContent(v jinja.Value) jinja.Value {
	parts, ok := v.AsList()
	if !ok {
		return v
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		d, _ := p.AsDict()
		t := d.Get("text")
		if t.IsMissing() {
			return v
		}
		texts[i], _ = t.AsString()
	}
	return jinja.Str(strings.Join(texts, "\n"))
}

// toolCalls are the calls of a message with their arguments as values; a missing Value
// where there are none.
func toolCalls(v jinja.Value) (jinja.Value, error) {
	if v.IsMissing() || v.IsNone() {
		return jinja.Value{}, nil
	}
	calls, ok := v.AsList()
	if !ok {
		return v, bad("tool_calls is not an array")
	}
	if len(calls) == 0 {
		return jinja.Value{}, nil
	}
	out := make([]jinja.Value, len(calls))
	for i, call := range calls {
		d, ok := call.AsDict()
		if !ok {
			return v, bad("a tool call that is not an object")
		}
		fn, ok := d.Get("function").AsDict()
		if !ok {
			return v, unsupported("a tool call that is not of a function")
		}
		name, id, typ := fn.Get("name"), d.Get("id"), d.Get("type")
		for _, x := range []jinja.Value{name, id, typ} {
			if _, ok := x.AsString(); !ok {
				return v, bad("a tool call without id, type or name")
			}
		}
		args, err := arguments(fn.Get("arguments"))
		if err != nil {
			return v, err
		}
		// The engine's own order of fields.
		f := jinja.NewDict(2)
		f.Set("arguments", args)
		f.Set("name", name)
		c := jinja.NewDict(3)
		c.Set("id", id)
		c.Set("function", f.Value())
		c.Set("type", typ)
		out[i] = c.Value()
	}
	return jinja.List(out...), nil
}

// arguments reads a call's arguments, which are an object as JSON in a string; what is none is
// empty.
func arguments(v jinja.Value) (jinja.Value, error) {
	text, ok := v.AsString()
	if !ok {
		return v, bad("arguments of a tool call that are not a string")
	}
	args, err := jinja.ParseJSON(text)
	if err != nil {
		if limit := (*jinja.LimitError)(nil); errors.As(err, &limit) {
			return v, err
		}
		return jinja.NewDict(0).Value(), nil
	}
	if _, ok := args.AsDict(); !ok {
		return jinja.NewDict(0).Value(), nil
	}
	return args, nil
}
