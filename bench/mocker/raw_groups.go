package mocker

import (
	"slices"

	"github.com/kvatlas/kvatlas/event"
)

// named is a block of full attention by its name: where it stands.
type named struct {
	local     uint64
	parent    uint64
	hasParent bool
}

// name remembers blocks that full attention stores: other cache groups name them alone, and
// engines tell their tokens. The caller holds the lock.
func (r *raw) name(ev *event.Event) {
	if r.names == nil || len(r.names) > r.keep {
		r.oldNames, r.names = r.names, make(map[uint64]named)
	}
	at := named{parent: ev.Parent, hasParent: ev.HasParent}
	for i, name := range ev.Engine {
		at.local = ev.Local[i]
		r.names[name] = at
		at = named{parent: name, hasParent: true}
	}
}

// find returns a block of a name and its content. The caller holds the lock.
func (r *raw) find(name uint64) (at named, c content, ok bool) {
	if at, ok = r.names[name]; !ok {
		if at, ok = r.oldNames[name]; !ok {
			return at, c, false
		}
	}
	c, ok = r.content(at.local)
	return at, c, ok
}

// group returns the index of the group in vLLM's numbering, and the group.
func (r *raw) group(number uint8) (idx uint64, g event.CacheGroup) {
	i := slices.IndexFunc(r.groups, func(g event.CacheGroup) bool { return g.Number == number })
	return uint64(max(i, 0)), r.groups[max(i, 0)]
}

// grouped appends an event as vLLM 0.33 sends it of a model with several cache groups: a map
// with the group's number and, at stores, its kind. It is nil where blocks are not known.
func (r *raw) grouped(b []byte, ev *event.Event) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	idx, g := r.group(ev.Group)
	if ev.Kind == event.Removed {
		b = msgText(msgText(msgMap(b, 4), "type"), "BlockRemoved")
		b = msgHashes(msgText(b, "block_hashes"), ev.Engine)
		return msgNumber(msgText(msgText(msgText(b, "medium"), "GPU"), "group_idx"), idx)
	}
	if ev.Group == 0 {
		r.name(ev)
	}
	var tokens []uint32
	var keys [][]string
	var first named
	lora := ""
	for i, name := range ev.Engine {
		var block []uint32
		var own []string
		for at, left := name, int(g.BlockSize)/r.size; left > 0; left-- {
			n, c, ok := r.find(at)
			if !ok || left > 1 && !n.hasParent {
				return nil
			}
			block = append(slices.Clone(c.tokens), block...)
			own = c.keys(!n.hasParent)
			lora = c.lora
			if at = n.parent; i == 0 {
				first = n
			}
		}
		tokens, keys = append(tokens, block...), append(keys, own)
	}
	fields, window := 11, g.Kind == "sliding_window"
	if window { // what is None is left out
		fields++
	}
	b = msgText(msgText(msgMap(b, fields), "type"), "BlockStored")
	b = msgText(msgHashes(msgText(b, "block_hashes"), ev.Engine), "parent_block_hash")
	b = msgParent(b, first.parent, first.hasParent)
	b = msgTokens(msgText(b, "token_ids"), tokens)
	b = msgNumber(msgText(b, "block_size"), uint64(g.BlockSize))
	b = append(msgText(b, "lora_id"), msgNil)
	b = msgLora(msgText(msgText(msgText(b, "medium"), "GPU"), "lora_name"), lora)
	b = msgKeys(msgText(b, "extra_keys"), keys)
	b = msgNumber(msgText(b, "group_idx"), idx)
	b = msgText(msgText(b, "kv_cache_spec_kind"), g.Kind)
	if window {
		b = msgNumber(msgText(b, "kv_cache_spec_sliding_window"), uint64(g.Span))
	}
	return b
}
