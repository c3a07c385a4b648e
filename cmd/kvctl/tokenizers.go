package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"text/tabwriter"
)

// errNoModel is wrapped by the error about a model that the router does not route.
var errNoModel = errors.New("no such model is routed")

// tokenizer is what a router knows of one model's tokens.
type tokenizer struct {
	Model      string            `json:"model_name"`
	BlockSize  int               `json:"block_size"`
	Group      string            `json:"routing_group"`
	Files      string            `json:"files,omitempty"`
	From       string            `json:"from,omitempty"`
	Error      string            `json:"error,omitempty"`
	NoChats    string            `json:"no_chats,omitempty"`
	States     map[string]string `json:"states"`
	Workers    int               `json:"workers"`
	Compared   int               `json:"compared"`
	Bytes      int               `json:"bytes"`
	Difference *struct {
		Worker   uint64 `json:"worker_id"`
		Prompts  string `json:"prompts"`
		Position int    `json:"position"`
		Ours     int    `json:"ours"`
		Theirs   int    `json:"theirs"`
	} `json:"difference,omitempty"`
}

// tokenizers lists which models' tokens the router makes itself, or has them compared with
// engines anew.
func (c *config) tokenizers(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0:
		return c.listTokenizers(ctx)
	case args[0] != "retry" || len(args) > 2:
		return fmt.Errorf("give tokenizers, or tokenizers retry with at most one model: %w", errUse)
	}
	query := url.Values{}
	if model := cmp.Or(append(args[1:], c.model)...); model != "" {
		query.Set("model_name", model)
	}
	var done struct {
		Models int `json:"models"`
	}
	if err := c.ask(ctx, http.MethodPost, query, readJSON(&done), "v1", "tokenizers", "retry"); err != nil {
		return err
	}
	if c.json {
		return c.print(map[string]any{"models": done.Models})
	}
	_, err := fmt.Fprintf(c.out, "models whose engines are compared anew: %d\n", done.Models)
	return err
}

func (c *config) listTokenizers(ctx context.Context) error {
	var list struct {
		Tokenizers []*tokenizer `json:"tokenizers"`
	}
	if err := c.ask(ctx, http.MethodGet, nil, readJSON(&list), "v1", "tokenizers"); err != nil {
		return err
	}
	if c.json {
		return c.print(map[string]any{"tokenizers": list.Tokenizers})
	}
	w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tGROUP\tTEXTS\tCHATS\tMESSAGES\tRESPONSES\tDETOKENIZED\tCOMPARED\tMIB\tFROM\tWHY NOT")
	for _, t := range list.Tokenizers {
		why := cmp.Or(t.Error, t.NoChats, "-")
		if d := t.Difference; d != nil {
			made := "tokens of " + d.Prompts
			if d.Prompts == "detokenized" {
				made = "text of tokens"
			}
			why = fmt.Sprintf("worker %d makes other %s from position %d on (%d, not %d)", d.Worker, made, d.Position, d.Theirs, d.Ours)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d of %d\t%d\t%s\t%s\n", t.Model, cmp.Or(t.Group, "-"), t.States["texts"], t.States["chats"],
			cmp.Or(t.States["messages"], "-"), cmp.Or(t.States["responses"], "-"), cmp.Or(t.States["detokenized"], "-"), t.Compared, t.Workers,
			t.Bytes>>20, cmp.Or(t.From, "-"), why)
	}
	return w.Flush()
}
