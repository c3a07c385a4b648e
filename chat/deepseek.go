package chat

import (
	"slices"
	"strings"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// What DeepSeek's encoders of V3.2 and later write; texts that models were trained with.
const (
	dsBegin      = "<｜begin▁of▁sentence｜>"
	dsEnd        = "<｜end▁of▁sentence｜>"
	dsUser       = "<｜User｜>"
	dsAssistant  = "<｜Assistant｜>"
	dsMark       = "｜DSML｜"
	thinkBegin   = "<think>"
	thinkEnd     = "</think>"
	dsUserPrefix = "\n\n# The user's message is: "
)

// dsTools is what V3.2 is told of its tools; % is dsMark.
const dsTools = `## Tools
You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<%function_calls>" block like the following as part of your reply to the user:
<%function_calls>
<%invoke name="$FUNCTION_NAME">
<%parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</%parameter>
...
</%invoke>
<%invoke name="$FUNCTION_NAME2">
...
</%invoke>
</%function_calls>
String and scalar parameters should be specified as is without any escaping or quotes, while lists and objects should use JSON format. The "string" attribute should be set to "true" for string type parameters and "false" for other types (numbers, booleans, arrays, objects).
If the thinking_mode is enabled, then after function results you should strongly consider outputting a thinking block. Here is an example:
<%function_calls>
...
</%function_calls>
<function_results>
...
</function_results>
<think>...thinking about results</think>
Here are the functions available in JSONSchema format:
<functions>
`

// deepseek writes a conversation as the encoder of DeepSeek-V3.2 does.
type deepseek struct {
	thinking  bool
	reasoning string // the field of a message that has what was thought
	msgs      []*jinja.Dict
	lastUser  int // -1 if there is none
	asked     int // the last message so far that is no tool's; -1 if there is none
	out       []byte
}

// deepseekV32 appends the prompt of messages, which have texts as contents.
func deepseekV32(msgs []jinja.Value, tools jinja.Value, kwargs *jinja.Dict, buf []byte) ([]byte, error) {
	d := &deepseek{thinking: kwargs.Get("thinking").Truth() || kwargs.Get("enable_thinking").Truth(), reasoning: "reasoning", asked: -1, out: append(buf, dsBegin...)}
	for _, m := range msgs {
		msg, _ := m.AsDict() // conversation made dicts
		d.msgs = append(d.msgs, msg)
	}
	if list, _ := tools.AsList(); len(list) > 0 {
		system := jinja.NewDict(2)
		system.Set("role", jinja.Str("system"))
		system.Set("tools", tools)
		d.msgs = slices.Insert(d.msgs, 0, system)
	}
	if len(d.msgs) == 0 {
		return nil, bad("no messages")
	}
	return d.write(d.thinking && roleOf(d.msgs[len(d.msgs)-1]) == "user")
}

// write appends all messages; forgets: what was thought before the last question goes.
func (d *deepseek) write(forgets bool) ([]byte, error) {
	d.lastUser = lastUser(d.msgs)
	if forgets {
		// The engine leaves out messages of other roles as well, and then does not find as many as it
		// counted.
		for _, m := range d.msgs[:max(d.lastUser, 0)] {
			switch roleOf(m) {
			case "user", "system", "tool", "assistant":
			default:
				return nil, bad("a message of a developer before the last user's")
			}
		}
	}
	for i, m := range d.msgs {
		if err := d.message(i, m); err != nil {
			return nil, err
		}
	}
	return d.out, nil
}

func lastUser(msgs []*jinja.Dict) int {
	for i := len(msgs) - 1; i >= 0; i-- {
		if r := roleOf(msgs[i]); r == "user" || r == "developer" {
			return i
		}
	}
	return -1
}

func roleOf(m *jinja.Dict) string { return textOf(m, "role") }

// textOf returns a field that is text; "" where it is none.
func textOf(m *jinja.Dict, name string) string {
	text, _ := m.Get(name).AsString()
	return text
}

func callsOf(m *jinja.Dict) []jinja.Value {
	calls, _ := m.Get("tool_calls").AsList()
	return calls
}

func (d *deepseek) add(texts ...string) {
	for _, t := range texts {
		d.out = append(d.out, t...)
	}
}

func (d *deepseek) message(i int, m *jinja.Dict) error {
	role, content := roleOf(m), textOf(m, "content")
	if role == "tool" {
		return d.result(i, content)
	}
	d.asked = i
	switch role {
	case "system":
		d.add(content)
		if tools, _ := m.Get("tools").AsList(); len(tools) > 0 {
			return d.tools(tools)
		}
	case "developer":
		if content == "" {
			return bad("a developer's message without content")
		}
		d.add(dsUser, dsUserPrefix, content, dsAssistant)
		d.think(i == d.lastUser)
	case "user":
		d.add(dsUser, content, dsAssistant)
		d.think(i == d.lastUser)
	case "assistant":
		return d.answer(i, m, content)
	default:
		return bad("a message of role %q", role)
	}
	return nil
}

// think opens the model's thoughts, or says that it has none.
func (d *deepseek) think(now bool) {
	if now && d.thinking {
		d.add(thinkBegin)
	} else {
		d.add(thinkEnd)
	}
}

func (d *deepseek) tools(tools []jinja.Value) error {
	d.add("\n\n", strings.ReplaceAll(dsTools, "%", dsMark))
	for i, t := range tools {
		if i > 0 {
			d.add("\n")
		}
		tool, _ := t.AsDict()
		var err error
		if d.out, err = jinja.AppendJSON(d.out, tool.Get("function")); err != nil {
			return err
		}
	}
	d.add("\n</functions>\n")
	return nil
}

// result writes what a tool gave: the one that the assistant's message before called at this
// place.
func (d *deepseek) result(i int, content string) error {
	from := d.asked
	asked := d.msgs[len(d.msgs)-1] // the engine looks there when a conversation begins with a result
	if from >= 0 {
		asked = d.msgs[from]
	}
	if i > 0 && (from < 0 || roleOf(asked) != "assistant") {
		return bad("a tool's message that follows no assistant's")
	}
	n, calls := i-from, len(callsOf(asked))
	if calls < n {
		return bad("a tool's message that no call asked for")
	}
	if n == 1 {
		d.add("\n\n<function_results>")
	}
	d.add("\n<result>", content, "</result>")
	if n == calls {
		d.add("\n</function_results>\n\n")
		d.think(i >= d.lastUser)
	}
	return nil
}

func (d *deepseek) answer(i int, m *jinja.Dict, content string) error {
	calls := callsOf(m)
	if d.thinking && i > d.lastUser {
		reasoning := textOf(m, d.reasoning)
		if reasoning == "" && len(calls) == 0 {
			return bad("an assistant's message after the last user's without reasoning or calls")
		}
		d.add(reasoning, thinkEnd)
	}
	d.add(content)
	var err error
	if d.out, err = dsCalls(d.out, calls, "function_calls", ""); err != nil {
		return err
	}
	d.add(dsEnd)
	return nil
}

// dsCalls appends an answer's calls; gap stands before the names of what is in the block.
func dsCalls(out []byte, calls []jinja.Value, block, gap string) ([]byte, error) {
	if len(calls) == 0 {
		return out, nil
	}
	add := func(texts ...string) {
		for _, t := range texts {
			out = append(out, t...)
		}
	}
	add("\n\n<", dsMark, block, ">\n")
	for _, c := range calls {
		call, _ := c.AsDict()
		fn, _ := call.Get("function").AsDict()
		args, _ := fn.Get("arguments").AsDict() // toolCalls made it one
		add("<", dsMark, gap, `invoke name="`, textOf(fn, "name"), "\">\n")
		for i := range args.Len() {
			if i > 0 {
				add("\n")
			}
			k, v := args.At(i)
			key, _ := k.AsString()
			text, isText := v.AsString()
			if isText {
				add("<", dsMark, gap, `parameter name="`, key, `" string="true">`, text)
			} else {
				add("<", dsMark, gap, `parameter name="`, key, `" string="false">`)
				var err error
				if out, err = jinja.AppendJSON(out, v); err != nil {
					return nil, err
				}
			}
			add("</", dsMark, gap, "parameter>")
		}
		add("\n</", dsMark, gap, "invoke>\n")
	}
	add("</", dsMark, block, ">")
	return out, nil
}
