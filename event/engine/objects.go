package engine

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// ObjectEvent says that an object of a store came, went, or that all of a tenant's went. Its
// texts live as long as the payload.
type ObjectEvent struct {
	Kind        event.Kind
	Key, Tenant []byte
}

// Objects calls f for each event of a payload of Mooncake's master (kv_event_publisher.cpp of
// 3b5a594: an array of time, events and rank; each event a map), and returns how many events
// say nothing of an object. An error says that the payload cannot be read to its end.
func Objects(payload []byte, f func(ObjectEvent)) (left int, err error) {
	r := msgpack.NewReader(payload)
	if n := r.Array(); r.Err() == nil && n < 2 {
		return 0, fmt.Errorf("a store's payload of %d elements: %w", n, event.ErrMalformed)
	}
	r.Skip() // the time
	for i, n := 0, r.Array(); i < n && r.Err() == nil; i++ {
		ev := object(&r)
		switch {
		case r.Err() != nil:
		case ev.Kind == event.Cleared || ev.Kind != 0 && len(ev.Key) > 0:
			f(ev)
		default:
			left++
		}
	}
	if err := r.Err(); err != nil {
		reason := event.ErrMalformed
		if errors.Is(err, msgpack.ErrTruncated) {
			reason = event.ErrTruncated
		}
		return left, fmt.Errorf("a store's payload of %d bytes: %w: %w", len(payload), reason, err)
	}
	return left, nil
}

func object(r *msgpack.Reader) (ev ObjectEvent) {
	if r.Kind() != msgpack.Map {
		r.Skip() // none that is known
		return ev
	}
	for i, n := 0, r.Map(); i < n && r.Err() == nil; i++ {
		switch string(r.Str()) {
		case "event_type", "type":
			if k := kindOf(optional(r)); k != 0 {
				ev.Kind = k
			}
		case "object_key":
			ev.Key = optional(r)
		case "tenant_id":
			ev.Tenant = optional(r)
		default:
			r.Skip()
		}
	}
	return ev
}

// ObjectKey is what an object's key says of it.
type ObjectKey struct {
	Hash   uint64 // as the engine's events call the block
	Prefix []byte // of the deployment and model
	Part   []byte // which part of the block it is; of one key's bytes
	Group  uint32 // vLLM's cache group; 0 where none is told
}

// ParseObjectKey reads the key of a block's object; ok is false for others.
//
//	vLLM    prefix@model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@hash (mooncake/store/data.py of 015cb3c):
//	        events have the last 8 bytes of the hash
//	SGLang  tag_hash_0_k, tag_hash_0_v, tag_hash__k with MLA (0.5.23, mooncake_store.py): events have the
//	        first 8 bytes; objects of caches besides full attention are called otherwise, and none here
//	others  a number, decimal or 0x…: the hash itself
func ParseObjectKey(key []byte) (k ObjectKey, ok bool) {
	if at := bytes.LastIndex(key, []byte("@tp_rank:")); at >= 0 {
		last := bytes.LastIndexByte(key, '@')
		if last <= at {
			return k, false
		}
		k.Prefix, k.Part = key[:at], key[at+1:last]
		if g := bytes.LastIndex(k.Part, []byte("@group:")); g >= 0 {
			n, err := strconv.ParseUint(string(k.Part[g+len("@group:"):]), 10, 32)
			if err != nil {
				return k, false
			}
			k.Group = uint32(n)
		}
		digest := key[last+1:]
		k.Hash, ok = hash64(digest, len(digest)-16)
		return k, ok && len(digest)%2 == 0
	}
	digits, base := string(key), 10
	if hexadecimal, is := strings.CutPrefix(digits, "0x"); is {
		digits, base = hexadecimal, 16
	}
	if n, err := strconv.ParseUint(digits, base, 64); err == nil {
		k.Hash = n
		return k, true
	}
	// The tag may have underscores: the hash is what stands before the last two or three of them.
	const digest, underscores = 64, 3
	for at, n := len(key), 0; n < underscores; n++ {
		if at = bytes.LastIndexByte(key[:at], '_'); at < 0 {
			return k, false
		}
		from := at - digest
		if from < 0 || from > 0 && key[from-1] != '_' || !ofFullAttention(key[at:]) {
			continue
		}
		if k.Hash, ok = hash64(key[from:at], 0); !ok {
			continue
		}
		if from > 0 {
			k.Prefix = key[:from-1]
		}
		k.Part = key[at:]
		return k, true
	}
	return k, false
}

// hash64 reads 16 hexadecimal digits of a digest, which has no others.
func hash64(digest []byte, from int) (uint64, bool) {
	var all [32]byte
	if from < 0 || len(digest) > 2*len(all) {
		return 0, false
	}
	if _, err := hex.Decode(all[:], digest); err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(string(digest[from:from+16]), 16, 64)
	return n, err == nil
}

// ofFullAttention reports whether SGLang's suffix is _rank_k, _rank_pp_v or __k.
func ofFullAttention(suffix []byte) bool {
	n := len(suffix)
	if n < 3 || suffix[n-2] != '_' || suffix[n-1] != 'k' && suffix[n-1] != 'v' {
		return false
	}
	for _, c := range suffix[:n-2] {
		if c != '_' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}
