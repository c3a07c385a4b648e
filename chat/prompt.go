package chat

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Prompt is a written prompt.
type Prompt struct {
	Text []byte
	// Media: parts of the conversation are images, sounds or videos. The text has the
	// template's placeholders, which the engine replaces by more.
	Media bool
	// AddSpecial: the engine adds special tokens when it encodes the text, as the request
	// asks for.
	AddSpecial bool
	// Plain are parts of Text, in order, in which no special token is looked for. Each is
	// encoded by itself, as is what stands between them.
	Plain []Span
}

// Span is from one byte to before another.
type Span struct{ From, To int }

// BadRequestError is what the engine would refuse as well.
type BadRequestError struct{ Msg string }

func (e *BadRequestError) Error() string { return e.Msg }

func bad(format string, args ...any) error { return &BadRequestError{fmt.Sprintf(format, args...)} }

func unsupported(format string, args ...any) error {
	return &jinja.UnsupportedError{What: fmt.Sprintf(format, args...)}
}

// transformersArgs are parameters of apply_chat_template itself: as a template's variables
// they would do something else there.
var transformersArgs = []string{
	"conversation", "tools", "chat_template", "tokenize", "padding", "truncation", "max_length",
	"return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "messages",
	"sanitize_control_tokens", "processor_kwargs", "continue_final_message",
}

// Prompt writes the prompt of a request to /v1/chat/completions, appended to buf.
func (m *Model) Prompt(ctx context.Context, body string, buf []byte) (Prompt, error) {
	v, err := jinja.ParseJSON(body)
	if err != nil {
		return Prompt{}, bad("the request: %v", err)
	}
	req, ok := v.AsDict()
	if !ok {
		return Prompt{}, bad("the request is not an object")
	}
	return m.Write(ctx, req, buf)
}

// Write is Prompt for a request that was read.
func (m *Model) Write(ctx context.Context, req *jinja.Dict, buf []byte) (Prompt, error) {
	var p Prompt
	if t := req.Get("chat_template"); !t.IsMissing() && !t.IsNone() {
		return p, unsupported("a chat template in the request")
	}
	if m.cfg.Engine == SGLang {
		return m.sglang(ctx, req, buf)
	}
	tools, err := m.toolsOf(req)
	if err != nil {
		return p, err
	}
	if m.cfg.Encoder == Harmony {
		return m.harmony(req, tools, buf)
	}
	c := m.plain
	if !tools.IsNone() {
		c = m.tools
	}
	v4 := m.cfg.Encoder == DeepSeekV4 || m.cfg.Encoder == DeepSeekV41
	conv := conversation{parts: c.parts || v4}
	msgs, err := conv.read(req.Get("messages"))
	if err != nil {
		return p, err
	}
	p.Media = conv.media
	if p.AddSpecial, err = flag(req, "add_special_tokens", false); err != nil {
		return p, err
	}
	kwargs, err := m.kwargs(req)
	if err != nil {
		return p, err
	}
	if m.cfg.Encoder == DeepSeekV32 {
		p.Text, err = deepseekV32(msgs, tools, kwargs, buf)
		return p, err
	}
	if v4 {
		raw, _ := req.Get("messages").AsList()
		p.Text, err = deepseekV4(m.cfg.Encoder == DeepSeekV41, raw, msgs, tools, kwargs, buf)
		return p, err
	}
	goOn, err := flag(req, "continue_final_message", false)
	if err != nil {
		return p, err
	}
	var final continuation
	if goOn {
		if final, err = continueFinal(msgs, c.source); err != nil {
			return p, err
		}
	}
	from := len(buf)
	text, err := c.tpl.Render(ctx, m.vars(msgs, tools, kwargs), jinja.Options{Now: m.cfg.Now(), Limits: m.cfg.Limits, Buf: buf})
	if err != nil {
		return p, err
	}
	if goOn {
		cut, err := final.cut(string(text[from:]))
		if err != nil {
			return p, err
		}
		text = text[:from+cut]
	}
	p.Text = text
	return p, nil
}

// vars are a template's variables.
func (m *Model) vars(msgs []jinja.Value, tools jinja.Value, kwargs *jinja.Dict) func(name string) jinja.Value {
	return func(name string) jinja.Value {
		switch name {
		case "messages":
			return jinja.List(msgs...)
		case "tools":
			return tools
		}
		if v := kwargs.Get(name); !v.IsMissing() {
			return v
		}
		if name == "documents" {
			return jinja.None
		}
		return m.cfg.Tokens[name]
	}
}

// flag reads a boolean field.
func flag(req *jinja.Dict, name string, def bool) (bool, error) {
	switch v := req.Get(name); {
	case v.IsMissing():
		return def, nil
	case v == jinja.True:
		return true, nil
	case v == jinja.False:
		return false, nil
	default:
		return false, unsupported("%s that is not true or false", name)
	}
}

// kwargs are the template's variables beside messages and tools: the server's defaults,
// the request's chat_template_kwargs over them, and its own fields over all.
func (m *Model) kwargs(req *jinja.Dict) (*jinja.Dict, error) {
	out := jinja.NewDict(8)
	if d, ok := m.cfg.Kwargs.AsDict(); ok {
		out = d.Clone()
	}
	own := jinja.NewDict(4)
	if v := req.Get("chat_template_kwargs"); !v.IsMissing() && !v.IsNone() {
		d, ok := v.AsDict()
		if !ok {
			return nil, bad("chat_template_kwargs is not an object")
		}
		own = d.Clone()
	}
	addPrompt, err := flag(req, "add_generation_prompt", true)
	if err != nil {
		return nil, err
	}
	if goOn, err := flag(req, "continue_final_message", false); err != nil {
		return nil, err
	} else if goOn && addPrompt {
		return nil, bad("continue_final_message and add_generation_prompt cannot both be true")
	}
	thinking := own.Get("enable_thinking")
	own.Set("add_generation_prompt", jinja.Bool(addPrompt))
	if docs := req.Get("documents"); !docs.IsMissing() && !docs.IsNone() {
		if _, ok := docs.AsList(); !ok {
			return nil, bad("documents is not an array")
		}
		own.Set("documents", docs)
	}
	if effort := req.Get("reasoning_effort"); !effort.IsMissing() && !effort.IsNone() {
		text, ok := effort.AsString()
		if !ok || !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "max"}, text) {
			return nil, bad("reasoning_effort is not one of those that there are")
		}
		own.Set("reasoning_effort", effort)
		if thinking.IsMissing() {
			own.Set("enable_thinking", jinja.Bool(text != "none"))
		}
	}
	for i := range own.Len() {
		k, v := own.At(i)
		name, _ := k.AsString()
		// What the request leaves at null or auto does not replace a default, nor is it defined.
		if text, _ := v.AsString(); v.IsNone() || text == "auto" {
			continue
		}
		out.Set(name, v)
	}
	for i := range out.Len() {
		k, _ := out.At(i)
		if name, _ := k.AsString(); slices.Contains(transformersArgs, name) {
			return nil, unsupported("%s in chat_template_kwargs", name)
		}
	}
	return out, nil
}

// toolsOf are the tools as the template sees them: None where there are none.
func (m *Model) toolsOf(req *jinja.Dict) (jinja.Value, error) {
	v := req.Get("tools")
	if v.IsMissing() || v.IsNone() {
		return jinja.None, nil
	}
	tools, ok := v.AsList()
	if !ok {
		return v, bad("tools is not an array")
	}
	if choice, _ := req.Get("tool_choice").AsString(); choice == "none" && m.cfg.DropTools {
		return jinja.None, nil
	}
	out := make([]jinja.Value, len(tools))
	for i, t := range tools {
		var err error
		if out[i], err = toolOf(t); err != nil {
			return v, fmt.Errorf("tool %d: %w", i, err)
		}
	}
	return jinja.List(out...), nil
}

// toolOf is a tool with its fields in the engine's order: those it knows first, null for
// those that are not given.
func toolOf(v jinja.Value) (jinja.Value, error) {
	tool, ok := v.AsDict()
	if !ok {
		return v, bad("not an object")
	}
	for i := range tool.Len() {
		if k, _ := tool.At(i); k != jinja.Str("type") && k != jinja.Str("function") {
			name, _ := k.AsString()
			return v, unsupported("the field %s of a tool, which depends on the engine's version", name)
		}
	}
	if typ := tool.Get("type"); !typ.IsMissing() && typ != jinja.Str("function") {
		return v, bad("a type other than function")
	}
	fn, ok := tool.Get("function").AsDict()
	if !ok {
		return v, bad("no function")
	}
	known := []string{"name", "description", "parameters"}
	d := jinja.NewDict(fn.Len() + 3)
	for i, name := range known {
		x := fn.Get(name)
		if x.IsMissing() {
			x = jinja.None
		}
		_, isText := x.AsString()
		_, isDict := x.AsDict()
		if name == "parameters" && !isDict && !x.IsNone() || name != "parameters" && !isText && (i == 0 || !x.IsNone()) {
			return v, bad("the function's %s has another type", name)
		}
		d.Set(name, x)
	}
	for i := range fn.Len() {
		k, x := fn.At(i)
		switch name, _ := k.AsString(); {
		case slices.Contains(known, name), name == "strict" && x.IsNone():
		case name == "strict" && (x == jinja.True || x == jinja.False):
			d.Set(name, x)
		default:
			return v, unsupported("the field %s of a function, which depends on the engine's version", name)
		}
	}
	out := jinja.NewDict(2)
	out.Set("type", jinja.Str("function"))
	out.Set("function", d.Value())
	return out.Value(), nil
}
