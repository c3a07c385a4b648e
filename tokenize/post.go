package tokenize

import (
	"encoding/json"
	"fmt"
)

// templatePart is one of: a token, a text.
type templatePart struct {
	SpecialToken *struct {
		ID string `json:"id"`
	} `json:"SpecialToken"`
	Sequence *struct {
		ID string `json:"id"`
	} `json:"Sequence"`
}

type templateToken struct {
	ID  string   `json:"id"`
	IDs []uint32 `json:"ids"`
}

// loadPost takes what is put before and after a single text.
func (t *Tokenizer) loadPost(c *component) error {
	if c == nil {
		return nil
	}
	switch c.Type {
	case "ByteLevel": // alters offsets alone
		t.trims = t.trims || c.TrimOffsets == nil || *c.TrimOffsets
		return nil
	case "Sequence":
		for i := range c.Processors {
			if err := t.loadPost(&c.Processors[i]); err != nil {
				return err
			}
		}
		return nil
	case "TemplateProcessing":
		return t.loadTemplate(c)
	case "BertProcessing", "RobertaProcessing":
		t.trims = t.trims || c.Type == "RobertaProcessing"
		before, err := pairID(c.Cls)
		if err != nil {
			return fmt.Errorf("post_processor: cls: %w", err)
		}
		after, err := pairID(c.Sep)
		if err != nil {
			return fmt.Errorf("post_processor: sep: %w", err)
		}
		t.before = append([]uint32{before}, t.before...)
		t.after = append(t.after, after)
		return nil
	}
	return refused("post-processor %q", c.Type)
}

func pairID(b []byte) (uint32, error) {
	var pair []json.RawMessage
	if err := json.Unmarshal(b, &pair); err != nil {
		return 0, err
	}
	if len(pair) != 2 {
		return 0, errJSON
	}
	var id uint32
	err := json.Unmarshal(pair[1], &id)
	return id, err
}

func (t *Tokenizer) loadTemplate(c *component) error {
	var tokens map[string]templateToken
	if len(c.SpecialTokens) > 0 {
		if err := json.Unmarshal(c.SpecialTokens, &tokens); err != nil {
			return fmt.Errorf("post_processor: special_tokens: %w", err)
		}
	}
	var before, after []uint32
	texts := 0
	for _, p := range c.Single {
		switch {
		case p.Sequence != nil && p.SpecialToken == nil && p.Sequence.ID == "A":
			texts++
		case p.SpecialToken != nil && p.Sequence == nil:
			token, ok := tokens[p.SpecialToken.ID]
			if !ok {
				return refused("post-processor with the unknown token %q", p.SpecialToken.ID)
			}
			if texts == 0 {
				before = append(before, token.IDs...)
			} else {
				after = append(after, token.IDs...)
			}
		default:
			return refused("post-processor of a single text with other parts")
		}
	}
	if texts != 1 {
		return refused("post-processor that takes the text %d times", texts)
	}
	t.before = append(before, t.before...)
	t.after = append(t.after, after...)
	return nil
}
