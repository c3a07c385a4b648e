package chat

import (
	"strings"
	"unicode"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// finalTag marks the end of the final message while the prompt is written, as transformers
// does to find where to cut: with a space behind, by which it sees whether the template
// takes whitespace away.
const finalTag = "CONTINUE_FINAL_MESSAGE_TAG "

// continuation is a final message that is to be continued.
type continuation struct{ text string }

// continueFinal marks the final message in msgs.
func continueFinal(msgs []jinja.Value, source string) (continuation, error) {
	var c continuation
	if len(msgs) == 0 {
		return c, bad("continue_final_message without messages")
	}
	last, _ := msgs[len(msgs)-1].AsDict() // conversation made dicts
	if !strings.Contains(source, "content") {
		return c, bad("continue_final_message: the template does not read contents")
	}
	last = last.Clone()
	content := last.Get("content")
	if text, ok := content.AsString(); ok {
		c.text = text
		last.Set("content", jinja.Str(text+finalTag))
	} else {
		parts, _ := content.AsList() // text or parts
		parts = append([]jinja.Value(nil), parts...)
		i := len(parts) - 1
		for ; i >= 0; i-- {
			d, _ := parts[i].AsDict()
			if t := d.Get("text"); !t.IsMissing() {
				c.text, _ = t.AsString()
				parts[i] = textPart(c.text + finalTag)
				break
			}
		}
		if i < 0 {
			return c, bad("continue_final_message: the final message has no text")
		}
		last.Set("content", jinja.List(parts...))
	}
	msgs[len(msgs)-1] = last.Value()
	return c, nil
}

// cut returns where the prompt ends.
func (c *continuation) cut(prompt string) (int, error) {
	tag := strings.TrimSpace(finalTag)
	at := strings.LastIndex(prompt, tag)
	if at < 0 || !strings.Contains(prompt, strings.TrimFunc(c.text, isSpace)) {
		return 0, bad("continue_final_message: the template does not write the final message as it is")
	}
	if strings.HasPrefix(prompt[at:], finalTag) {
		return at, nil
	}
	return len(strings.TrimRightFunc(prompt[:at], isSpace)), nil
}

// isSpace is Python's.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }
