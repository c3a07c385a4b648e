package chat

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// What DeepSeek's encoders of V4 and V4.1 write beside what V3.2's does.
const (
	ds4System   = "<｜System｜>"
	ds4Reminder = "<｜latest_reminder｜>"
	ds4Image    = "<｜deepseek_image｜>"
)

// ds4Tools is what they are told of their tools: # is dsMark, @ the block of calls, and ~ what V4.1
// has before each tag's name.
const ds4Tools = `

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<#@>" block like the following:

<#@>
<#~invoke name="$TOOL_NAME">
<#~parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</#~parameter>
...
</#~invoke>
<#~invoke name="$TOOL_NAME2">
...
</#~invoke>
</#@>

String parameters should be specified as is and set ` + "`string=\"true\"`" + `. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set ` + "`string=\"false\"`" + `.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

`

const (
	ds4Schemas = "### Available Tool Schemas\n\n"
	ds4Follow  = "\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.\n"
	ds4High    = "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n" +
		"You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.\n" +
		"Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\n\n"
	ds4Max = "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n" +
		"You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.\n" + //nolint:misspell // as the model knows it
		"Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)

// ds4Tasks are what a message's task opens.
var ds4Tasks = []string{"action", "query", "authority", "domain", "title", "read_url"}

// deepseek4 writes a conversation as the encoder of DeepSeek-V4 does, or that of V4.1.
type deepseek4 struct {
	v41            bool
	thinking, drop bool
	effort         string // what leads the conversation when it is thinking
	msgs           []ds4Message
	last           int // the message of the last user; -1 if there is none
	out            []byte
}

type ds4Message struct {
	role, text, reasoning, task string
	blocks                      []ds4Block // of a user
	calls, tools                []jinja.Value
}

// ds4Block is a part of a user's message: what was said, or what a tool gave.
type ds4Block struct {
	text, id string
	result   bool
}

// deepseekV4 appends the prompt of messages, whose contents are parts. raw are the messages as they
// came, of which V4.1 reads the contents itself.
func deepseekV4(v41 bool, raw, msgs []jinja.Value, tools jinja.Value, kwargs *jinja.Dict, buf []byte) ([]byte, error) {
	d := &deepseek4{v41: v41, drop: true, out: append(buf, dsBegin...)}
	if v := kwargs.Get("drop_thinking"); !v.IsMissing() {
		d.drop = v.Truth()
	}
	if err := d.effortOf(kwargs); err != nil {
		return nil, err
	}
	list := make([]ds4Message, 0, len(msgs)+1)
	for i, m := range msgs {
		x, err := d.read(raw[i], m)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
	if all, _ := tools.AsList(); len(all) > 0 {
		d.drop = false
		i := slices.IndexFunc(list, func(m ds4Message) bool { return m.role == "system" })
		if i < 0 {
			i, list = 0, slices.Insert(list, 0, ds4Message{role: "system"})
		}
		list[i].tools = all
	}
	d.merge(list)
	d.sort()
	if d.last = d.lastUser(); d.thinking && d.drop {
		kept := d.msgs[:0]
		for i, m := range d.msgs {
			switch {
			case i >= d.last, m.role == "user", m.role == "system", m.role == "latest_reminder":
			case m.role == "assistant":
				m.reasoning = ""
			default: // what a developer has said before
				continue
			}
			kept = append(kept, m)
		}
		d.msgs = kept
		d.last = d.lastUser()
	}
	for i := range d.msgs {
		if err := d.message(i); err != nil {
			return nil, err
		}
	}
	return d.out, nil
}

// effortOf reads whether the model is to think, and how much.
func (d *deepseek4) effortOf(kwargs *jinja.Dict) error {
	d.thinking = kwargs.Get("thinking").Truth() || kwargs.Get("enable_thinking").Truth() ||
		kwargs.Get("thinking").IsMissing() && kwargs.Get("enable_thinking").IsMissing()
	v := kwargs.Get("reasoning_effort")
	how, isText := v.AsString()
	if how == "none" {
		d.thinking = false
		return nil
	}
	if d.v41 {
		budget := map[string]int{"": 75, "low": 50, "high": 75, "xhigh": 75, "max": 100}[how]
		if !isText && !v.IsMissing() && !v.IsNone() {
			return unsupported("a reasoning_effort that is no text")
		}
		if budget == 0 || isText && how == "" {
			return bad("a reasoning_effort that DeepSeek-V4.1 does not know")
		}
		d.effort = "Reasoning Effort: " + strconv.Itoa(budget) + " (range 1-100, the higher the value, the more thorough the reasoning)\n\n"
		return nil
	}
	switch how {
	case "max":
		d.effort = ds4Max
	case "low", "minimal", "medium":
	default:
		d.effort = ds4High
	}
	return nil
}

// read reads a message as the engine has it, and as it came.
func (d *deepseek4) read(raw, msg jinja.Value) (m ds4Message, err error) {
	r, _ := raw.AsDict() // conversation has read it
	x, _ := msg.AsDict()
	m = ds4Message{role: roleOf(x), reasoning: textOf(x, "reasoning"), task: textOf(x, "task"), calls: callsOf(x)}
	if v := x.Get("task"); !v.IsMissing() && m.task == "" && m.role != "tool" {
		return m, unsupported("an empty task")
	}
	content := x.Get("content")
	if d.v41 {
		for _, name := range []string{"tools", "response_format", "wo_eos", "content_blocks", "mask"} {
			if v := r.Get(name); !v.IsMissing() && !v.IsNone() {
				return m, unsupported("%s of a message to DeepSeek-V4.1", name)
			}
		}
		switch m.role {
		case "system", "developer", "user", "assistant", "tool":
		default:
			return m, bad("a message of role %q", m.role)
		}
		m.reasoning = ""
		if v := r.Get("reasoning"); !v.IsMissing() {
			m.reasoning, _ = v.AsString()
		} else {
			m.reasoning = textOf(r, "reasoning_content")
		}
		if content = r.Get("content"); m.role == "user" && content.IsNone() {
			return m, bad("a user's message whose content is null")
		}
	}
	if m.text, err = ds4Text(content); err == nil && d.v41 && strings.Contains(m.text+m.reasoning, ds4Image) {
		err = unsupported("the mark of an image in a text")
	}
	switch m.role {
	case "tool":
		id := textOf(x, "tool_call_id")
		m = ds4Message{role: "tool", blocks: []ds4Block{{text: m.text, id: id, result: true}}}
	case "user":
		m.blocks = []ds4Block{{text: m.text}}
	}
	return m, err
}

// ds4Text is a content as one text.
func ds4Text(v jinja.Value) (string, error) {
	if text, ok := v.AsString(); ok {
		return text, nil
	}
	parts, _ := v.AsList()
	texts := make([]string, len(parts))
	for i, p := range parts {
		d, ok := p.AsDict()
		if !ok {
			return "", bad("a content part that is not an object")
		}
		switch typ, _ := d.Get("type").AsString(); typ {
		case "text", "input_text", "output_text":
			t := d.Get("text")
			if texts[i], ok = t.AsString(); !ok && !t.IsMissing() {
				return "", bad("a content part without its text")
			}
		case "image", "image_url", "input_image":
			texts[i] = ds4Image
		default:
			return "", bad("a content part of type %q", typ)
		}
	}
	return strings.Join(texts, "\n\n"), nil
}

// merge makes messages of users of tools' results, and one of those that follow one another.
func (d *deepseek4) merge(list []ds4Message) {
	for _, m := range list {
		if m.role != "user" && m.role != "tool" {
			d.msgs = append(d.msgs, m)
			continue
		}
		if n := len(d.msgs); n > 0 && d.msgs[n-1].role == "user" && (m.role == "tool" || d.msgs[n-1].task == "") {
			d.msgs[n-1].blocks = append(d.msgs[n-1].blocks, m.blocks...)
			continue
		}
		m.role = "user"
		d.msgs = append(d.msgs, m)
	}
}

// sort puts tools' results into the order of the calls before them.
func (d *deepseek4) sort() {
	order := map[string]int{}
	for _, m := range d.msgs {
		if m.role == "assistant" && len(m.calls) > 0 {
			clear(order)
			for i, c := range m.calls {
				call, _ := c.AsDict()
				if id := textOf(call, "id"); id != "" {
					order[id] = i
				}
			}
		}
		if m.role != "user" || len(order) == 0 {
			continue
		}
		var results []ds4Block
		for _, b := range m.blocks {
			if b.result {
				results = append(results, b)
			}
		}
		slices.SortStableFunc(results, func(a, b ds4Block) int { return cmp.Compare(order[a.id], order[b.id]) })
		for i, b := range m.blocks {
			if b.result {
				m.blocks[i], results = results[0], results[1:]
			}
		}
	}
}

func (d *deepseek4) lastUser() int {
	for i := len(d.msgs) - 1; i >= 0; i-- {
		m := &d.msgs[i]
		switch {
		case m.role == "developer", d.v41 && m.role == "system" && i > 0:
			return i
		case m.role == "user" && (!d.v41 || slices.ContainsFunc(m.blocks, func(b ds4Block) bool { return !b.result })):
			return i
		}
	}
	return -1
}

func (d *deepseek4) add(texts ...string) {
	for _, t := range texts {
		d.out = append(d.out, t...)
	}
}

func (d *deepseek4) message(i int) error {
	m := &d.msgs[i]
	effort := ""
	if i == 0 && d.thinking {
		effort = d.effort
	}
	if d.v41 && (effort != "" || m.role == "system") {
		d.add(ds4System)
	}
	d.add(effort)
	switch m.role {
	case "system":
		d.add(m.text)
		if err := d.tools(m.tools); err != nil {
			return err
		}
	case "developer":
		if m.text == "" {
			return bad("a developer's message without content")
		}
		d.add(dsUser, m.text)
	case "user":
		d.add(dsUser)
		for n, b := range m.blocks {
			if n > 0 {
				d.add("\n\n")
			}
			if b.result {
				d.add("<tool_result>", b.text, "</tool_result>")
			} else {
				d.add(b.text)
			}
		}
	case "latest_reminder":
		d.add(ds4Reminder, m.text)
	case "assistant":
		if d.thinking && (i == 0 || d.msgs[i-1].task == "") && (!d.drop || i > d.last) {
			d.add(m.reasoning, thinkEnd)
		}
		d.add(m.text)
		block, gap := d.tags()
		var err error
		if d.out, err = dsCalls(d.out, m.calls, block, gap); err != nil {
			return err
		}
		d.add(dsEnd)
	default:
		return bad("a message of role %q", m.role)
	}
	return d.turn(i, m)
}

// tags are the block of calls, and what stands before the names in it.
func (d *deepseek4) tags() (block, gap string) {
	if d.v41 {
		return " calls", " "
	}
	return "tool_calls", ""
}

func (d *deepseek4) tools(list []jinja.Value) error {
	if len(list) == 0 {
		return nil
	}
	block, gap := d.tags()
	d.add("\n\n## Tools", strings.NewReplacer("#", dsMark, "@", block, "~", gap).Replace(ds4Tools), ds4Schemas)
	for i, t := range list {
		if i > 0 {
			d.add("\n")
		}
		var err error
		if d.out, err = jinja.AppendJSON(d.out, field(t, "function")); err != nil {
			return err
		}
	}
	d.add(ds4Follow)
	return nil
}

// turn writes what opens the answer to a message.
func (d *deepseek4) turn(i int, m *ds4Message) error {
	next := ""
	if i+1 < len(d.msgs) {
		if next = d.msgs[i+1].role; next != "assistant" && next != "latest_reminder" {
			return nil
		}
	}
	if m.task != "" {
		if !slices.Contains(ds4Tasks, m.task) {
			return bad("a task that there is not")
		}
		if m.task == "action" {
			d.add(dsAssistant)
			d.think(d.thinking)
		}
		d.add("<｜", m.task, "｜>")
		return nil
	}
	switch opens := m.role == "system" && (d.v41 && i > 0 || !d.v41 && next != "latest_reminder"); {
	case opens, m.role == "user", m.role == "developer":
		d.add(dsAssistant)
		d.think(d.thinking && (!d.drop || i >= d.last))
	}
	return nil
}

func (d *deepseek4) think(is bool) {
	if is {
		d.add(thinkBegin)
	} else {
		d.add(thinkEnd)
	}
}
