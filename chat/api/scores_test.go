package api_test

import (
	"errors"
	"testing"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

// scores makes a request to /score or /rerank.
func (g *gen) scores(b map[string]any, path string) {
	text := func() any {
		switch g.IntN(60) {
		case 0:
			return 3
		case 1:
			return obj("content", []any{obj("type", "text", "text", g.text())})
		}
		return g.text() + g.one("", "q", "the document")
	}
	several := func() any {
		if g.some(3) {
			return text()
		}
		return g.list(3, text)
	}
	if path == api.PathRerank {
		b["query"], b["documents"] = text(), several()
	} else {
		names := [][2]string{{"queries", "documents"}, {"queries", "items"}, {"data_1", "data_2"}, {"text_1", "text_2"}}[g.IntN(4)]
		b[names[0]], b[names[1]] = several(), several()
		if g.some(2) {
			b[names[0]] = text()
		}
	}
	if g.some(3) {
		b["instruction"] = g.text()
	}
	if g.some(5) {
		b["chat_template_kwargs"] = obj(g.one("instruction", "extra", "tools", "add_generation_prompt"), g.text())
	}
	if g.some(5) {
		b["add_special_tokens"], b["top_n"], b["padding"] = false, 1, g.one("do_not_pad", "max_length")
	}
	if g.some(9) {
		b[g.one("truncate_prompt_tokens", "max_tokens_per_doc", "max_tokens_per_query")] = g.IntN(2)
	}
}

// What the prompt of a score is depends on the model; what is not known of it is not made up.
func TestScores(t *testing.T) {
	for _, c := range []struct {
		path, body string
		rule       api.ScoreRule
		want       string // "": only the engine knows; bad: it would refuse
	}{
		{api.PathScore, `{"model":"m","cache_salt":"s","text_1":"a","text_2":["b","c"]}`, api.ScoreApart, `{"model": "m", "cache_salt": "s", "add_special_tokens": true, "prompt": "a"}`},
		{api.PathScore, `{"queries":["a","b"],"items":["c","d"]}`, api.ScoreJoined, `{"add_special_tokens": true, "prompt": "ac"}`},
		{api.PathRerank, `{"query":"a","documents":["b","c"],"instruction":"i"}`, api.ScoreTemplate,
			`{"add_special_tokens": true, "messages": [{"role": "query", "content": "a"}, {"role": "document", "content": "b"}], "add_generation_prompt": false, "chat_template_kwargs": {"instruction": "i"}}`},
		{api.PathRerank, `{"query":"a","documents":["b","c"]}`, "", ""},
		{api.PathRerank, `{"query":"a","documents":["b"],"truncate_prompt_tokens":5}`, api.ScoreApart, ""},
		{api.PathRerank, `{"query":{"content":[]},"documents":["b"]}`, api.ScoreApart, ""},
		{api.PathScore, `{"queries":"a","items":"b","documents":"c"}`, api.ScoreApart, ""},
		{api.PathRerank, `{"query":["a"],"documents":["b"]}`, api.ScoreApart, "bad"},
		{api.PathScore, `{"queries":["a","b"],"items":["c","d","e"]}`, api.ScoreApart, "bad"},
		{api.PathScore, `{"queries":[],"items":["c"]}`, api.ScoreApart, "bad"},
		{api.PathScore, `{"queries":"a"}`, api.ScoreApart, "bad"},
	} {
		got, err := converted(c.path, c.body, api.Template{}, c.rule, nil)
		var no *jinja.UnsupportedError
		var bad *chat.BadRequestError
		switch {
		case c.want == "" && !errors.As(err, &no), c.want == "bad" && !errors.As(err, &bad), c.want != "" && c.want != "bad" && (err != nil || got != c.want):
			t.Errorf("%s: %s %v, want %s", c.body, got, err, c.want)
		}
	}
	for _, c := range []struct {
		template, kwargs string
		format           chat.ContentFormat
		want             bool
	}{
		{"{{ messages[0].content }}", "", "", true}, {"{{ messages[0].content }}", "{}", "string", true}, {"{{ messages[0].content }}", "", "openai", false},
		{"{{ messages[0].content }}", `{"x":1}`, "", false}, {"", "", "", false}, {"{% if %}", "", "", false},
		{"{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}", "", "", false},
	} {
		cfg := chat.Config{Template: c.template, ContentFormat: c.format}
		if c.kwargs != "" {
			cfg.Kwargs, _ = jinja.ParseJSON(c.kwargs)
		}
		if got := api.Plain(cfg); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
