package chat_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// agentTemplate does what templates of agents' models do: tools as JSON, a search from the
// end for the last question, reasoning taken from old answers, calls and their results.
const agentTemplate = `{%- if tools %}{{- '<|im_start|>system\n# Tools\n' }}{%- for tool in tools %}{{- "\n" }}{{- tool | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}
{%- set ns = namespace(seek=true, last=messages|length - 1) %}
{%- for m in messages[::-1] %}{%- set i = (messages|length - 1) - loop.index0 %}
{%- if ns.seek and m.role == "user" and not(m.content.startswith('<result>') and m.content.endswith('</result>')) %}{%- set ns.seek = false %}{%- set ns.last = i %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{%- if m.role == "user" or m.role == "system" %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>' + '\n' }}
{%- elif m.role == "assistant" %}
{%- set content = m.content %}{%- set thought = '' %}
{%- if m.reasoning_content is defined and m.reasoning_content is not none %}{%- set thought = m.reasoning_content %}
{%- elif '</think>' in m.content %}{%- set content = m.content.split('</think>')[-1].lstrip('\n') %}{%- set thought = m.content.split('</think>')[0].rstrip('\n') %}{%- endif %}
{%- if loop.index0 > ns.last and (loop.last or thought) %}{{- '<|im_start|>' + m.role + '\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
{%- else %}{{- '<|im_start|>' + m.role + '\n' + content }}{%- endif %}
{%- if m.tool_calls %}{%- for c in m.tool_calls %}{%- if c.function %}{%- set c = c.function %}{%- endif %}
{{- '\n<tool_call>\n{"name": "' }}{{- c.name }}{{- '", "arguments": ' }}{%- if c.arguments is string %}{{- c.arguments }}{%- else %}{{- c.arguments | tojson }}{%- endif %}{{- '}\n</tool_call>' }}
{%- endfor %}{%- endif %}{{- '<|im_end|>\n' }}
{%- elif m.role == "tool" %}{%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\n<result>\n' }}{{- m.content }}{{- '\n</result>' }}
{%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\n' }}{%- endif %}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}`

// agentBody is a request of 33 turns, each a question, two calls with their results of
// source code, and an answer: 320 KB, as many bytes as 80,000 tokens of code are.
func agentBody() string {
	quote := func(s string) string {
		b, _ := jinja.AppendJSON(nil, jinja.Str(s)) // a string can be written
		return string(b)
	}
	code := strings.Repeat("func (s *server) handle(w http.ResponseWriter, r *http.Request) {\n\tif err := s.check(r); err != nil {\n\t\thttp.Error(w, \"no\", 403)\n\t\treturn\n\t}\n}\n\n", 29)
	var b strings.Builder
	b.WriteString(`{"model": "m", "tools": [`)
	for i := range 12 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"type": "function", "function": {"name": "tool_%d", "description": "Reads a part of a file of the project and returns it.", "parameters": {"type": "object",
			"properties": {"path": {"type": "string", "description": "The path."}, "from": {"type": "integer"}, "to": {"type": "integer"}}, "required": ["path"]}}}`, i)
	}
	b.WriteString(`], "messages": [{"role": "system", "content": "You are a coding agent."}`)
	for i := range 33 {
		fmt.Fprintf(&b, `, {"role": "user", "content": "Question %d: why does this fail?"}`, i)
		b.WriteString(`, {"role": "assistant", "content": "I look.", "tool_calls": [`)
		for c := range 2 {
			if c > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, `{"id": "c%d_%d", "type": "function", "function": {"name": "tool_1", "arguments": "{\"path\": \"a/b.go\", \"from\": %d}"}}`, i, c, c)
		}
		b.WriteString(`]}`)
		for c := range 2 {
			fmt.Fprintf(&b, `, {"role": "tool", "tool_call_id": "c%d_%d", "content": %s}`, i, c, quote(code))
		}
		fmt.Fprintf(&b, `, {"role": "assistant", "content": "It fails because of %d."}`, i)
	}
	b.WriteString(`]}`)
	return b.String()
}

// BenchmarkAgent writes the prompt of a long conversation: from the body, and from what was
// read of it. KVATLAS_CHAT_TEMPLATE=file takes a model's own template.
func BenchmarkAgent(b *testing.B) {
	source := agentTemplate
	if file := os.Getenv("KVATLAS_CHAT_TEMPLATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			b.Fatal(err)
		}
		source = string(text)
	}
	m, err := chat.New(chat.Config{Template: source})
	if err != nil {
		b.Fatal(err)
	}
	body := agentBody()
	ctx := context.Background()
	first, err := m.Prompt(ctx, body, nil)
	if err != nil {
		b.Fatal(err)
	}
	v, err := jinja.ParseJSON(body)
	if err != nil {
		b.Fatal(err)
	}
	req, _ := v.AsDict()
	buf := make([]byte, 0, len(first.Text)+1024)
	b.Run("body", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if _, err := m.Prompt(ctx, body, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read", func(b *testing.B) {
		b.ReportMetric(float64(len(first.Text)), "bytes")
		b.ReportAllocs()
		for b.Loop() {
			if _, err := m.Write(ctx, req, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}
