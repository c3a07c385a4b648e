package chattest

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// Gen makes random conversations, as JSON.
type Gen struct {
	*rand.Rand
	// API: messages are as clients send them to an engine's API, which checks them.
	API bool
	// plain: the conversation has what every template takes, texts as contents above all.
	plain *bool
}

// NewGen makes a generator of a seed.
func NewGen(seed uint64) Gen { return Gen{Rand: rand.New(rand.NewPCG(seed, 17)), plain: new(bool)} }

func pick[T any](g Gen, of ...T) T { return of[g.IntN(len(of))] }

func (g Gen) chance(percent int) bool { return g.IntN(100) < percent }

var words = []string{
	"hello", "the quick brown fox", "Paris", "naïve café", "北京天气", "Привет мир", "مرحبا", "🙂👩‍👩‍👧", "ß", "ΑΣ", "İ", "ﬁn",
	"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<|im_end|>", "<|eot_id|>",
	"[INST]", "{{ x }}", "{% if %}", "\\n", "\n", "\n\n", " ", "\t", "  trailing ", "it's", `say "hi"`, "a\\b", "\u0000", "\u001f",
	"\u007f", "\u0085", "\u00a0", "\u2028", "\ufeff", "1.5", "{\"a\": 1}", "<a href='x'>&amp;</a>", "```json\n{}\n```", "é́",
	"func main() {\n\tfmt.Println(\"x\")\n}\n", "http://example.com/?q=1&b=2", "</answer>", "<image>", "None", "True", "%s %d", "#", "---",
}

// Text is a text as it may stand in a message.
func (g Gen) Text() string {
	switch g.IntN(20) {
	case 0:
		return ""
	case 1:
		return pick(g, " ", "\n", "\n \n", "\t")
	}
	var b strings.Builder
	if g.chance(10) {
		b.WriteString("<think>\n" + pick(g, words...) + "\n</think>\n\n")
	}
	if g.chance(4) {
		b.WriteString("<tool_response>" + pick(g, words...) + "</tool_response>")
	}
	for range 1 + g.IntN(8) {
		b.WriteString(pick(g, words...))
		if g.chance(70) {
			b.WriteByte(' ')
		}
	}
	return b.String()
}

// name is an identifier.
func (g Gen) name() string {
	return pick(g, "get_weather", "search", "a", "run-command", "read_file", "f1", "übergabe", "type", "items", "query", "x_y", "Keys")
}

func (g Gen) obj(fields ...string) string { return "{" + strings.Join(fields, ", ") + "}" }

func field(name, val string) string { return Quote(name) + ": " + val }

// Any is any JSON value.
func (g Gen) Any(depth int) string {
	if depth <= 0 {
		return pick(g, "null", "true", "false", "0", "-7", "3", "1.5", "1e20", "1e-7", "123456789012345678901234567890", "0.1", "-0.0",
			Quote(g.Text()), `"\ud83d"`, `"\ud83d\ude00"`, `"\u00e9"`, `"x"`)
	}
	switch g.IntN(4) {
	case 0:
		items := make([]string, g.IntN(4))
		for i := range items {
			items[i] = g.Any(depth - 1)
		}
		return "[" + strings.Join(items, ", ") + "]"
	case 1, 2:
		return g.object(depth)
	}
	return g.Any(0)
}

func (g Gen) object(depth int) string {
	var fields []string
	seen := map[string]bool{}
	for range g.IntN(5) {
		n := pick(g, g.name(), g.name(), "é", "a b", "")
		if !seen[n] {
			seen[n] = true
			fields = append(fields, field(n, g.Any(depth-1)))
		}
	}
	return g.obj(fields...)
}

// schema is a JSON schema as tools have them.
func (g Gen) schema(depth int) string {
	typ := pick(g, "string", "integer", "number", "boolean", "null", "array", "object")
	if depth <= 0 && (typ == "array" || typ == "object") {
		typ = "string"
	}
	var fields []string
	if g.chance(95) {
		t := Quote(typ)
		if g.chance(8) {
			t = `["` + typ + `", "null"]`
		}
		fields = append(fields, field("type", t))
	}
	if g.chance(70) {
		fields = append(fields, field("description", Quote(g.Text())))
	}
	if g.chance(20) {
		fields = append(fields, field("enum", `["a", "b c", "`+pick(g, "é", "x'y", "z")+`"]`))
	}
	if g.chance(15) {
		fields = append(fields, field("default", g.Any(g.IntN(2))))
	}
	if g.chance(10) {
		fields = append(fields, field("nullable", pick(g, "true", "false")))
	}
	switch typ {
	case "array":
		if g.chance(85) {
			fields = append(fields, field("items", g.schema(depth-1)))
		}
	case "object":
		fields = append(fields, g.properties(depth)...)
	}
	if g.chance(8) {
		fields = append(fields, field(pick(g, "oneOf", "anyOf"), "["+g.schema(0)+", "+g.schema(0)+"]"))
	}
	return g.obj(fields...)
}

func (g Gen) properties(depth int) []string {
	var props, required []string
	seen := map[string]bool{}
	for range g.IntN(4) {
		n := g.name()
		if seen[n] {
			continue
		}
		seen[n] = true
		props = append(props, field(n, g.schema(depth-1)))
		if g.chance(60) {
			required = append(required, Quote(n))
		}
	}
	fields := []string{field("properties", g.obj(props...))}
	if g.chance(70) {
		fields = append(fields, field("required", "["+strings.Join(required, ", ")+"]"))
	}
	if g.chance(20) {
		fields = append(fields, field("additionalProperties", pick(g, "false", "true", `{"type": "string"}`)))
	}
	return fields
}

// Tools are tools, or null.
func (g Gen) Tools() string {
	if g.chance(45) {
		return pick(g, "null", "null", "[]")
	}
	tools := make([]string, 1+g.IntN(3))
	for i := range tools {
		fn := []string{field("name", Quote(g.name()))}
		if g.chance(90) {
			fn = append(fn, field("description", Quote(g.Text())))
		}
		if g.chance(90) {
			p := append([]string{field("type", `"object"`)}, g.properties(3)...)
			fn = append(fn, field("parameters", g.obj(p...)))
		}
		if g.chance(10) {
			fn = append(fn, field("strict", "true"))
		}
		if g.chance(10) {
			fn = append(fn, field("return", g.schema(1)))
		}
		tools[i] = g.obj(field("type", `"function"`), field("function", g.obj(fn...)))
		if !g.API && g.chance(3) {
			tools[i] = g.obj(fn...)
		}
	}
	return "[" + strings.Join(tools, ", ") + "]"
}

// content is a message's content.
func (g Gen) content() string {
	switch n := g.IntN(100); {
	case n < 75 || *g.plain:
		return Quote(g.Text())
	case n < 80:
		return "null"
	case n < 81 && !g.API:
		return pick(g, "[]", "3", "true", "{}", "1.5")
	}
	parts := make([]string, 1+g.IntN(3))
	for i := range parts {
		switch kind := g.IntN(6); {
		case g.API && kind == 0:
			parts[i] = pick(g, `{"type": "image_url", "image_url": {"url": "http://x/y.png"}}`, `{"type": "refusal", "refusal": "no"}`, `{"type": "text", "text": null}`)
		case g.API:
			fields := []string{field("type", `"text"`), field("text", Quote(pick(g, g.Text(), g.Text(), "x-anthropic-billing-header: a=b;\nc")))}
			if g.chance(20) {
				fields = append(fields, field(pick(g, "cache_control", "odd", "prompt_cache_breakpoint"), `{"type": "ephemeral"}`))
			}
			parts[i] = g.obj(fields...)
		case kind == 0:
			parts[i] = pick(g, `{"type": "image"}`, `{"type": "image", "image": "http://x/y.png"}`)
		case kind == 1:
			parts[i] = pick(g, `{"type": "image_url", "image_url": {"url": "http://x/y.png"}}`, `{"type": "video"}`, `{"type": "audio"}`)
		default:
			parts[i] = g.obj(field("type", `"text"`), field("text", Quote(g.Text())))
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

func (g Gen) toolCalls(next *int) string {
	calls := make([]string, 1+g.IntN(3))
	for i := range calls {
		*next++
		args := g.object(2)
		switch {
		case g.API && g.chance(5):
			args = pick(g, `""`, `"{"`, `"[1, 2]"`, `"null"`, `"{\"a\": 1, \"a\": 2}"`)
		case g.API, !*g.plain && g.chance(15):
			args = Quote(args)
		}
		fn := g.obj(field("name", Quote(g.name())), field("arguments", args))
		var fields []string
		if *g.plain || g.API || g.chance(85) {
			fields = append(fields, field("id", Quote(pick(g, fmt.Sprintf("call_%d", *next), "abcDEF012", fmt.Sprintf("functions.search:%d", *next)))))
		}
		if *g.plain || g.API || g.chance(90) {
			fields = append(fields, field("type", `"function"`))
		}
		calls[i] = g.obj(append(fields, field("function", fn))...)
		if !*g.plain && !g.API && g.chance(3) {
			calls[i] = fn
		}
	}
	return "[" + strings.Join(calls, ", ") + "]"
}

func (g Gen) message(role string, calls *int) string {
	fields := []string{field("role", Quote(role))}
	if *g.plain || g.chance(97) {
		fields = append(fields, field("content", g.content()))
	}
	if g.API && g.chance(3) {
		fields = append(fields, field("task", pick(g, `"action"`, `"query"`, `"odd"`, `""`, "null")))
	}
	if role == "assistant" {
		if g.chance(25) {
			fields = append(fields, field(pick(g, "reasoning_content", "reasoning", "reasoning_content", "thinking"), pick(g, Quote(g.Text()), Quote(g.Text()), `""`, "null")))
		}
		if g.chance(35) {
			fields = append(fields, field("tool_calls", g.toolCalls(calls)))
		} else if g.chance(5) {
			fields = append(fields, field("tool_calls", pick(g, "null", "[]")))
		}
	}
	if role == "tool" {
		if g.chance(85) {
			fields = append(fields, field("tool_call_id", Quote(pick(g, fmt.Sprintf("call_%d", *calls-g.IntN(3)), "abcDEF012", fmt.Sprintf("functions.search:%d", *calls)))))
		}
		if g.chance(30) {
			fields = append(fields, field("name", Quote(g.name())))
		}
	}
	return g.obj(fields...)
}

// Messages is a conversation: most often one that templates take, in which roles alternate,
// calls are followed by results; now and then any.
func (g Gen) Messages() string {
	var msgs []string
	calls := 0
	*g.plain = g.chance(60)
	if g.chance(2) {
		return "[]"
	}
	if !*g.plain && g.chance(30) {
		for range 1 + g.IntN(6) {
			msgs = append(msgs, g.message(pick(g, "user", "assistant", "tool", "system", "developer", "function", "odd", "ipython", "latest_reminder"), &calls))
		}
		return "[" + strings.Join(msgs, ", ") + "]"
	}
	if g.chance(50) {
		msgs = append(msgs, g.message(pick(g, "system", "system", "system", "system", "system", "developer"), &calls))
	}
	for range 1 + g.IntN(4) {
		msgs = append(msgs, g.message("user", &calls))
		for range g.IntN(3) {
			m := g.message("assistant", &calls)
			msgs = append(msgs, m)
			if !strings.Contains(m, `"tool_calls": [{`) {
				break
			}
			for range 1 + g.IntN(2) {
				msgs = append(msgs, g.message("tool", &calls))
			}
		}
	}
	if g.chance(60) {
		msgs = append(msgs, g.message("user", &calls))
	}
	return "[" + strings.Join(msgs, ", ") + "]"
}

// Options are the fields of a request beside messages, such as chat_template_kwargs gives.
func (g Gen) Options() []string {
	var f []string
	maybe := func(name string, vals ...string) {
		if g.chance(15) {
			f = append(f, field(name, pick(g, vals...)))
		}
	}
	maybe("enable_thinking", "true", "false")
	maybe("thinking", "true", "false")
	maybe("reasoning_effort", `"low"`, `"medium"`, `"high"`, `"max"`, `"none"`)
	maybe("preserve_thinking", "true", "false")
	maybe("clear_thinking", "true", "false")
	maybe("keep_past_thinking", "true", "false")
	maybe("thinking_budget", "0", "512", "1000", "-1")
	maybe("builtin_tools", `["browser", "python"]`)
	maybe("model_identity", `"You are x."`)
	maybe("date_string", `"1 Jan 2026"`)
	maybe("custom_tools", `[]`)
	maybe("tools_in_user_message", "true", "false")
	maybe("xml_tools", `["a"]`)
	maybe("think", "true", "false")
	maybe("available_tools", "[]")
	maybe("controls", `{"length": "long"}`)
	maybe("tool_choice", `"auto"`, `"required"`)
	maybe("response_format", `{"type": "json_object"}`)
	if g.chance(10) {
		f = append(f, field("documents", `[{"title": "T", "text": `+Quote(g.Text())+`, "doc_id": 1}]`))
	}
	return f
}
