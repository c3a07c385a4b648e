package engine

import (
	"bytes"
	"encoding/hex"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/internal/wire/msgpack"
)

// blockReader reads an array that has an entry for each block, or fewer.
type blockReader struct {
	r    msgpack.Reader
	left int // entries not read
}

// perBlock begins to read the value kept in l.
func perBlock(l *later) (b blockReader) {
	if l.ok {
		b.r = l.r
		b.left = b.r.Array()
		if b.r.Err() != nil {
			b.left = 1 // so that reading it fails
		}
	}
	return b
}

// none reads the next block's entry if it is nil, or there is none, and tells
// whether so.
func (b *blockReader) none() bool {
	if b.left == 0 {
		return true
	}
	if b.r.Nil() {
		b.left--
		return true
	}
	return false
}

// lookahead reads the next block's tokens beyond it: the first of them, and
// whether there is any. It is not ok if there are several.
func (b *blockReader) lookahead() (next uint32, more, ok bool) {
	if b.left == 0 {
		return 0, false, true
	}
	b.left--
	n := 1
	switch b.r.Kind() {
	case msgpack.Nil:
		b.r.Nil()
		return 0, false, true
	case msgpack.Array:
		n = b.r.Array()
	}
	if n > 0 {
		next = b.r.Uint32()
	}
	for i := 1; i < n && b.r.Err() == nil; i++ {
		b.r.Skip()
	}
	return next, n > 0, n <= 1 && b.r.Err() == nil
}

// blockKeys reads the next block's extra keys: what its hash covers besides
// its tokens. The multimodal hashes go to d.mm and a chain's salt to st, as
// long as the keys are of these kinds:
//
//   - the event's LoRA name;
//   - a chain's first block only: the salt, any other string;
//   - an identifier and its offset in the block, as an array or one after the
//     other; or an identifier of 64 hexadecimal digits alone;
//   - ["lora", name, …] and ["cache_salt", salt], as newer vLLM may write them;
//   - a map with mm_objects (Dynamo's block_mm_infos).
func (d *Decoder) blockKeys(b *blockReader, f *fields, st *chain, first bool) (ok bool) {
	b.left--
	r := &b.r
	k := blockKeys{d: d, f: f, st: st, first: first}
	switch r.Kind() {
	case msgpack.Map:
		return k.objects(r) && r.Err() == nil
	}
	n := r.Array()
	for i := 0; i < n; i++ {
		switch r.Kind() {
		case msgpack.Str:
			s := r.Str()
			if i+1 < n && r.Kind() == msgpack.Int { // the offset
				r.Skip()
				i++
				d.mm = append(d.mm, blockhash.MultimodalHash(s))
			} else if !k.str(s) {
				return false
			}
		case msgpack.Array:
			if !k.tuple(r) {
				return false
			}
		default:
			return false // prompt embeddings (binary) and what is yet to come
		}
	}
	return r.Err() == nil
}

// blockKeys is the state of reading one block's keys.
type blockKeys struct {
	d          *Decoder
	f          *fields
	st         *chain
	first      bool // of its chain
	lora, salt bool // were met
}

// str takes a string that stands alone.
func (k *blockKeys) str(s []byte) bool {
	switch {
	case !k.lora && len(s) > 0 && bytes.Equal(s, k.f.lora):
		k.lora = true
		return true
	case k.first && !k.salt:
		k.setSalt(s)
		return true
	case isDigest(s):
		k.d.mm = append(k.d.mm, blockhash.MultimodalHash(s))
		return true
	}
	return false
}

func (k *blockKeys) setSalt(s []byte) {
	k.salt = true
	if len(s) > 0 {
		k.st.salt = k.d.salts.get(s, seedOfSalt)
	}
}

// tuple takes an array among the keys.
func (k *blockKeys) tuple(r *msgpack.Reader) bool {
	n := r.Array()
	if n < 2 || r.Kind() != msgpack.Str {
		return false
	}
	name := r.Str()
	switch r.Kind() {
	case msgpack.Int:
		r.Skip()
		k.d.mm = append(k.d.mm, blockhash.MultimodalHash(name))
		return n == 2
	case msgpack.Str:
		s := r.Str()
		for i := 2; i < n && r.Err() == nil; i++ {
			r.Skip()
		}
		switch {
		case string(name) == "cache_salt":
			k.setSalt(s)
			return true
		case string(name) == "lora" && len(s) > 0:
			k.st.lora = k.d.loras.get(s, seedOfLora)
			return true
		}
	}
	return false
}

// objects takes {"mm_objects": [{"mm_hash": u64, …}, …]}.
func (k *blockKeys) objects(r *msgpack.Reader) bool {
	for i, n := 0, r.Map(); i < n && r.Err() == nil; i++ {
		if string(r.Str()) != "mm_objects" {
			r.Skip()
			continue
		}
		for j, m := 0, r.Array(); j < m && r.Err() == nil; j++ {
			for l, fields := 0, r.Map(); l < fields && r.Err() == nil; l++ {
				if string(r.Str()) == "mm_hash" {
					k.d.mm = append(k.d.mm, r.Bits64())
				} else {
					r.Skip()
				}
			}
		}
	}
	return true
}

// isDigest reports whether s is 64 hexadecimal digits.
func isDigest(s []byte) bool {
	var b [32]byte
	if len(s) != 64 {
		return false
	}
	_, err := hex.Decode(b[:], s)
	return err == nil
}
