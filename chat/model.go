package chat

import (
	"errors"
	"fmt"
	"time"

	"github.com/kvatlas/kvatlas/chat/jinja"
)

// ContentFormat is how a template is given the contents of messages.
type ContentFormat string

// The formats, as vLLM's --chat-template-content-format has them.
const (
	Auto  ContentFormat = "auto"   // as the template reads them
	Text  ContentFormat = "string" // as one string
	Parts ContentFormat = "openai" // as a list of parts
)

// Config is what decides how a model's chats are written.
type Config struct {
	// Template is the source of the chat template; ToolTemplate of the one for requests
	// with tools, where the model has one of its own.
	Template, ToolTemplate string
	// Tokens are the special tokens by name (bos_token, eos_token, …), for the template.
	Tokens map[string]jinja.Value
	// ContentFormat is Auto where it is empty.
	ContentFormat ContentFormat
	// Kwargs are the server's --default-chat-template-kwargs, a dict, or missing.
	Kwargs jinja.Value
	// DropTools: requests with tool_choice "none" have no tools in their prompt
	// (--exclude-tools-when-tool-choice-none).
	DropTools bool
	// Now is the clock for templates that write the date, in the zone of the engine;
	// nil is time.Now.
	Now    func() time.Time
	Limits jinja.Limits
}

// Model writes the prompts of one model's chats.
type Model struct {
	cfg   Config
	plain *compiled
	tools *compiled // for requests with tools
}

type compiled struct {
	tpl    *jinja.Template
	source string
	parts  bool
}

// New makes a Model. The error is a jinja.UnsupportedError where the model has no template,
// or one that needs what is not done here.
func New(cfg Config) (*Model, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Template == "" {
		return nil, &jinja.UnsupportedError{What: "a model without a chat template"}
	}
	if _, ok := cfg.Kwargs.AsDict(); !ok && !cfg.Kwargs.IsMissing() && !cfg.Kwargs.IsNone() {
		return nil, errors.New("default chat template kwargs must be an object")
	}
	m := &Model{cfg: cfg}
	var err error
	if m.plain, err = compileFor(cfg.Template, cfg.ContentFormat); err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	m.tools = m.plain
	if cfg.ToolTemplate != "" {
		if m.tools, err = compileFor(cfg.ToolTemplate, cfg.ContentFormat); err != nil {
			return nil, fmt.Errorf("chat template for tools: %w", err)
		}
	}
	return m, nil
}

func compileFor(source string, format ContentFormat) (*compiled, error) {
	tpl, err := jinja.Compile(source)
	if err != nil {
		return nil, err
	}
	c := &compiled{tpl: tpl, source: source}
	switch format {
	case Auto, "":
		c.parts = tpl.ReadsParts()
	case Parts:
		c.parts = true
	case Text:
	default:
		return nil, fmt.Errorf("content format %q: auto, string or openai are known", format)
	}
	return c, nil
}
