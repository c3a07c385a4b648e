package api

import (
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// messages reads a request to /v1/messages or its count_tokens
// (entrypoints/anthropic/protocol.py and serving.py: to_chat_completion_request).
func messages(req *jinja.Dict, r Rules) (*jinja.Dict, error) {
	list, ok := req.Get("messages").AsList()
	if !ok {
		return nil, bad("messages is not an array")
	}
	c := anthropic{rules: r.Template}
	if err := c.system(req.Get("system"), list); err != nil {
		return nil, err
	}
	for i, m := range list {
		d, ok := m.AsDict()
		if !ok {
			return nil, bad("message %d is not an object", i)
		}
		if err := c.message(d); err != nil {
			return nil, err
		}
	}
	out := jinja.NewDict(8)
	copied(out, req, "model", "cache_salt")
	out.Set("messages", jinja.List(c.out...))
	copied(out, req, "chat_template_kwargs")
	if err := thinking(out, req, r.Template); err != nil {
		return nil, err
	}
	return out, anthropicTools(out, req)
}

// anthropic is a conversation on its way into messages of chats.
type anthropic struct {
	rules *Template
	out   []jinja.Value
}

// billing begins a text of Claude Code that differs with each request, which the engine
// leaves out.
const billing = "x-anthropic-billing-header"

// system puts in front what the system says.
func (c *anthropic) system(v jinja.Value, list []jinja.Value) error {
	var texts []string
	if text, ok := v.AsString(); ok {
		texts = append(texts, text)
	} else if blocks, ok := v.AsList(); ok {
		said, err := systemBlocks(blocks)
		if err != nil {
			return err
		}
		texts = append(texts, said)
	} else if !v.IsMissing() && !v.IsNone() {
		return bad("a system that is neither text nor blocks")
	}
	for _, m := range list {
		d, ok := m.AsDict()
		if !ok {
			continue // message says so
		}
		if role, _ := d.Get("role").AsString(); role != "system" {
			continue
		}
		if c.rules == nil {
			return unsupported("a message of the system among the others, whose place the model's template decides")
		}
		if c.rules.SystemFirst {
			text, err := systemText(d)
			if err != nil {
				return err
			}
			texts = append(texts, text)
		}
	}
	if all := strings.Join(texts, ""); all != "" {
		c.out = append(c.out, dict("role", "system", "content", all))
	}
	return nil
}

// systemText is what a message of the system says.
func systemText(m *jinja.Dict) (string, error) {
	content := m.Get("content")
	if text, ok := content.AsString(); ok {
		if strings.HasPrefix(text, billing) {
			return "", nil
		}
		return text, nil
	}
	blocks, ok := content.AsList()
	if !ok {
		return "", bad("a content that is neither text nor blocks")
	}
	return systemBlocks(blocks)
}

func systemBlocks(blocks []jinja.Value) (string, error) {
	var said strings.Builder
	for _, v := range blocks {
		b, typ, err := block(v)
		if err != nil {
			return "", err
		}
		if typ == "tool_addition" || typ == "tool_removal" {
			return "", unsupported("a block of type %s", typ)
		}
		text, _, err := optional(b, "text")
		if err != nil {
			return "", err
		}
		if typ == "text" && !strings.HasPrefix(text, billing) {
			said.WriteString(text)
		}
	}
	return said.String(), nil
}

// block returns a content block and its type, which is one that the engine takes.
func block(v jinja.Value) (*jinja.Dict, string, error) {
	b, ok := v.AsDict()
	if !ok {
		return nil, "", bad("a content block that is not an object")
	}
	typ, _ := b.Get("type").AsString()
	switch typ {
	case "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking", "tool_addition", "tool_removal":
		return b, typ, nil
	}
	return nil, "", bad("a content block of type %.64q", typ)
}

// message reads one message, of which several may become.
func (c *anthropic) message(m *jinja.Dict) error {
	role, _ := m.Get("role").AsString()
	switch role {
	case "system":
		text, err := systemText(m)
		if err == nil && text != "" && !c.rules.SystemFirst {
			c.out = append(c.out, dict("role", "system", "content", text))
		}
		return err
	case "user", "assistant":
	default:
		return bad("a message of the role %.64q", role)
	}
	content := m.Get("content")
	if _, ok := content.AsString(); ok {
		c.out = append(c.out, dict("role", role, "content", content))
		return nil
	}
	blocks, ok := content.AsList()
	if !ok {
		return bad("a content that is neither text nor blocks")
	}
	t := turn{role: role}
	for _, v := range blocks {
		if err := c.block(&t, v); err != nil {
			return err
		}
	}
	if msg, ok := t.message(); ok {
		c.out = append(c.out, msg)
	}
	return nil
}

// turn is what the blocks of a message are put together to.
type turn struct {
	role     string
	parts    []jinja.Value
	text     jinja.Value // of the only part, where that is text
	calls    []jinja.Value
	thought  strings.Builder
	thinking bool
}

func (t *turn) say(text string) {
	t.text = jinja.Str(text)
	t.parts = append(t.parts, textPart(text))
}

func (t *turn) show(url string) {
	t.text = jinja.Value{}
	t.parts = append(t.parts, dict("type", "image_url", "image_url", dict("url", url)))
}

// message is what there is to say; a user's message without anything is none.
func (t *turn) message() (jinja.Value, bool) {
	if t.role == "user" && len(t.parts) == 0 {
		return jinja.Value{}, false
	}
	d := jinja.NewDict(4)
	d.Set("role", jinja.Str(t.role))
	if t.thinking {
		d.Set("reasoning", jinja.Str(t.thought.String()))
	}
	if len(t.calls) > 0 {
		d.Set("tool_calls", jinja.List(t.calls...))
	}
	switch {
	case len(t.parts) == 1 && !t.text.IsMissing():
		d.Set("content", t.text)
	case len(t.parts) > 0:
		d.Set("content", jinja.List(t.parts...))
	}
	return d.Value(), true
}

// block reads a block; results of tools become messages of their own, before the one that
// they are in.
func (c *anthropic) block(t *turn, v jinja.Value) error {
	b, typ, err := block(v)
	if err != nil {
		return err
	}
	switch typ {
	case "text":
		text, _, err := optional(b, "text")
		if err == nil && text != "" {
			t.say(text)
		}
		return err
	case "image":
		source, there := given(b, "source")
		if !there {
			return nil
		}
		url, err := imageURL(source)
		if err == nil && source.Truth() {
			t.show(url)
		}
		return err
	case "thinking":
		text, there, err := optional(b, "thinking")
		t.thinking = t.thinking || there
		t.thought.WriteString(text)
		return err
	case "tool_use":
		return t.call(b)
	case "tool_result":
		if t.role == "user" {
			return c.result(b)
		}
		return t.result(b)
	case "tool_addition", "tool_removal":
		return bad("a block of type %s in a message of the role %s", typ, t.role)
	}
	return nil // redacted_thinking, and tool_reference, which counts in results only
}

func (t *turn) call(b *jinja.Dict) error {
	id, _, err := optional(b, "id")
	if err != nil {
		return err
	}
	if id == "" {
		return unsupported("a tool_use without an id, which the engine makes up")
	}
	name, _, err := optional(b, "name")
	if err != nil {
		return err
	}
	input := jinja.NewDict(0).Value()
	if v, there := given(b, "input"); there {
		if _, ok := v.AsDict(); !ok {
			return bad("the input of a tool_use is not an object")
		}
		input = v
	}
	arguments, err := jinja.AppendJSON(nil, input)
	if err != nil {
		return err
	}
	t.calls = append(t.calls, dict("id", id, "type", "function", "function", dict("name", name, "arguments", string(arguments))))
	return nil
}

// result is a tool's result that the assistant is said to have: Python's text of it.
func (t *turn) result(b *jinja.Dict) error {
	v, _ := given(b, "content")
	text, isText := v.AsString()
	if !isText && v.Truth() {
		return unsupported("a tool_result of the assistant with blocks")
	}
	t.say("Tool result: " + text)
	return nil
}

// result is a tool's result, which the user brings.
func (c *anthropic) result(b *jinja.Dict) error {
	id, _, err := optional(b, "tool_use_id")
	if err != nil {
		return err
	}
	text, images, references, err := resultContent(b.Get("content"))
	if err != nil {
		return err
	}
	c.out = append(c.out, dict("role", "tool", "tool_call_id", id, "content", text))
	if len(images) > 0 {
		shown := turn{role: "user"}
		for _, url := range images {
			shown.show(url)
		}
		msg, _ := shown.message()
		c.out = append(c.out, msg)
	}
	if len(references) > 0 {
		c.out = append(c.out, dict("role", "tool", "tool_call_id", id, "content", jinja.List(references...)))
	}
	return nil
}

func resultContent(v jinja.Value) (text string, images []string, references []jinja.Value, err error) {
	if text, ok := v.AsString(); ok {
		return text, nil, nil, nil
	}
	items, ok := v.AsList()
	if !ok && !v.IsMissing() && !v.IsNone() {
		return "", nil, nil, bad("the content of a tool_result is neither text nor blocks")
	}
	var texts []string
	for _, item := range items {
		d, ok := item.AsDict()
		if !ok {
			return "", nil, nil, bad("a block of a tool_result that is not an object")
		}
		switch typ, _ := d.Get("type").AsString(); typ {
		case "text":
			t := d.Get("text")
			said, ok := t.AsString()
			if !ok && !t.IsMissing() {
				return "", nil, nil, bad("the text of a tool_result is no string")
			}
			texts = append(texts, said)
		case "image":
			url, err := imageURL(d.Get("source"))
			if err != nil {
				return "", nil, nil, err
			}
			if url != "" {
				images = append(images, url)
			}
		case "tool_reference":
			name := d.Get("tool_name")
			if !name.Truth() {
				name = d.Get("name")
			}
			if name.Truth() {
				references = append(references, dict("type", "tool_reference", "name", name))
			}
		}
	}
	return strings.Join(texts, "\n"), images, references, nil
}

// imageURL is an image as chats have it.
func imageURL(v jinja.Value) (string, error) {
	d, ok := v.AsDict()
	if !ok {
		if v.IsMissing() {
			d = jinja.NewDict(0)
		} else {
			return "", bad("the source of an image is not an object")
		}
	}
	text := func(name, otherwise string) (string, error) {
		v := d.Get(name)
		if v.IsMissing() {
			return otherwise, nil
		}
		s, ok := v.AsString()
		if !ok {
			return "", bad("the %s of an image is not a string", name)
		}
		return s, nil
	}
	if typ, _ := d.Get("type").AsString(); typ == "url" {
		return text("url", "")
	}
	media, err := text("media_type", "image/jpeg")
	if err != nil {
		return "", err
	}
	data, err := text("data", "")
	return "data:" + media + ";base64," + data, err
}

// thinking notes how much is to be thought.
func thinking(out, req *jinja.Dict, rules *Template) error {
	how := ""
	if v, there := given(req, "output_config"); there {
		d, ok := v.AsDict()
		if !ok {
			return bad("output_config is not an object")
		}
		var err error
		if how, _, err = optional(d, "effort"); err != nil {
			return err
		}
	}
	if v, there := given(req, "thinking"); there {
		d, ok := v.AsDict()
		if !ok {
			return bad("thinking is not an object")
		}
		switch typ, _ := d.Get("type").AsString(); typ {
		case "enabled", "adaptive":
		case "disabled":
			if rules == nil {
				return unsupported("thinking that is disabled, which is for the model's template to tell from little of it")
			}
			how = rules.Disabled
		default:
			return bad("thinking of type %.64q", typ)
		}
	}
	if how == "" {
		return nil
	}
	return think(out, how)
}

// anthropicTools are the request's tools and choice as chats have them.
func anthropicTools(out, req *jinja.Dict) error {
	if v, there := given(req, "tools"); there {
		list, ok := v.AsList()
		if !ok {
			return bad("tools is not an array")
		}
		tools := make([]jinja.Value, len(list))
		for i, t := range list {
			var err error
			if tools[i], err = anthropicTool(t); err != nil {
				return err
			}
		}
		out.Set("tools", jinja.List(tools...))
	}
	v, there := given(req, "tool_choice")
	if !there {
		return nil
	}
	choice, ok := v.AsDict()
	if !ok {
		return bad("tool_choice is not an object")
	}
	if typ, _ := choice.Get("type").AsString(); typ == "none" { // no other choice is seen in a prompt
		out.Set("tool_choice", jinja.Str("none"))
	}
	return nil
}

func anthropicTool(v jinja.Value) (jinja.Value, error) {
	t, ok := v.AsDict()
	if !ok {
		return v, bad("a tool that is not an object")
	}
	schema, ok := t.Get("input_schema").AsDict()
	if !ok {
		return v, bad("a tool without an input_schema")
	}
	if schema.Get("type").IsMissing() {
		schema = schema.Clone()
		schema.Set("type", jinja.Str("object"))
	}
	fn := jinja.NewDict(5)
	fn.Set("name", t.Get("name"))
	fn.Set("description", jinja.None)
	copied(fn, t, "description")
	fn.Set("parameters", schema.Value())
	copied(fn, t, "strict", "defer_loading")
	return dict("type", "function", "function", fn.Value()), nil
}
