package api_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

func object(t *testing.T, text string) *jinja.Dict {
	t.Helper()
	v, err := jinja.ParseJSON(text)
	d, ok := v.AsDict()
	if err != nil || !ok {
		t.Fatalf("%s: %v", text, err)
	}
	return d
}

// TestChat has an example of each rule; make test-apis has them judged.
func TestChat(t *testing.T) {
	last, first := &api.Template{Disabled: "none"}, &api.Template{SystemFirst: true, Disabled: "low"}
	for _, c := range []struct {
		name, path string
		rules      *api.Template
		body, want string
	}{
		{
			"texts and blocks", api.PathMessages, nil,
			`{"max_tokens": 9, "system": [{"type": "text", "text": "x-anthropic-billing-header: 7"}, {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}],
			"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}], "context_management": {}}`,
			`{"messages": [{"role": "system", "content": "ab"}, {"role": "user", "content": "hi"}, {"role": "assistant", "reasoning": "t", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]}]}`,
		},
		{
			"tools", api.PathCountTokens, nil,
			`{"model": "m", "messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {"b": 1.0, "a": "é"}}]},
			{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "1"}, {"type": "text", "text": "2"}]}, {"type": "text", "text": "on"}]}],
			"tools": [{"name": "f", "input_schema": {"properties": {}}, "cache_control": {}}], "tool_choice": {"type": "none"}}`,
			`{"model": "m", "messages": [{"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{\"b\": 1.0, \"a\": \"é\"}"}}]}, {"role": "tool", "tool_call_id": "c", "content": "1\n2"}, {"role": "user", "content": "on"}], ` +
				`"tools": [{"type": "function", "function": {"name": "f", "description": null, "parameters": {"properties": {}, "type": "object"}}}], "tool_choice": "none"}`,
		},
		{
			"an image of a tool", api.PathMessages, nil,
			`{"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]}]}]}`,
			`{"messages": [{"role": "tool", "tool_call_id": "c", "content": ""}, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]}`,
		},
		{
			"a reminder in its place", api.PathMessages, last,
			`{"system": "a", "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "s"}], "thinking": {"type": "disabled"}}`,
			`{"messages": [{"role": "system", "content": "a"}, {"role": "user", "content": "u"}, {"role": "system", "content": "s"}], "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "none"}, "reasoning_effort": "none"}`,
		},
		{
			"a reminder put in front", api.PathMessages, first,
			`{"system": "a", "messages": [{"role": "user", "content": "u"}, {"role": "system", "content": "s"}], "thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}`,
			`{"messages": [{"role": "system", "content": "as"}, {"role": "user", "content": "u"}], "chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "low"}, "reasoning_effort": "low"}`,
		},
		{
			"items", api.PathResponses, nil,
			`{"instructions": "i", "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
			{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}, {"type": "function_call", "call_id": "d", "name": "g", "namespace": "n", "arguments": ""},
			{"type": "function_call_output", "call_id": "c", "output": "1"}], "tools": [{"type": "function", "name": "f", "strict": false}, {"type": "web_search"}], "reasoning": {"effort": "low"}, "store": false}`,
			`{"messages": [{"role": "system", "content": "i"}, {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, {"role": "assistant", "reasoning": "t", "content": "x", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}, {"id": "d", "type": "function", "function": {"name": "n__g", "arguments": ""}}]}, {"role": "tool", "content": "1", "tool_call_id": "c"}], ` +
				`"chat_template_kwargs": {"enable_thinking": true, "reasoning_effort": "low"}, "reasoning_effort": "low", "tools": [{"type": "function", "function": {"name": "f", "description": null, "parameters": null, "strict": false}}]}`,
		},
		{
			"an answer to be finished", api.PathResponses, nil,
			`{"input": [{"type": "message", "role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "so"}]}]}`,
			`{"messages": [{"role": "assistant", "content": "so"}], "add_generation_prompt": false, "continue_final_message": true}`,
		},
		{
			"what was said before", api.PathResponses, nil, `{"instructions": "i", "previous_response_id": "resp_1", "input": "and?"}`,
			`{"messages": [{"role": "system", "content": "i"}, {"role": "user", "content": "before"}, {"role": "user", "content": "and?"}]}`,
		},
		{"an embedding", api.PathEmbeddings, nil, `{"messages": [{"role": "user", "content": "x"}]}`, `{"messages": [{"role": "user", "content": "x"}], "add_generation_prompt": false}`},
		{
			"an effort that /tokenize does not know", api.PathChat, nil, `{"messages": [], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}}`,
			`{"messages": [], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "high"}}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := api.Chat(c.path, object(t, c.body), api.Rules{Template: c.rules, Past: func(id string) ([]jinja.Value, bool) {
				v, _ := jinja.ParseJSON(`[{"role": "user", "content": "before"}]`)
				list, _ := v.AsList()
				return list, id == "resp_1"
			}})
			if err != nil {
				t.Fatal(err)
			}
			if text, _ := jinja.AppendJSON(nil, got.Value()); string(text) != c.want {
				t.Errorf("have %s\nwant %s", text, c.want)
			}
		})
	}
}

// TestRefused: what the engine would refuse is told from what is not known here.
func TestRefused(t *testing.T) {
	type kind = int
	const (
		engine kind = iota
		unknown
		past
	)
	for body, want := range map[string]kind{
		api.PathMessages + `{}`:                                                                                                                      engine,
		api.PathMessages + `{"messages": [1]}`:                                                                                                       engine,
		api.PathMessages + `{"messages": [{"role": "tool", "content": ""}]}`:                                                                         engine,
		api.PathMessages + `{"messages": [{"role": "user", "content": [{"type": "document"}]}]}`:                                                     engine,
		api.PathMessages + `{"messages": [{"role": "user", "content": [1]}]}`:                                                                        engine,
		api.PathMessages + `{"messages": [], "tools": [{"name": "f", "type": "web_search_20250305"}]}`:                                               engine,
		api.PathMessages + `{"messages": [{"role": "system", "content": ""}]}`:                                                                       unknown,
		api.PathMessages + `{"messages": [], "thinking": {"type": "disabled"}}`:                                                                      unknown,
		api.PathMessages + `{"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {}}]}]}`:                      unknown,
		api.PathMessages + `{"messages": [{"role": "assistant", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "x"}]}]}]}`: unknown,
		api.PathMessages + `{"messages": [], "system": [{"type": "tool_removal", "tool": {}}]}`:                                                      unknown,
		api.PathResponses + `{}`: engine,
		api.PathResponses + `{"input": [{"type": "item_reference", "id": "x"}]}`:                                                       engine,
		api.PathResponses + `{"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}`:                              engine,
		api.PathResponses + `{"input": "x", "prompt": {"id": "p"}}`:                                                                    engine,
		api.PathResponses + `{"input": "x", "tools": [{"type": "custom", "name": "f"}]}`:                                               unknown,
		api.PathResponses + `{"input": "x", "tools": [{"type": "namespace", "name": "n", "tools": [1]}]}`:                              engine,
		api.PathResponses + `{"input": "x", "previous_input_messages": [{}]}`:                                                          unknown,
		api.PathResponses + `{"input": [{"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}]}`: unknown,
		api.PathResponses + `{"input": "x", "previous_response_id": "resp_1"}`:                                                         past,
		api.PathEmbeddings + `{"input": "x"}`:                                                                                          unknown,
		api.PathRerank + `{"query": "x", "documents": "y"}`:                                                                            unknown,
		"/other" + `{}`: unknown,
	} {
		path, rest, _ := strings.Cut(body, "{")
		_, err := api.Chat(path, object(t, "{"+rest), api.Rules{})
		var bad *chat.BadRequestError
		var no *jinja.UnsupportedError
		var lost *api.UnknownPastError
		if ok := [...]bool{errors.As(err, &bad), errors.As(err, &no), errors.As(err, &lost)}[want]; !ok {
			t.Errorf("%s: %v", body, err)
		}
	}
}

// TestProbe: what a template decides is found by rendering with it.
func TestProbe(t *testing.T) {
	for template, want := range map[string]api.Template{
		`{% for m in messages %}{{ m.content }}{% endfor %}`: {Disabled: "low"},
		`{% for m in messages %}{% if m.role == "system" and not loop.first %}{{ raise_exception("no") }}{% endif %}{{ m.content }}{% endfor %}`:       {SystemFirst: true, Disabled: "low"},
		`{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}`: {Disabled: "none"},
		`{% if reasoning_effort == "none" %}{{ raise_exception("no") }}{% endif %}{{ reasoning_effort }}`:                                              {Disabled: "low"},
		`{% if reasoning_effort == "none" %}max{% else %}{{ reasoning_effort }}{% endif %}`:                                                            {Disabled: "low"},
		`{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}`:                                                        {SystemFirst: true, Disabled: "low"},
	} {
		got, err := api.Probe(context.Background(), chat.Config{Template: template})
		if err != nil || *got != want {
			t.Errorf("%s: %+v, %v; want %+v", template, got, err, want)
		}
	}
	if _, err := api.Probe(context.Background(), chat.Config{Template: `{{ strftime_now("%d") }}`}); err == nil {
		t.Error("a date in the probe is taken for granted")
	}
}

// FuzzChat: whatever comes, there is an error or a request, and it does not change.
func FuzzChat(f *testing.F) {
	f.Add(`{"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [{"type": "image"}]}]}], "input": [{"type": "function_call", "call_id": "c"}], "tools": [{"type": "namespace", "tools": [{}]}]}`)
	f.Fuzz(func(t *testing.T, body string) {
		v, err := jinja.ParseJSON(body)
		d, ok := v.AsDict()
		if err != nil || !ok {
			return
		}
		before, _ := jinja.AppendJSON(nil, v)
		for _, path := range []string{api.PathChat, api.PathMessages, api.PathResponses, api.PathEmbeddings} {
			for _, r := range []*api.Template{nil, {Disabled: "none"}, {SystemFirst: true, Disabled: "low"}} {
				if out, err := api.Chat(path, d, api.Rules{Template: r}); (out == nil) == (err == nil) {
					t.Fatalf("%v, %v", out, err)
				}
			}
		}
		if after, _ := jinja.AppendJSON(nil, v); string(after) != string(before) {
			t.Errorf("%s has become %s", before, after)
		}
	})
}

// TestManyCalls reads an answer of very many calls: twenty times as many take about twenty times
// the memory. A copy of those before with each takes four hundred times as much.
func TestManyCalls(t *testing.T) {
	bytes := func(n int) uint64 {
		req := object(t, `{"input":[`+strings.Repeat(`{"type":"function_call","call_id":"a","name":"f","arguments":"{}"},`, n)+`{"role":"user","content":"x"}]}`)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if _, err := api.Chat(api.PathResponses, req, api.Rules{}); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	if few, lots := bytes(1000), bytes(20_000); lots > 40*few {
		t.Errorf("twenty times as many take %d bytes, not %d", lots, 20*few)
	}
}
