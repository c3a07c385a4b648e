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

// Engine is whose rules of requests hold.
type Engine string

// The engines.
const (
	VLLM   Engine = "" // or "vllm"
	SGLang Engine = "sglang"
)

// Encoder is what writes the prompts of a model.
type Encoder string

// The encoders, by the engine's names for them.
const (
	Jinja       Encoder = ""             // the model's chat template
	DeepSeekV32 Encoder = "deepseek_v32" // that of DeepSeek-V3.2, which has no template
	DeepSeekV4  Encoder = "deepseek_v4"  // and of those after it
	DeepSeekV41 Encoder = "deepseek_v41"
	Harmony     Encoder = "gpt_oss" // of gpt-oss, whose template the engine does not use
)

// Config is what decides how a model's chats are written.
type Config struct {
	Engine  Engine
	Encoder Encoder // vLLM's; SGLang writes gpt-oss's prompts by the template
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
	if _, ok := cfg.Kwargs.AsDict(); !ok && !cfg.Kwargs.IsMissing() && !cfg.Kwargs.IsNone() {
		return nil, errors.New("default chat template kwargs must be an object")
	}
	switch cfg.Engine {
	case VLLM, "vllm":
		cfg.Engine = VLLM
	case SGLang:
		if cfg.Encoder == Harmony {
			cfg.Encoder = Jinja
		}
		if cfg.Encoder == DeepSeekV32 && cfg.Template != "" {
			return nil, &jinja.UnsupportedError{What: "a DeepSeek-V3.2 with a chat template, which SGLang uses or not by its --tool-call-parser"}
		}
		if cfg.Encoder != Jinja && cfg.Encoder != DeepSeekV32 {
			return nil, &jinja.UnsupportedError{What: fmt.Sprintf("a model whose chats %q writes in SGLang", cfg.Encoder)}
		}
		for _, source := range []string{cfg.Template, cfg.ToolTemplate} {
			if err := sglangRefuses(source); err != nil {
				return nil, err
			}
		}
	default:
		return nil, fmt.Errorf("engine %q: vllm or sglang are known", cfg.Engine)
	}
	switch cfg.Encoder {
	case DeepSeekV32, DeepSeekV4, DeepSeekV41, Harmony:
		return &Model{cfg: cfg, plain: new(compiled), tools: new(compiled)}, nil
	case Jinja:
	default:
		return nil, &jinja.UnsupportedError{What: fmt.Sprintf("a model whose chats %q writes", cfg.Encoder)}
	}
	if cfg.Template == "" {
		return nil, &jinja.UnsupportedError{What: "a model without a chat template"}
	}
	m := &Model{cfg: cfg}
	var err error
	if m.plain, err = compileFor(cfg.Template, &cfg); err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	m.tools = m.plain
	if cfg.ToolTemplate != "" {
		if m.tools, err = compileFor(cfg.ToolTemplate, &cfg); err != nil {
			return nil, fmt.Errorf("chat template for tools: %w", err)
		}
	}
	return m, nil
}

func compileFor(source string, cfg *Config) (*compiled, error) {
	tpl, err := jinja.Compile(source)
	if err != nil {
		return nil, err
	}
	c := &compiled{tpl: tpl, source: source}
	switch format := cfg.ContentFormat; format {
	case Auto, "":
		c.parts = tpl.ReadsParts()
		if cfg.Engine == SGLang {
			c.parts = tpl.ReadsPartsSGLang(source)
		}
	case Parts:
		c.parts = true
	case Text:
	default:
		return nil, fmt.Errorf("content format %q: auto, string or openai are known", format)
	}
	return c, nil
}
