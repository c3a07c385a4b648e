package enginetest

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// Payload returns the batch as the first SGLang releases encode it, for mock
// publishers. The history is one of a release with signed hashes that has no
// host memory, salts and groups.
func (b *Batch) Payload() ([]byte, error) {
	var script []json.RawMessage
	if err := json.Unmarshal(b.Line, &script); err != nil {
		return nil, fmt.Errorf("script: %w", err)
	}
	events := []any{}
	for _, raw := range script {
		var said struct {
			Stored *struct {
				Hashes []int    `json:"hashes"`
				Parent *int     `json:"parent"`
				Tokens []uint32 `json:"tokens"`
			} `json:"stored"`
			Removed *struct {
				Hashes []int `json:"hashes"`
			} `json:"removed"`
		}
		if bytes.Equal(raw, []byte(`"cleared"`)) {
			events = append(events, []any{"AllBlocksCleared"})
			continue
		}
		if err := json.Unmarshal(raw, &said); err != nil {
			return nil, fmt.Errorf("script: %w", err)
		}
		switch s, r := said.Stored, said.Removed; {
		case s != nil:
			var parent any
			if s.Parent != nil {
				parent = *s.Parent
			}
			events = append(events, []any{"BlockStored", list(s.Hashes), parent, list(s.Tokens), BlockSize, nil})
		case r != nil:
			events = append(events, []any{"BlockRemoved", list(r.Hashes)})
		}
	}
	return mptest.Encode([]any{1.5, events}), nil
}

func list[T any](values []T) []any {
	out := make([]any, len(values))
	for i, v := range values {
		out[i] = v
	}
	return out
}
