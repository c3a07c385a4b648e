package engine

import (
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// fields is one event as it stands in the payload, whatever its layout. The
// hashes read so far lie in the decoder's arena from engineAt on, the tokens in
// its scratch.
type fields struct {
	engineAt, localAt int

	kind      event.Kind // 0: unknown
	hashes    bool       // block_hashes were there
	aliases   later      // Mooncake's seq_hashes, used where there are no block_hashes
	hasParent bool
	parent    uint64
	bigrams   bool  // token_ids were pairs: each token with the one after it
	blockSize int64 // -1: not given
	medium    []byte
	lora      []byte
	loraID    int64 // 0: not given, or not by a number
	salt      []byte
	extraKeys later
	mmInfos   later
	lookahead later
	parts     later // components, of SGLang's hybrid models
	group     int64 // -1: not given
	window    int64 // of a sliding window; 0: not given
	spec      []byte
	locality  []byte
	eagle     bool
	unknown   int // fields
}

// later is a value to be read when the other fields are known: its meaning depends on
// them, and their order is free. It is a copy of the reader at the value, so it lives as
// long as the payload; the zero value is none.
type later struct {
	r  msgpack.Reader
	ok bool
}

// keep remembers the next value and steps over it. A nil is none.
func (l *later) keep(r *msgpack.Reader) {
	if r.Nil() {
		return
	}
	l.r, l.ok = *r, true
	r.Skip()
}

// read reads the event: an array that begins with the tag, or a map with the
// tag under "type". An array's later fields are those of newer versions of an engine:
// ones that are not there keep their default, ones beyond what is known are counted.
func (f *fields) read(d *Decoder, r *msgpack.Reader) {
	f.blockSize, f.group = -1, -1
	d.tokens = d.tokens[:0]
	if r.Kind() == msgpack.Map {
		for i, n := 0, r.Map(); i < n && r.Err() == nil; i++ {
			f.named(d, r, r.Str())
		}
		return
	}
	n := r.Array()
	if n == 0 {
		return
	}
	f.kind = kindOf(r.Str())
	for i := 1; i < n && r.Err() == nil; i++ {
		switch f.kind {
		case event.Stored:
			f.stored(d, r, i)
		case event.Removed:
			f.removed(d, r, i)
		default:
			r.Skip()
		}
	}
}

// kindOf returns the kind of event with the tag, 0 if there is none.
func kindOf(tag []byte) event.Kind {
	switch string(tag) {
	case "BlockStored", "stored":
		return event.Stored
	case "BlockRemoved", "removed":
		return event.Removed
	case "AllBlocksCleared", "cleared":
		return event.Cleared
	}
	return 0
}

// named reads the field with the name.
func (f *fields) named(d *Decoder, r *msgpack.Reader, name []byte) {
	switch string(name) {
	case "type":
		f.kind = kindOf(r.Str())
	case "event_type": // Mooncake, beside type or in its place
		if k := kindOf(optional(r)); f.kind == 0 {
			f.kind = k
		}
	case "block_hashes":
		f.readHashes(d, r)
	case "seq_hashes":
		f.aliases.keep(r)
	case "parent_block_hash":
		f.readParent(r)
	case "parent_hash":
		if f.hasParent {
			r.Skip()
		} else {
			f.readParent(r)
		}
	case "token_ids":
		f.readTokens(d, r)
	case "block_size":
		f.blockSize = number(r)
	case "medium":
		f.medium = optional(r)
	case "lora_id":
		f.readLoraID(r)
	case "lora_name":
		f.lora = optional(r)
	case "cache_salt", "cache_namespace":
		f.salt = optional(r)
	case "extra_keys":
		f.extraKeys.keep(r)
	case "block_mm_infos":
		f.mmInfos.keep(r)
	case "lookahead_token_ids":
		f.lookahead.keep(r)
	case "group_idx":
		f.group = number(r)
	case "kv_cache_spec_kind":
		f.spec = optional(r)
	case "component_types":
		f.parts.keep(r)
	case "locality":
		f.locality = optional(r)
	case "is_eagle":
		f.eagle = r.Bool()
	case "kv_cache_spec_sliding_window":
		f.window = max(0, number(r))
	case "ownership", "session_id", // of no use here
		"event_id", "timestamp", "model_name", "additional_salt", "tenant_id", "backend_id",
		"group_id", "object_key", "base_block_idx", "dp_rank":
		r.Skip()
	default:
		f.unknown++
		r.Skip()
	}
}

// stored reads the field at position i of a BlockStored array:
//
//	0 tag, 1 hashes, 2 parent, 3 tokens, 4 block size, 5 lora_id, 6 medium,
//	7 lora_name (vLLM), or a map with cache_salt (SGLang),
//	8 extra_keys, 9 group_idx, 10 spec kind, 11 sliding window (vLLM)
//
// What comes after 7 is told by its type, as publishers differ there.
func (f *fields) stored(d *Decoder, r *msgpack.Reader, i int) {
	switch i {
	case 1:
		f.readHashes(d, r)
	case 2:
		f.readParent(r)
	case 3:
		f.readTokens(d, r)
	case 4:
		f.blockSize = number(r)
	case 5:
		f.readLoraID(r)
	case 6:
		f.medium = optional(r)
	default:
		f.tail(d, r, i)
	}
}

func (f *fields) tail(d *Decoder, r *msgpack.Reader, i int) {
	switch r.Kind() {
	case msgpack.Nil:
		r.Nil()
	case msgpack.Map:
		for j, n := 0, r.Map(); j < n && r.Err() == nil; j++ {
			f.named(d, r, r.Str())
		}
	case msgpack.Str:
		switch {
		case i == 7:
			f.lora = r.Str()
		case f.spec == nil:
			f.spec = r.Str()
		default:
			f.unknown++
			r.Skip()
		}
	case msgpack.Array:
		if !f.extraKeys.ok {
			f.extraKeys.keep(r)
			return
		}
		f.unknown++
		r.Skip()
	case msgpack.Int:
		if i <= 9 && f.group < 0 {
			f.group = number(r)
			return
		}
		f.window = max(0, number(r))
	default:
		f.unknown++
		r.Skip()
	}
}

// removed reads the field at position i of a BlockRemoved array:
//
//	0 tag, 1 hashes, 2 medium, 3 group_idx
func (f *fields) removed(d *Decoder, r *msgpack.Reader, i int) {
	switch i {
	case 1:
		f.readHashes(d, r)
	case 2:
		f.medium = optional(r)
	case 3:
		f.group = number(r)
	default:
		f.unknown++
		r.Skip()
	}
}

func (f *fields) readHashes(d *Decoder, r *msgpack.Reader) {
	f.hashes = true
	d.hashes = r.AppendHashes(d.hashes[:f.engineAt])
}

func (f *fields) readParent(r *msgpack.Reader) {
	if f.hasParent = !r.Nil(); f.hasParent {
		f.parent = r.Hash()
	}
}

// readTokens reads the tokens. SGLang with EAGLE, EAGLE3 or MTP sends pairs, each token
// with the one after it (0.5.23, RadixKey.is_bigram): they are the tokens of the blocks
// and one more.
func (f *fields) readTokens(d *Decoder, r *msgpack.Reader) {
	ahead := *r
	if !ahead.Nil() && ahead.Array() > 0 && ahead.Kind() == msgpack.Array {
		f.bigrams = true
		d.readPairs(r)
		return
	}
	d.tokens = r.AppendUint32s(d.tokens[:0])
}

// readPairs reads pairs as the tokens that they are a window over. Of pairs that do not
// hang together it leaves none, which fits no number of blocks.
func (d *Decoder) readPairs(r *msgpack.Reader) {
	d.tokens = d.tokens[:0]
	whole := true
	for i, n := 0, r.Array(); i < n && r.Err() == nil; i++ {
		d.pair = r.AppendUint32s(d.pair[:0])
		switch at := len(d.tokens); {
		case len(d.pair) != 2, i > 0 && whole && d.tokens[at-1] != d.pair[0]:
			whole = false
		case i == 0:
			d.tokens = append(d.tokens, d.pair...)
		case whole:
			d.tokens = append(d.tokens, d.pair[1])
		}
	}
	if !whole {
		d.tokens = d.tokens[:0]
	}
}

// optional reads a string, or nil for a nil.
func optional(r *msgpack.Reader) []byte {
	if r.Nil() {
		return nil
	}
	return r.Str()
}

// readLoraID reads an adapter's number; one that cannot be is nobody's name.
func (f *fields) readLoraID(r *msgpack.Reader) {
	if r.Kind() == msgpack.Int {
		f.loraID = int64(r.Bits64())
		return
	}
	if !r.Nil() {
		r.Skip()
		f.loraID = -1
	}
}

// number reads an integer that is not negative, or -1 for a nil.
func number(r *msgpack.Reader) int64 {
	if r.Nil() {
		return -1
	}
	return int64(r.Uint32())
}
