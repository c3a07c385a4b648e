package api

import (
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// responses reads a request to /v1/responses (entrypoints/openai/responses/protocol.py and
// utils.py, renderers/online_renderer.py: render_responses).
func responses(req *jinja.Dict, r Rules) (*jinja.Dict, error) {
	if _, there := given(req, "prompt"); there {
		return nil, bad("a prompt template")
	}
	if v, there := given(req, "previous_input_messages"); there && v.Truth() {
		return nil, unsupported("previous_input_messages")
	}
	var all []jinja.Value
	instructions, _, err := optional(req, "instructions")
	if err != nil {
		return nil, err
	}
	if instructions != "" {
		all = append(all, dict("role", "system", "content", instructions))
	}
	id, there, err := optional(req, "previous_response_id")
	if err != nil {
		return nil, err
	}
	if there {
		if r.Past == nil {
			return nil, &UnknownPastError{id}
		}
		past, ok := r.Past(id)
		if !ok {
			return nil, &UnknownPastError{id}
		}
		all = append(all, past...)
	}
	said, goOn, err := Input(req.Get("input"))
	if err != nil {
		return nil, err
	}
	out := jinja.NewDict(10)
	copied(out, req, "model", "cache_salt")
	out.Set("messages", jinja.List(append(all, said...)...))
	copied(out, req, "chat_template_kwargs")
	if goOn {
		out.Set("add_generation_prompt", jinja.False)
		out.Set("continue_final_message", jinja.True)
	}
	if v, there := given(req, "reasoning"); there {
		d, ok := v.AsDict()
		if !ok {
			return nil, bad("reasoning is not an object")
		}
		how, there, err := optional(d, "effort")
		if err != nil {
			return nil, err
		}
		if there {
			if err := think(out, how); err != nil {
				return nil, err
			}
		}
	}
	return out, responsesTools(out, req)
}

// Input reads what a request to /v1/responses says anew, as messages of chats; goOn says that
// the last of them is to be continued.
func Input(v jinja.Value) (msgs []jinja.Value, goOn bool, err error) {
	if _, ok := v.AsString(); ok {
		return []jinja.Value{dict("role", "user", "content", v)}, false, nil
	}
	items, ok := v.AsList()
	if !ok {
		return nil, false, bad("an input that is neither text nor items")
	}
	var c answers
	for i, item := range items {
		d, ok := item.AsDict()
		if !ok {
			return nil, false, bad("input item %d is not an object", i)
		}
		if err := c.item(d); err != nil {
			return nil, false, err
		}
	}
	if len(items) > 0 {
		last, _ := items[len(items)-1].AsDict()
		if goOn, err = unfinished(last); err != nil {
			return nil, false, err
		}
	}
	return c.values(), goOn, nil
}

// unfinished reports whether an item is the beginning of an answer that is to be continued.
func unfinished(d *jinja.Dict) (bool, error) {
	typ, there, err := optional(d, "type")
	if err != nil || there && typ != "message" && typ != "reasoning" {
		return false, err
	}
	switch status, _, _ := optional(d, "status"); status {
	case "in_progress", "incomplete":
		if role, _ := d.Get("role").AsString(); typ != "reasoning" && role != "assistant" {
			return false, unsupported("an unfinished message of another than the assistant")
		}
		return true, nil
	}
	return false, nil
}

// answers are messages in the making: what belongs to one answer comes in several items.
type answers struct{ out []*jinja.Dict }

func (c *answers) values() []jinja.Value {
	out := make([]jinja.Value, len(c.out))
	for i, d := range c.out {
		out[i] = d.Value()
	}
	return out
}

func (c *answers) add(pairs ...any) {
	d, _ := dict(pairs...).AsDict()
	c.out = append(c.out, d)
}

// put gives the answer before a member that it lacks, or begins another answer with it.
func (c *answers) put(name string, v jinja.Value) {
	if n := len(c.out); n > 0 {
		if last := c.out[n-1]; last.Get("role") == jinja.Str("assistant") && last.Get(name).IsMissing() {
			last.Set(name, v)
			return
		}
	}
	c.add("role", "assistant", name, v)
}

// call adds a call to the answer before.
func (c *answers) call(id, name, arguments string) {
	call := dict("id", id, "type", "function", "function", dict("name", name, "arguments", arguments))
	if n := len(c.out); n > 0 {
		if last := c.out[n-1]; last.Get("role") == jinja.Str("assistant") {
			calls, _ := last.Get("tool_calls").AsList()
			last.Set("tool_calls", jinja.List(append(calls, call)...)) // nobody else has them yet
			return
		}
	}
	c.add("role", "assistant", "tool_calls", jinja.List(call))
}

func (c *answers) item(d *jinja.Dict) error {
	typ, there, err := optional(d, "type")
	if err != nil {
		return err
	}
	if !there {
		typ = "message"
	}
	switch typ {
	case "message":
		return c.message(d)
	case "reasoning":
		text, err := reasoningOf(d)
		if err == nil {
			c.put("reasoning", jinja.Str(text))
		}
		return err
	case "function_call":
		return c.functionCall(d)
	case "custom_tool_call":
		id, name, err := callOf(d)
		if err != nil {
			return err
		}
		input, _, err := optional(d, "input")
		if err != nil {
			return err
		}
		arguments, err := jinja.AppendJSON(nil, dict("input", input))
		c.call(id, name, string(arguments))
		return err
	case "function_call_output", "custom_tool_call_output":
		return c.output(d)
	}
	return bad("an input item of type %.64q", typ)
}

func (c *answers) message(d *jinja.Dict) error {
	role, _ := d.Get("role").AsString()
	content := d.Get("content")
	text, isText := content.AsString()
	switch role {
	case "assistant":
		if !isText {
			// Of an answer's parts the first is what counts.
			var err error
			if text, err = firstText(content); err != nil {
				return err
			}
		}
		c.put("content", jinja.Str(text))
		return nil
	case "user", "system", "developer":
		if !isText {
			if err := inputParts(content); err != nil {
				return err
			}
		}
		c.add("role", role, "content", content)
		return nil
	}
	return bad("an input message of the role %.64q", role)
}

// firstText is the text of an answer's first part.
func firstText(v jinja.Value) (string, error) {
	parts, ok := v.AsList()
	if !ok || len(parts) == 0 {
		return "", bad("an answer without a part")
	}
	for i, p := range parts {
		d, ok := p.AsDict()
		if !ok {
			return "", bad("a part of an answer that is not an object")
		}
		typ, _ := d.Get("type").AsString()
		_, isText := d.Get("text").AsString()
		if typ == "refusal" && i > 0 {
			continue
		}
		if typ != "output_text" || !isText {
			return "", unsupported("an answer with a part of type %.64q", typ)
		}
	}
	first, _ := parts[0].AsDict()
	text, _ := first.Get("text").AsString()
	return text, nil
}

// inputParts looks at the parts of a message, which go to the template as they are.
func inputParts(v jinja.Value) error {
	parts, ok := v.AsList()
	if !ok {
		return bad("a content that is neither text nor parts")
	}
	for _, p := range parts {
		d, ok := p.AsDict()
		if !ok {
			return bad("a content part that is not an object")
		}
		switch typ, _ := d.Get("type").AsString(); typ {
		case "input_text":
			if _, ok := d.Get("text").AsString(); !ok {
				return bad("a content part without its text")
			}
		case "input_image":
		default:
			return bad("a content part of type %.64q", typ)
		}
	}
	return nil
}

// reasoningOf is the thought of a reasoning item: its first part, or else that of its summary.
func reasoningOf(d *jinja.Dict) (string, error) {
	if v, there := given(d, "encrypted_content"); there && v.Truth() {
		return "", bad("encrypted reasoning")
	}
	summary, ok := d.Get("summary").AsList()
	if !ok {
		return "", bad("a reasoning item without a summary")
	}
	content, _ := d.Get("content").AsList()
	for _, list := range [][]jinja.Value{content, summary} {
		if len(list) == 0 {
			continue
		}
		part, ok := list[0].AsDict()
		if !ok {
			return "", bad("a part of a reasoning item that is not an object")
		}
		text, ok := part.Get("text").AsString()
		if !ok {
			return "", bad("a part of a reasoning item without its text")
		}
		return text, nil
	}
	return "", nil
}

// callOf is the id and the name of a call.
func callOf(d *jinja.Dict) (id, name string, err error) {
	id, isID := d.Get("call_id").AsString()
	name, isName := d.Get("name").AsString()
	if !isID || !isName {
		return "", "", bad("a call without call_id and name")
	}
	return id, name, nil
}

func (c *answers) functionCall(d *jinja.Dict) error {
	id, name, err := callOf(d)
	if err != nil {
		return err
	}
	arguments, ok := d.Get("arguments").AsString()
	if !ok {
		return bad("a function_call without arguments")
	}
	space, _, err := optional(d, "namespace")
	if err != nil {
		return err
	}
	if space != "" {
		name = flat(space, name)
	}
	c.call(id, name, arguments)
	return nil
}

func (c *answers) output(d *jinja.Dict) error {
	id, ok := d.Get("call_id").AsString()
	if !ok {
		return bad("the output of a call without call_id")
	}
	output := d.Get("output")
	if _, ok := output.AsString(); !ok {
		if err := inputParts(output); err != nil {
			return err
		}
	}
	c.add("role", "tool", "content", output, "tool_call_id", id)
	return nil
}

// flat is a tool's name with that of its namespace.
func flat(space, name string) string { return space + "__" + name }

// responsesTools are the request's tools as chats have them. Those that the engine has itself
// are not shown to the model (tool_parsers/utils.py: get_function_tools).
func responsesTools(out, req *jinja.Dict) error {
	v, there := given(req, "tools")
	if !there {
		return nil
	}
	list, ok := v.AsList()
	if !ok {
		return bad("tools is not an array")
	}
	if len(list) == 0 {
		return nil
	}
	tools := []jinja.Value{}
	for _, t := range list {
		d, ok := t.AsDict()
		if !ok {
			return bad("a tool that is not an object")
		}
		switch typ, _ := d.Get("type").AsString(); typ {
		case "function":
			tools = append(tools, functionTool(d, d.Get("name")))
		case "namespace":
			of, ok := d.Get("tools").AsList()
			space, isText := d.Get("name").AsString()
			if !ok || !isText {
				return bad("a namespace without name and tools")
			}
			for _, t := range of {
				f, ok := t.AsDict()
				if !ok {
					return bad("a tool that is not an object")
				}
				name, isText := f.Get("name").AsString()
				if f.Get("type") != jinja.Str("function") || !isText {
					return unsupported("a namespace with a tool that is no function")
				}
				tools = append(tools, functionTool(f, jinja.Str(flat(space, name))))
			}
		case "web_search", "web_search_preview", "code_interpreter", "container", "file_search", "image_generation", "computer_use_preview", "local_shell", "shell", "apply_patch", "mcp":
		default:
			return unsupported("a tool of type %.64q", typ)
		}
	}
	out.Set("tools", jinja.List(tools...))
	if choice, _ := req.Get("tool_choice").AsString(); choice == "none" {
		out.Set("tool_choice", jinja.Str("none"))
	}
	return nil
}

func functionTool(d *jinja.Dict, name jinja.Value) jinja.Value {
	fn := jinja.NewDict(5)
	fn.Set("name", name)
	fn.Set("description", jinja.None)
	fn.Set("parameters", jinja.None)
	copied(fn, d, "description", "parameters", "strict", "defer_loading")
	return dict("type", "function", "function", fn.Value())
}
