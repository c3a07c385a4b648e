package console

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// tokensWait is how long an engine has to make tokens of a text.
const tokensWait = 5 * time.Second

// asked is the body of POST api/find.
type asked struct {
	Model     string          `json:"model"`
	BlockSize uint32          `json:"block_size,omitempty"`
	Group     *string         `json:"group,omitempty"`
	Tokens    json.RawMessage `json:"token_ids,omitempty"`
	Blocks    json.RawMessage `json:"block_hashes,omitempty"`
	Text      *string         `json:"text,omitempty"`
	Lora      string          `json:"lora_name,omitempty"`
	Salt      string          `json:"cache_salt,omitempty"`
}

// find answers POST api/find.
func (c *Console) find(r *request) (*edge.Reply, *edge.Problem) {
	var a asked
	if err := json.Unmarshal(r.Body, &a); err != nil {
		// Not the error itself, which may quote what was pasted.
		return nil, edge.Bad("body", edge.MalformedJSON, "give a JSON object with model, and token_ids, block_hashes or text")
	}
	given := 0
	for _, is := range []bool{a.Tokens != nil, a.Blocks != nil, a.Text != nil} {
		if is {
			given++
		}
	}
	switch {
	case c.cfg.Explain == nil:
		return nil, edge.Refuse(http.StatusNotImplemented, "path", edge.UnknownRoute, "this program has no index to ask")
	case given != 1:
		return nil, edge.Bad("token_ids", edge.Conflict, "give one of token_ids, block_hashes and text")
	}
	if a.Text != nil {
		tokens, no := c.tokens(r, &a)
		if no != nil {
			return nil, no
		}
		a.Tokens = edge.JSON(tokens)
	}
	ask := map[string]any{"model": a.Model}
	add := func(name string, is bool, v any) {
		if is {
			ask[name] = v
		}
	}
	add("group", a.Group != nil, a.Group)
	add("block_size", a.BlockSize > 0, a.BlockSize)
	add("token_ids", a.Tokens != nil, a.Tokens)
	add("hashes", a.Blocks != nil, a.Blocks)
	add("lora_name", a.Lora != "", a.Lora)
	add("cache_salt", a.Salt != "", a.Salt)
	answer, no := c.cfg.Explain(r.Tenant, edge.JSON(ask))
	if no != nil {
		return nil, no
	}
	return &edge.Reply{Status: http.StatusOK, Type: edge.TypeJSON, Body: answer}, nil
}

// tokens makes tokens of the text, as the first space of the model that fits has them.
func (c *Console) tokens(r *request, a *asked) ([]uint32, *edge.Problem) {
	if c.cfg.Tokens == nil {
		return nil, edge.Refuse(http.StatusNotImplemented, "text", edge.UnknownField, "there is no tokenizer here; give token_ids or block_hashes")
	}
	for _, m := range c.cfg.Models() {
		sp := m.Space
		if sp.Model != a.Model || !r.sees(sp.Group) || a.BlockSize != 0 && a.BlockSize != sp.BlockSize || a.Group != nil && *a.Group != sp.Group {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), tokensWait)
		defer cancel() //nolint:revive // so here
		tokens, err := c.cfg.Tokens(ctx, sp, *a.Text)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return nil, edge.Refuse(http.StatusGatewayTimeout, "text", edge.Timeout, "no engine made tokens of it in time")
		case err != nil:
			return nil, edge.Refuse(http.StatusBadGateway, "text", edge.NotReady, "no engine made tokens of it")
		}
		return tokens, nil
	}
	return nil, edge.Refuse(http.StatusNotFound, "model", edge.UnknownModel, "there is no such model")
}
