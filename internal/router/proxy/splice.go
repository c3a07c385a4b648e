package proxy

import (
	"slices"

	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// splice returns a JSON object without its members of the names that drop lists,
// and with those that add holds, as texts without brackets: in pieces, most of them
// parts of data, which may be large.
func splice(data []byte, drop []string, add ...[]byte) (out [][]byte, err error) {
	out = append(out, []byte("{"))
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
			out = append(out, comma)
		}
		out = append(out, data[start:r.Offset()])
	}
	if r.End(); r.Err() != nil {
		return nil, r.Err()
	}
	for _, members := range add {
		if len(members) == 0 {
			continue
		}
		if len(out) > 1 {
			out = append(out, comma)
		}
		out = append(out, members)
	}
	return append(out, []byte("}")), nil
}

var comma = []byte(",")

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
