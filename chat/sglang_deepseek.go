package chat

import (
	"slices"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// sglangDeepseek appends the prompt of a DeepSeek-V3.2 in SGLang, which has another copy of the encoder than
// vLLM has, and hands it other messages: tools are the first system message's, which there always is; the
// text of thoughts is reasoning_content, and thinking is by that name alone. What is written is encoded with
// the special tokens that the tokenizer puts around texts, though it begins with one.
func (m *Model) sglangDeepseek(req *jinja.Dict, msgs []jinja.Value, tools jinja.Value, kwargs *jinja.Dict, buf []byte) (Prompt, error) {
	d := &deepseek{thinking: kwargs.Get("thinking").Truth(), reasoning: "reasoning_content", asked: -1, out: append(buf, dsBegin...)}
	for _, v := range msgs {
		msg, _ := v.AsDict() // sglangMessages made dicts
		for _, c := range callsOf(msg) {
			if _, ok := field(field(c, "function"), "name").AsString(); !ok {
				return Prompt{}, unsupported("a call without a name")
			}
		}
		d.msgs = append(d.msgs, msg)
	}
	if roleOf(d.msgs[0]) != "system" {
		system := jinja.NewDict(2)
		system.Set("role", jinja.Str("system"))
		d.msgs = slices.Insert(d.msgs, 0, system)
	}
	if !tools.IsNone() {
		all, err := sglangTools(req, true)
		if err != nil {
			return Prompt{}, err
		}
		d.msgs[0].Set("tools", all)
	}
	text, err := d.write(d.thinking)
	return Prompt{Text: text, AddSpecial: true}, err
}
