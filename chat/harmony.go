package chat

import (
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// Special tokens of gpt-oss's harmony.
const (
	hStart   = "<|start|>"
	hChannel = "<|channel|>"
	hMessage = "<|message|>"
	hEnd     = "<|end|>"
	hCall    = "<|call|>"
)

// harmony writes a conversation as vLLM does for gpt-oss: by the library openai_harmony, which
// knows no template. What stands between its special tokens are texts in which no special
// token is looked for, and each is encoded by itself.
type harmony struct {
	out   []byte
	plain []Span
	begin int // of the prompt in out
	names map[string]string
	msgs  []hMsg
}

// hMsg is a message as harmony has it: of one role, in one channel.
type hMsg struct {
	author    string // and to whom, where that stands before the channel
	channel   string
	content   []string
	call      bool
	assistant bool
}

func (m *Model) harmony(req *jinja.Dict, tools jinja.Value, buf []byte) (p Prompt, err error) {
	h := &harmony{out: buf, begin: len(buf), names: map[string]string{}}
	effort := "medium"
	if v := req.Get("reasoning_effort"); !v.IsMissing() && !v.IsNone() {
		if effort, _ = v.AsString(); effort != "low" && effort != "medium" && effort != "high" {
			return p, bad("reasoning_effort is not low, medium or high")
		}
	}
	list, ok := req.Get("messages").AsList()
	if !ok {
		return p, bad("messages is not an array")
	}
	msgs := make([]*jinja.Dict, len(list))
	for i, v := range list {
		if msgs[i], ok = v.AsDict(); !ok {
			return p, bad("message %d is not an object", i)
		}
	}
	system := "You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\nCurrent date: " +
		m.cfg.Now().Format("2006-01-02") + "\n\nReasoning: " + effort +
		"\n\n# Valid channels: analysis, commentary, final. Channel must be included for every message."
	told, functions, err := h.tools(tools)
	if err != nil {
		return p, err
	}
	if functions {
		system += "\nCalls to these tools must go to the commentary channel: 'functions'."
	}
	h.msgs = []hMsg{{author: "system", content: []string{system}}}
	var instructions text
	if len(msgs) > 0 && (roleOf(msgs[0]) == "system" || roleOf(msgs[0]) == "developer") {
		if instructions, err = flatten(msgs[0].Get("content")); err != nil {
			return p, err
		}
		msgs = msgs[1:]
	}
	if instructions.s != "" || functions {
		h.developer(instructions, told)
	}
	if err := h.read(msgs); err != nil {
		return p, err
	}
	h.write()
	return Prompt{Text: h.out, Plain: h.plain}, nil
}

// text is one that there may not be.
type text struct {
	s  string
	is bool
}

// flatten is the text of a content: its parts' one behind the other.
func flatten(v jinja.Value) (t text, err error) {
	if t.s, t.is = v.AsString(); t.is || v.IsMissing() || v.IsNone() {
		return t, nil
	}
	parts, ok := v.AsList()
	if !ok {
		return t, bad("a content that is neither text nor parts")
	}
	var b strings.Builder
	for _, p := range parts {
		s, is := p.AsString()
		if d, ok := p.AsDict(); ok {
			if v := d.Get("text"); !v.IsMissing() && !v.IsNone() {
				if s, is = v.AsString(); !is {
					return t, bad("a content part whose text is none")
				}
			}
			if err := textPartOnly(d); err != nil {
				return t, err
			}
		}
		b.WriteString(s)
		t.is = t.is || is
	}
	t.s = b.String()
	return t, nil
}

// textPartOnly refuses media, which harmony's engine leaves out without a word.
func textPartOnly(d *jinja.Dict) error {
	if !d.Get("prompt_cache_breakpoint").IsMissing() {
		return unsupported("prompt_cache_breakpoint of a content part") // it loses some contents in the engine
	}
	switch typ := textOf(d, "type"); typ {
	case "text", "input_text", "output_text", "refusal":
		return nil
	default:
		return unsupported("a content part of type %q", typ)
	}
}

func (h *harmony) developer(instructions text, tools string) {
	var sections []string
	if instructions.is {
		sections = append(sections, "# Instructions", instructions.s)
	}
	if tools != "" {
		sections = append(sections, tools)
	}
	h.msgs = append(h.msgs, hMsg{author: "developer", content: []string{strings.Join(sections, "\n\n")}})
}

func (h *harmony) read(msgs []*jinja.Dict) error {
	for _, m := range msgs {
		calls := m.Get("tool_calls")
		if calls.IsMissing() || calls.IsNone() {
			continue
		}
		if roleOf(m) != "assistant" {
			return unsupported("tool_calls of another role than the assistant's")
		}
		if _, err := toolCalls(calls); err != nil {
			return err
		}
		for _, c := range callsOf(m) {
			call, _ := c.AsDict()
			fn, _ := call.Get("function").AsDict()
			h.names[textOf(call, "id")] = textOf(fn, "name")
		}
	}
	for _, m := range msgs {
		if err := h.message(m); err != nil {
			return err
		}
	}
	return nil
}

func (h *harmony) message(m *jinja.Dict) error {
	content, err := flatten(m.Get("content"))
	if err != nil {
		return err
	}
	switch role := roleOf(m); role {
	case "assistant":
		return h.assistant(m, content)
	case "tool":
		h.msgs = append(h.msgs, hMsg{author: "functions." + h.names[textOf(m, "tool_call_id")], channel: "commentary to=assistant", content: []string{content.s}})
	case "system", "developer":
		if content.is {
			h.developer(content, "")
		}
	case "user":
		texts, err := eachText(m.Get("content"))
		if err != nil {
			return err
		}
		h.msgs = append(h.msgs, hMsg{author: role, content: texts})
	default:
		return bad("a message of role %q", role)
	}
	return nil
}

// eachText are the texts of a content's parts.
func eachText(v jinja.Value) ([]string, error) {
	if s, ok := v.AsString(); ok {
		return []string{s}, nil
	}
	parts, _ := v.AsList() // flatten has looked
	if len(parts) == 0 {
		return []string{""}, nil
	}
	texts := make([]string, len(parts))
	for i, p := range parts {
		d, ok := p.AsDict()
		if !ok {
			return nil, bad("a content part that is not an object")
		}
		v := d.Get("text")
		if texts[i], ok = v.AsString(); !ok && !v.IsMissing() {
			return nil, bad("a content part whose text is none")
		}
	}
	return texts, nil
}

func (h *harmony) assistant(m *jinja.Dict, content text) error {
	reasoning := m.Get("reasoning")
	if reasoning.IsMissing() || reasoning.IsNone() {
		reasoning = m.Get("reasoning_content")
	}
	thoughts, ok := reasoning.AsString()
	if !ok && !reasoning.IsMissing() && !reasoning.IsNone() {
		return bad("reasoning that is not a string")
	}
	say := func(channel string, texts ...string) {
		h.msgs = append(h.msgs, hMsg{author: "assistant", channel: channel, content: texts, assistant: true})
	}
	calls := callsOf(m)
	if len(calls) > 0 && content.s != "" {
		say("commentary", content.s)
	}
	if thoughts != "" {
		say("analysis", thoughts)
	}
	for _, c := range calls {
		call, _ := c.AsDict()
		fn, _ := call.Get("function").AsDict()
		h.msgs = append(h.msgs, hMsg{author: "assistant to=functions." + textOf(fn, "name"), channel: "commentary json", content: []string{textOf(fn, "arguments")}, call: true})
	}
	if len(calls) > 0 {
		return nil
	}
	texts, err := eachText(m.Get("content"))
	if err != nil {
		return err
	}
	if texts[0] != "" {
		say("final", texts...)
	}
	return nil
}

// write writes the messages, without what was thought before the last answer, and opens the
// assistant's next.
func (h *harmony) write() {
	last := -1
	for i, m := range h.msgs {
		if m.assistant && m.channel == "final" {
			last = i
		}
	}
	for i, m := range h.msgs {
		if i < last && m.channel == "analysis" {
			continue
		}
		h.out = append(h.out, hStart...)
		h.add(m.author)
		if m.channel != "" {
			h.out = append(h.out, hChannel...)
			h.add(m.channel)
		}
		h.out = append(h.out, hMessage...)
		for _, t := range m.content {
			h.add(t)
		}
		if m.call {
			h.out = append(h.out, hCall...)
		} else {
			h.out = append(h.out, hEnd...)
		}
	}
	h.out = append(h.out, hStart...)
	h.add("assistant")
}

// add writes a text that is encoded by itself.
func (h *harmony) add(s string) {
	from := len(h.out) - h.begin
	h.out = append(h.out, s...)
	if s != "" {
		h.plain = append(h.plain, Span{from, from + len(s)})
	}
}

// tools is what the model is told of its functions.
func (h *harmony) tools(tools jinja.Value) (section string, are bool, err error) {
	list, _ := tools.AsList()
	if len(list) == 0 {
		return "", false, nil
	}
	var b strings.Builder
	b.WriteString("# Tools\n\n## functions\n\nnamespace functions {\n\n")
	s := schema{}
	for _, t := range list {
		tool, _ := t.AsDict()
		fn, _ := tool.Get("function").AsDict()
		comment(&b, textOf(fn, "description"))
		b.WriteString("type " + textOf(fn, "name") + " = (")
		if params := fn.Get("parameters"); !params.IsNone() {
			b.WriteString("_: " + s.typeOf(params, ""))
			if !s.room(&b) {
				return "", true, s.err
			}
		}
		b.WriteString(") => any;\n\n")
	}
	b.WriteString("} // namespace functions")
	return b.String(), true, nil
}

// comment writes each line of a text as a comment; Rust's lines end with \n or \r\n.
func comment(b *strings.Builder, text string) {
	for line := range strings.Lines(text) {
		if l, ok := strings.CutSuffix(line, "\n"); ok {
			line = strings.TrimSuffix(l, "\r")
		}
		b.WriteString("// " + line + "\n")
	}
}
