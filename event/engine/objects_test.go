package engine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/mptest"
)

// mooncakeEvent is an event as Mooncake's master packs it (kv_event_publisher.cpp of 3b5a594,
// with the fields of older consumers and the key).
func mooncakeEvent(kind, key, medium string) mptest.Map {
	types := map[string]string{"stored": "BlockStored", "removed": "BlockRemoved"}
	m := mptest.Map{
		"event_id", 7, "timestamp", uint64(1764000000123), "event_type", kind, "type", types[kind], "model_name", nil, "block_size", nil,
		"additional_salt", nil, "lora_name", nil, "tenant_id", "default", "backend_id", "pool-0", "group_id", nil, "medium", medium,
		"dp_rank", nil, "object_key", key, "seq_hashes", []any{}, "block_hashes", []any{},
	}
	if kind == "stored" {
		return append(m, "base_block_idx", 0, "parent_hash", nil, "token_ids", nil, "parent_block_hash", nil)
	}
	return append(m, "base_block_idx", nil)
}

// TestObjectsOfAStore: a master's payload is read, what says nothing of an object is counted.
func TestObjectsOfAStore(t *testing.T) {
	payload := mptest.Encode([]any{uint64(1764000000123), []any{
		mooncakeEvent("stored", "a", "cpu"), mooncakeEvent("removed", "b", "disk"), mooncakeEvent("stored", "", "cpu"),
		mptest.Map{"event_type", "cleared", "tenant_id", "x", "object_key", nil}, mptest.Map{"event_type", "moved", "object_key", "c"}, []any{"BlockStored"},
	}, 0})
	var got []string
	left, err := Objects(payload, func(ev ObjectEvent) {
		got = append(got, fmt.Sprint(ev.Kind, " ", string(ev.Key), " ", string(ev.Tenant)))
	})
	want := []string{fmt.Sprint(event.Stored, " a default"), fmt.Sprint(event.Removed, " b default"), fmt.Sprint(event.Cleared, "  x")}
	if err != nil || left != 3 || !slices.Equal(got, want) {
		t.Errorf("%q, %d left, %v", got, left, err)
	}
	for _, bad := range [][]byte{nil, {0x91, 1}, {0xc0}, payload[:len(payload)-40]} {
		if _, err := Objects(bad, func(ObjectEvent) {}); err == nil {
			t.Errorf("%x is taken", bad)
		}
	}
}

// TestKeysOfObjects: keys as a vLLM, an SGLang and a Mooncake release make them, and ones that are none.
func TestKeysOfObjects(t *testing.T) {
	digest := strings.Repeat("ab", 12) + "0123456789abcdef" + "fedcba9876543210"
	digest = "0123456789abcdef" + digest[:32] + "fedcba9876543210"
	for key, want := range map[string]string{
		"deploy@org/model@tp_rank:3@pcp0@dcp1@pp_rank:2@group:7@" + digest: "fedcba9876543210 deploy@org/model tp_rank:3@pcp0@dcp1@pp_rank:2@group:7 7",
		"m@tp_rank:0@pcp0@dcp0@pp_rank:0@" + digest:                        "fedcba9876543210 m tp_rank:0@pcp0@dcp0@pp_rank:0 0",
		"m@tp_rank:0@group:1@" + digest[32:]:                               "fedcba9876543210 m tp_rank:0@group:1 1", // xxhash_cbor
		digest + "_0_k":                                                    "123456789abcdef  _0_k 0",
		digest + "_1_0_v":                                                  "123456789abcdef  _1_0_v 0",
		digest + "__k":                                                     "123456789abcdef  __k 0",
		"a_tag_" + digest + "__k":                                          "123456789abcdef a_tag __k 0",
		"1234567":                                                          "12d687   0",
		"0xff":                                                             "ff   0",
		"010":                                                              "a   0",
		"0b11":                                                             "",
		"0x":                                                               "",
		digest + "_0_swa_k":                                                "",
		digest + "_0_temporal":                                             "",
		digest:                                                             "",
		"x" + digest + "_0_k":                                              "",
		"m@tp_rank:0@group:x@" + digest:                                    "",
		"m@tp_rank:0@" + digest[:20] + "zz":                                "",
		"m@tp_rank:0@" + digest + digest:                                   "",
		"m@tp_rank:0@":                                                     "",
		"m@tp_rank:0":                                                      "",
		"1_000":                                                            "",
		"":                                                                 "",
	} {
		got := ""
		if k, ok := ParseObjectKey([]byte(key)); ok {
			got = fmt.Sprintf("%x %s %s %d", k.Hash, k.Prefix, k.Part, k.Group)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
}

func FuzzObjects(f *testing.F) {
	f.Add(mptest.Encode([]any{1, []any{mooncakeEvent("stored", "m@tp_rank:0@group:1@0123456789abcdef", "cpu")}, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, _ = Objects(b, func(ev ObjectEvent) {
			n++
			if k, ok := ParseObjectKey(ev.Key); ok && len(k.Prefix)+len(k.Part) > len(ev.Key) {
				t.Errorf("%q and %q are more than %q", k.Prefix, k.Part, ev.Key)
			}
		})
		if n > len(b) {
			t.Errorf("%d events of %d bytes", n, len(b))
		}
	})
}
