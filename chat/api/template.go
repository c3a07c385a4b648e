package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/jinja"
)

var generation = regexp.MustCompile(`\{%[-+]?\s*generation\b`)

// Probe renders with a model's templates as the engine does when it starts
// (entrypoints/anthropic/serving.py: _detect_merge_inline_system and
// DisabledThinkingEffortResolver). The error names what cannot be found out here.
func Probe(ctx context.Context, cfg chat.Config) (*Template, error) {
	if cfg.Encoder != chat.Jinja {
		return nil, unsupported("other APIs' conversations of a model whose prompts no template writes")
	}
	if cfg.Engine == chat.SGLang {
		return nil, unsupported("other APIs' conversations of SGLang")
	}
	t := &Template{Disabled: "none"}
	for _, source := range []string{cfg.Template, cfg.ToolTemplate} {
		if source == "" {
			continue
		}
		first, err := systemFirst(ctx, source)
		if err != nil {
			return nil, err
		}
		t.SystemFirst = t.SystemFirst || first
	}
	// The date must not change between two prompts that are compared.
	now := time.Now()
	if cfg.Now != nil {
		now = cfg.Now()
	}
	cfg.Now = func() time.Time { return now }
	m, err := chat.New(cfg)
	if err != nil {
		return nil, err
	}
	none, err := greeting(ctx, m, "none")
	if err != nil || none == nil {
		t.Disabled = "low"
		return t, err
	}
	for _, how := range []string{"low", "medium", "high", "xhigh", "max"} {
		with, err := greeting(ctx, m, how)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(with, none) {
			t.Disabled = "low"
		}
	}
	return t, nil
}

// systemFirst reports whether a template refuses a message of the system behind others. The
// engine asks that outside of transformers: what templates have from there is not known, and
// its use fails.
func systemFirst(ctx context.Context, source string) (bool, error) {
	if strings.Contains(source, "strftime_now") {
		return false, unsupported("a template that asks for the date, in the engine's probe of where the system may speak")
	}
	if generation.MatchString(source) {
		return true, nil // a tag that is unknown there
	}
	tpl, err := jinja.Compile(source)
	if err != nil {
		return false, err
	}
	var said []jinja.Value
	for _, role := range []string{"system", "user", "system", "user"} {
		said = append(said, dict("role", role, "content", "t"))
	}
	_, err = tpl.Render(ctx, func(name string) jinja.Value {
		switch name {
		case "messages":
			return jinja.List(said...)
		case "add_generation_prompt":
			return jinja.False
		}
		return jinja.Value{}
	}, jinja.Options{})
	return fails(err)
}

// fails tells what a template raises from what is not done here.
func fails(err error) (bool, error) {
	var raised *jinja.RaisedError
	var failed *jinja.Error
	switch {
	case err == nil:
		return false, nil
	case errors.As(err, &raised), errors.As(err, &failed):
		return true, nil
	}
	return false, err
}

// greeting is the prompt of a greeting with an effort; nil if the template refuses that.
func greeting(ctx context.Context, m *chat.Model, how string) ([]byte, error) {
	p, err := m.Prompt(ctx, fmt.Sprintf(`{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":%q}`, how), []byte{})
	if refused, err := fails(err); refused || err != nil {
		return nil, err
	}
	return p.Text, nil
}
