package proxy

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// splice returns a JSON object without its members of the names that drop lists,
// and with those that add holds, as text without brackets. All other bytes stay.
func splice(data []byte, drop []string, add string) ([]byte, error) {
	out := make([]byte, 1, len(data)+len(add)+2)
	out[0] = '{'
	var r jsonscan.Reader
	r.Reset(data)
	r.Open('{')
	for first := true; r.More('}', &first); {
		r.Peek()
		start := r.Offset()
		dropped := slices.Contains(drop, string(r.Key()))
		if r.Skip(); dropped || r.Err() != nil {
			continue
		}
		if len(out) > 1 {
			out = append(out, ',')
		}
		out = append(out, data[start:r.Offset()]...)
	}
	if r.End(); r.Err() != nil {
		return nil, r.Err()
	}
	if len(out) > 1 && add != "" {
		out = append(out, ',')
	}
	return append(append(out, add...), '}'), nil
}

// member returns the text of an object's member, the last one of the name; nil if
// there is none, or null.
func member(data []byte, name string) (raw []byte, err error) {
	var r jsonscan.Reader
	r.Reset(data)
	r.Open('{')
	for first := true; r.More('}', &first); {
		if string(r.Key()) == name {
			raw = r.Raw()
		} else {
			r.Skip()
		}
	}
	if r.Err() != nil || string(raw) == "null" {
		return nil, r.Err()
	}
	return raw, nil
}
