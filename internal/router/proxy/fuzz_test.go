package proxy

import (
	"bytes"
	"encoding/json"
	"slices"
	"testing"
)

// Any body is read or refused as encoding/json would do it, and what is spliced is
// JSON again, without the members that were dropped and with the others as they
// were.
func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":[1,2],"stream":true,"max_tokens":3,"kv_transfer_params":{"a":[]}}`))
	f.Add([]byte(` { "messages" : [ {"role":"user","content":"a\n\"b\""} ] , "max_completion_tokens":1e3, "cache_salt":"x" } `))
	f.Add([]byte(`{"prompt":[[1],[2]],"\u0073tream":false,"bootstrap_room":18446744073709551615}`))
	f.Add([]byte(`{"prompt":["a","b"],"model":null`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := parseBody(data, 1<<20)
		var object map[string]json.RawMessage
		valid := json.Unmarshal(data, &object) == nil && object != nil
		if err == nil && !valid {
			t.Fatalf("%q is taken for an object", data)
		}
		if err != nil {
			return // deep nesting is refused here and not there
		}
		if b.output < 0 || b.tokens != nil && len(b.tokens) > len(data) {
			t.Fatalf("%q: %+v", data, b)
		}
		pieces, err := splice(data, vllmReplaced, []byte(vllmPrefill+oneToken), (&givenIDs{}).paramsMember([]byte(vllmParams)))
		out := bytes.Join(pieces, nil)
		var changed map[string]json.RawMessage
		if err != nil || json.Unmarshal(out, &changed) != nil {
			t.Fatalf("%q is spliced to %q: %v", data, out, err)
		}
		for name, value := range object {
			if !slices.Contains(vllmReplaced, name) && string(changed[name]) != string(value) {
				t.Fatalf("%q: %s is %q after splicing", data, name, changed[name])
			}
		}
		if string(changed["max_tokens"]) != "1" || string(changed["stream"]) != "false" || changed["min_tokens"] != nil {
			t.Fatalf("%q is spliced to %q", data, out)
		}
		if raw, err := member(out, paramsField); err != nil || string(raw) != string(changed[paramsField]) {
			t.Fatalf("%q of %q: %v", raw, out, err)
		}
	})
}
