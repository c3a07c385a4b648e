package proxy

import (
	"context"
	"fmt"
	"slices"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/router/fleet"
)

// TokensOf returns a text's tokens, as of a prompt that is that text.
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
	quoted := appendJSON(nil, text)
	q := &call{body: body{model: sp.Model, text: quoted}, m: m, data: slices.Concat([]byte(`{"prompt":`), quoted, []byte{'}'})}
	return p.tokensOf(ctx, m, q)
}
