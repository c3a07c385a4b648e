package proxy

import (
	"context"
	"fmt"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
)

// TokensOf asks an engine of the space for a text's tokens, as for a prompt that is that text.
func (p *Proxy) TokensOf(ctx context.Context, sp event.Space, text string) ([]uint32, error) {
	var m *fleet.Model
	for _, x := range p.fleet.Models() {
		if x.Space == sp {
			m = x
		}
	}
	switch {
	case m == nil:
		return nil, fmt.Errorf("model %q is not routed here", sp.Model)
	case p.cfg.Tokens != TokensEngine || !p.cfg.Indexed:
		return nil, fmt.Errorf("--tokens %s: engines are not asked for tokens", p.cfg.Tokens)
	case len(text)/bytesPerToken > p.cfg.MaxPrompt:
		return nil, fmt.Errorf("the text is longer than --max-prompt-tokens")
	}
	return p.tokenize(ctx, m, &call{body: body{model: sp.Model, text: appendJSON(nil, text)}, m: m})
}
