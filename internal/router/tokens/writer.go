package tokens

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/kvatlas/kvatlas/chat"
	"github.com/kvatlas/kvatlas/chat/api"
	"github.com/kvatlas/kvatlas/chat/jinja"
	"github.com/kvatlas/kvatlas/internal/modelfiles"
)

// Writer writes the prompt of a chat, given as a body of /v1/chat/completions, appended to
// buf. chat.Model is one; others know models whose prompts no template writes. A Writer is
// safe for concurrent use and keeps nothing of what it is given.
type Writer interface {
	Write(ctx context.Context, body *jinja.Dict, buf []byte) (chat.Prompt, error)
}

// Server is the content of modelfiles.Server: settings of vLLM by their names there.
type Server struct {
	Engine             string          `json:"engine,omitempty"` // vllm or sglang, whose rules of requests hold
	ChatTemplateKwargs json.RawMessage `json:"default_chat_template_kwargs,omitempty"`
	ContentFormat      string          `json:"chat_template_content_format,omitempty"` // auto, string or openai
	DropTools          bool            `json:"exclude_tools_when_tool_choice_none,omitempty"`
	// ScorePrompts is how prompts of /score and /rerank are made; "" if that is not known.
	ScorePrompts api.ScoreRule `json:"score_prompts,omitempty"`
	// Zone is the engine's time zone, for templates that write the date; "" is UTC.
	Zone string `json:"time_zone,omitempty"`
}

// readServer reads modelfiles.Server, if it is there.
func readServer(files fs.FS) (s Server, err error) {
	data, err := fs.ReadFile(files, modelfiles.Server)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(data)))
		d.DisallowUnknownFields()
		err = d.Decode(&s)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", modelfiles.Server, err)
	}
	if all := []api.ScoreRule{"", api.ScoreApart, api.ScoreJoined, api.ScoreTemplate}; !slices.Contains(all, s.ScorePrompts) {
		return s, fmt.Errorf("%s: score_prompts %q: apart, joined or template are known", modelfiles.Server, s.ScorePrompts)
	}
	return s, nil
}

// config returns what the model's chats are written with.
func (s *Server) config(files fs.FS, zone *time.Location, now func() time.Time) (chat.Config, error) {
	cfg, err := chat.Load(files)
	if err != nil {
		return cfg, err
	}
	if len(s.ChatTemplateKwargs) > 0 {
		if cfg.Kwargs, err = jinja.ParseJSON(string(s.ChatTemplateKwargs)); err != nil {
			return cfg, fmt.Errorf("%s: default_chat_template_kwargs: %w", modelfiles.Server, err)
		}
	}
	cfg.Engine = chat.Engine(s.Engine)
	cfg.ContentFormat, cfg.DropTools = chat.ContentFormat(s.ContentFormat), s.DropTools
	cfg.Now = func() time.Time { return now().In(zone) }
	return cfg, nil
}

// scores returns how prompts of scores are made; "" if that is not known, or not done here.
func (s *Server) scores(files fs.FS, zone *time.Location, now func() time.Time) api.ScoreRule {
	if s.ScorePrompts == api.ScoreTemplate {
		if cfg, err := s.config(files, zone, now); err != nil || !api.Plain(cfg) {
			return ""
		}
	}
	return s.ScorePrompts
}

// probe returns what the model's template decides of other APIs' conversations; nil if that
// is not known.
func (s *Server) probe(files fs.FS, zone *time.Location, now func() time.Time, within time.Duration) *api.Template {
	cfg, err := s.config(files, zone, now)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	t, err := api.Probe(ctx, cfg)
	if err != nil {
		return nil
	}
	return t
}

// writer returns what writes the model's chats.
func (s *Server) writer(files fs.FS, zone *time.Location, now func() time.Time) (Writer, error) {
	if s.Engine == SeveralEngines {
		return nil, errSeveral
	}
	cfg, err := s.config(files, zone, now)
	if err != nil {
		return nil, err
	}
	m, err := chat.New(cfg)
	if err != nil {
		return nil, err // not m: an interface that holds nothing is not nil
	}
	return m, nil
}
