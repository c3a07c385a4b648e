package chat

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// sglang writes a prompt by SGLang's rules (0.5.23, with transformers 5.19). What it does and
// vLLM does not: a final message of the assistant becomes the user's, parts are joined with a
// space and of media nothing is left in templates that take text, a tool's fields come in the
// client's order, and a template that fails is tried again with the functions of the tools
// alone.
func (m *Model) sglang(ctx context.Context, req *jinja.Dict, buf []byte) (p Prompt, err error) {
	for _, name := range []string{"reasoning", "thinking", "input_ids"} {
		if v := req.Get(name); !v.IsMissing() && !v.IsNone() {
			return p, unsupported("%s in a request to SGLang", name)
		}
	}
	tools, err := sglangTools(req, false)
	if err != nil {
		return p, err
	}
	c := m.plain
	if !tools.IsNone() {
		c = m.tools
	}
	list, ok := req.Get("messages").AsList()
	if !ok || len(list) == 0 {
		return p, bad("messages is not an array of some")
	}
	s := sglangMessages{parts: c.parts}
	msgs := make([]jinja.Value, len(list))
	for i, v := range list {
		d, ok := v.AsDict()
		if !ok {
			return p, bad("message %d is not an object", i)
		}
		if msgs[i], err = s.message(d); err != nil {
			return p, err
		}
	}
	p.Media = s.media
	goOn, err := flag(req, "continue_final_message", false)
	if err != nil {
		return p, err
	}
	if last, _ := msgs[len(msgs)-1].AsDict(); roleOf(last) == "assistant" {
		if text, ok := last.Get("content").AsString(); ok && goOn {
			return p, unsupported("continue_final_message in SGLang, which encodes that message by itself")
		} else if ok {
			user := jinja.NewDict(2)
			user.Set("role", jinja.Str("user"))
			user.Set("content", jinja.Str(text))
			msgs[len(msgs)-1] = user.Value()
		}
	}
	kwargs, err := m.sglangKwargs(req)
	if err != nil {
		return p, err
	}
	if m.cfg.Encoder == DeepSeekV32 {
		return m.sglangDeepseek(req, msgs, tools, kwargs, buf)
	}
	kwargs.Set("add_generation_prompt", jinja.True)
	o := jinja.Options{Now: m.cfg.Now(), Limits: m.cfg.Limits, Buf: buf}
	p.Text, err = c.tpl.Render(ctx, m.vars(msgs, tools, kwargs), o)
	var no *jinja.UnsupportedError
	var limit *jinja.LimitError
	if err == nil || errors.As(err, &no) || errors.As(err, &limit) || ctx.Err() != nil || tools.IsNone() {
		return p, err
	}
	flat, _ := tools.AsList()
	flat = slices.Clone(flat)
	for i, t := range flat {
		flat[i] = field(t, "function")
	}
	p.Text, err = c.tpl.Render(ctx, m.vars(msgs, jinja.List(flat...), kwargs), o)
	return p, err
}

// sglangRefuses says what a template needs that only SGLang itself does.
func sglangRefuses(source string) error {
	has := func(texts ...string) bool {
		for _, t := range texts {
			if !strings.Contains(source, t) {
				return false
			}
		}
		return true
	}
	switch {
	case has("[gMASK]<sop>", "Reasoning Effort:", "<tool_call>", "<arg_key>"):
		return unsupported("GLM-5.3's prompts in SGLang, which its template does not write")
	case has("low_effort", "truncate_history_thinking"), has("reasoning_effort", "no_think"):
		return unsupported("a template whose reasoning_effort SGLang makes another of")
	}
	return nil
}

// sglangKwargs are the template's variables: the request's, those that its reasoning_effort
// sets, and the server's where neither says anything.
func (m *Model) sglangKwargs(req *jinja.Dict) (*jinja.Dict, error) {
	own := jinja.NewDict(4)
	if v := req.Get("chat_template_kwargs"); !v.IsMissing() && !v.IsNone() {
		d, ok := v.AsDict()
		if !ok {
			return nil, bad("chat_template_kwargs is not an object")
		}
		own = d.Clone()
	}
	defaults := func(name string, v jinja.Value) {
		if own.Get(name).IsMissing() {
			own.Set(name, v)
		}
	}
	out := jinja.NewDict(own.Len() + 4)
	effort := req.Get("reasoning_effort")
	if !effort.IsMissing() && !effort.IsNone() {
		text, ok := effort.AsString()
		if !ok {
			return nil, unsupported("a reasoning_effort that is no text")
		}
		if !slices.Contains([]string{"none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"}, text) {
			return nil, unsupported("a reasoning_effort of no known name")
		}
		defaults("thinking", jinja.Bool(text != "none"))
		defaults("enable_thinking", jinja.Bool(text != "none"))
		out.Set("reasoning_effort", effort)
	}
	if d, ok := m.cfg.Kwargs.AsDict(); ok {
		for i := range d.Len() {
			k, v := d.At(i)
			name, _ := k.AsString()
			defaults(name, v)
		}
	}
	for i := range own.Len() {
		k, v := own.At(i)
		name, _ := k.AsString()
		if slices.Contains(transformersArgs, name) || name == "add_generation_prompt" {
			return nil, unsupported("%s in chat_template_kwargs", name)
		}
		out.Set(name, v)
	}
	return out, nil
}

// sglangTools are the tools as the template sees them: None where there are none. all: those that
// tool_choice does not name, too.
func sglangTools(req *jinja.Dict, all bool) (jinja.Value, error) {
	v := req.Get("tools")
	if v.IsMissing() || v.IsNone() {
		return jinja.None, nil
	}
	list, ok := v.AsList()
	if !ok {
		return v, bad("tools is not an array")
	}
	choice := req.Get("tool_choice")
	name, isText := choice.AsString()
	only := field(field(choice, "function"), "name")
	switch {
	case choice.IsMissing() || choice.IsNone() || isText && (name == "auto" || name == "required"):
		only = jinja.Value{}
	case isText && name == "none":
		return jinja.None, nil
	case only.IsMissing():
		return v, unsupported("a tool_choice of another kind")
	}
	var out []jinja.Value
	for i, t := range list {
		tool, err := sglangTool(t)
		if err != nil {
			return v, err
		}
		if all || only.IsMissing() || field(field(list[i], "function"), "name") == only {
			out = append(out, tool)
		}
	}
	if len(out) == 0 {
		return jinja.None, nil
	}
	return jinja.List(out...), nil
}

func sglangTool(v jinja.Value) (jinja.Value, error) {
	fn, ok := field(v, "function").AsDict()
	typ := field(v, "type")
	if _, isText := typ.AsString(); !ok || !isText && !typ.IsMissing() {
		return v, bad("a tool that is no function")
	}
	if typ.IsMissing() {
		typ = jinja.Str("function")
	}
	if d := field(v, "defer_loading"); !d.IsMissing() && !d.IsNone() {
		return v, unsupported("defer_loading of a tool")
	}
	known := []string{"description", "name", "parameters"}
	d := jinja.NewDict(fn.Len() + 3)
	for i := range fn.Len() {
		k, x := fn.At(i)
		switch name, _ := k.AsString(); {
		case slices.Contains(known, name), name == "strict" && (x == jinja.True || x == jinja.False):
			d.Set(name, x)
		case name == "strict" && !x.IsNone() || name == "defer_loading" && !x.IsNone() || name == "key_order":
			return v, unsupported("the field %s of a function", name)
		}
	}
	for _, name := range known {
		if d.Get(name).IsMissing() {
			d.Set(name, jinja.None)
		}
	}
	if _, ok := d.Get("name").AsString(); !ok {
		return v, bad("a function without a name")
	}
	if _, ok := d.Get("description").AsString(); !ok && !d.Get("description").IsNone() {
		return v, bad("a description that is no text")
	}
	if err := standardTypes(d.Get("parameters"), 0); err != nil {
		return v, err
	}
	out := jinja.NewDict(3)
	out.Set("type", typ)
	out.Set("function", d.Value())
	out.Set("defer_loading", jinja.None)
	return out.Value(), nil
}

// standardTypes refuses schemas with types of databases, which SGLang makes others of, and those
// that name a type twice.
func standardTypes(v jinja.Value, depth int) error {
	if depth > maxSchema {
		return unsupported("a tool's parameters nested deeper than %d", maxSchema)
	}
	items, _ := v.AsList()
	d, isDict := v.AsDict()
	if isDict {
		types, ok := d.Get("type").AsList()
		if !ok {
			types = []jinja.Value{d.Get("type")}
		}
		named := make(map[jinja.Value]bool, min(len(types), 8))
		for _, t := range types {
			name, ok := t.AsString()
			if ok && !slices.Contains([]string{"string", "number", "integer", "boolean", "object", "array", "null"}, name) || named[t] {
				return unsupported("a type of a tool's parameters that is not JSON schema's")
			}
			named[t] = true
		}
	}
	for i := range lenOf(d) {
		_, x := d.At(i)
		items = append(items[:len(items):len(items)], x)
	}
	for _, x := range items {
		if err := standardTypes(x, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// sglangMessages reads messages as SGLang hands them to the template.
type sglangMessages struct {
	parts bool
	media bool
}

func (s *sglangMessages) message(m *jinja.Dict) (jinja.Value, error) {
	role, ok := m.Get("role").AsString()
	if !ok {
		return jinja.Value{}, bad("a message without a role")
	}
	out := jinja.NewDict(6)
	content, parts, err := s.content(m.Get("content"))
	if err != nil {
		return content, err
	}
	if role == "user" {
		if v := m.Get("content"); v.IsMissing() || v.IsNone() {
			return content, bad("a user's message without content")
		}
		out.Set("role", jinja.Str(role))
		out.Set("content", content)
		return out.Value(), nil
	}
	role = strings.ToLower(role)
	if !slices.Contains([]string{"system", "assistant", "tool", "function", "developer", "latest_reminder", "root"}, role) {
		return content, bad("a message of role %q", role)
	}
	out.Set("role", jinja.Str(role))
	if !parts {
		out.Set("content", content)
	}
	for _, name := range []string{"tool_call_id", "name", "phase", "reasoning_content"} {
		v := m.Get(name)
		if v.IsMissing() || v.IsNone() {
			continue
		}
		if text, ok := v.AsString(); !ok || name == "phase" && text != "commentary" && text != "final_answer" {
			return v, bad("a message's %s of another kind", name)
		}
		out.Set(name, v)
	}
	calls, err := s.calls(m.Get("tool_calls"), role == "assistant")
	if err != nil {
		return calls, err
	}
	if !calls.IsNone() {
		out.Set("tool_calls", calls)
	}
	if v := m.Get("tools"); !v.IsMissing() && !v.IsNone() {
		return v, unsupported("tools of a message")
	}
	if v := m.Get("prefix"); !v.IsMissing() && !v.IsNone() {
		return v, unsupported("prefix of a message")
	}
	if parts {
		if texts, all := textsOf(content); all && role == "tool" {
			content = jinja.Str(strings.Join(texts, " "))
		}
		out.Set("content", content)
	}
	return out.Value(), nil
}

// textsOf are the texts of parts; false if there are others.
func textsOf(v jinja.Value) (texts []string, all bool) {
	list, _ := v.AsList()
	for _, p := range list {
		text, ok := field(p, "text").AsString()
		if !ok {
			return nil, false
		}
		texts = append(texts, text)
	}
	return texts, true
}

// content reads a message's content; parts: it is a list, behind the message's other fields.
func (s *sglangMessages) content(v jinja.Value) (content jinja.Value, parts bool, err error) {
	if v.IsMissing() || v.IsNone() {
		return jinja.Str(""), false, nil
	}
	if _, ok := v.AsString(); ok {
		return v, false, nil
	}
	list, ok := v.AsList()
	if !ok {
		return v, false, bad("a content that is neither text nor parts")
	}
	var items []jinja.Value
	var texts []string
	for _, p := range list {
		text, isText := field(p, "text").AsString()
		switch typ, _ := field(p, "type").AsString(); typ {
		case "text":
			if !isText {
				return v, false, bad("a text part without text")
			}
			items, texts = append(items, textPart(text)), append(texts, text)
		case "image_url", "video_url", "audio_url", "input_audio":
			if !s.parts {
				return v, false, unsupported("%s in a template that takes contents as text", typ)
			}
			s.media = true
		case "thinking", "reasoning", "tool_reference":
			return v, false, unsupported("a content part of type %q", typ)
		default:
			return v, false, bad("a content part of type %q", typ)
		}
	}
	if s.parts {
		return jinja.List(items...), true, nil
	}
	return jinja.Str(strings.Join(texts, " ")), false, nil
}

// calls are a message's; None where there are none. Of an assistant their arguments are values.
func (s *sglangMessages) calls(v jinja.Value, values bool) (jinja.Value, error) {
	if v.IsMissing() || v.IsNone() {
		return jinja.None, nil
	}
	list, ok := v.AsList()
	if !ok {
		return v, bad("tool_calls is not an array")
	}
	out := make([]jinja.Value, len(list))
	for i, call := range list {
		fn, ok := field(call, "function").AsDict()
		if typ := field(call, "type"); !ok || !typ.IsMissing() && typ != jinja.Str("function") {
			return v, bad("a tool call that is no function's")
		}
		if x := field(call, "index"); !x.IsMissing() && !x.IsNone() {
			return v, unsupported("index of a tool call")
		}
		args := orNone(fn.Get("arguments"))
		if text, ok := args.AsString(); ok && values {
			var err error
			if args, err = jinja.ParseJSON(text); err != nil || !json.Valid([]byte(text)) {
				return v, bad("arguments that are not JSON")
			}
			if _, ok := args.AsDict(); !ok {
				return v, bad("arguments that are no object")
			}
			if err := wholeNumbers(args); err != nil {
				return v, err
			}
		} else if _, isDict := args.AsDict(); !ok && !isDict && !args.IsNone() {
			return v, bad("arguments of another kind")
		}
		for _, x := range []jinja.Value{orNone(field(call, "id")), orNone(fn.Get("name"))} {
			if _, ok := x.AsString(); !ok && !x.IsNone() {
				return v, bad("a tool call's id or name is no text")
			}
		}
		f := jinja.NewDict(2)
		f.Set("name", orNone(fn.Get("name")))
		f.Set("arguments", args)
		c := jinja.NewDict(4)
		c.Set("id", orNone(field(call, "id")))
		c.Set("index", jinja.None)
		c.Set("type", jinja.Str("function"))
		c.Set("function", f.Value())
		out[i] = c.Value()
	}
	return jinja.List(out...), nil
}

func orNone(v jinja.Value) jinja.Value {
	if v.IsMissing() {
		return jinja.None
	}
	return v
}

// wholeNumbers refuses numbers that do not fit into 64 bits, which SGLang's parser of arguments
// makes floats of.
func wholeNumbers(v jinja.Value) error {
	items, _ := v.AsList()
	d, _ := v.AsDict()
	for i := range lenOf(d) {
		_, x := d.At(i)
		items = append(items[:len(items):len(items)], x)
	}
	for _, x := range items {
		if err := wholeNumbers(x); err != nil {
			return err
		}
	}
	if items != nil || d != nil {
		return nil
	}
	text, err := jinja.AppendJSON(nil, v)
	if err != nil || len(text) < 19 || text[0] != '-' && (text[0] < '0' || text[0] > '9') || strings.ContainsAny(string(text), ".e") {
		return err
	}
	_, err = strconv.ParseInt(string(text), 10, 64)
	if _, uerr := strconv.ParseUint(string(text), 10, 64); err != nil && uerr != nil {
		return unsupported("a number of more than 64 bits among the arguments of a call")
	}
	return nil
}
