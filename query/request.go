package query

import (
	"strconv"

	"github.com/kvatlas/kvatlas/core"
)

// findRequest is the body of POST /v1/find_matches. Its slices and texts are
// valid until the next parse; texts may point into the body.
type findRequest struct {
	model     []byte
	group     []byte
	lora      []byte
	salt      []byte
	tokens    []uint32
	hashes    []uint64
	blockSize uint32 // 0: every block size of the model
	maxBlocks uint32 // 0: no limit
	earlyExit bool
	treeSizes bool

	has  fieldSet // the fields that are given and not null
	scan scanner
	kept []byte // texts that had escapes
}

// fieldSet is a set of fields of a findRequest.
type fieldSet uint16

// The fields of a findRequest.
const (
	fieldModel fieldSet = 1 << iota
	fieldGroup
	fieldBlockSize
	fieldTokens
	fieldHashes
	fieldLora
	fieldSalt
	fieldMaxBlocks
	fieldEarlyExit
	fieldTreeSizes
)

// maxName bounds the names in a request: model, group, LoRA and salt.
const maxName = 1024

// fieldOf returns the field with the name, or 0.
func fieldOf(name []byte) fieldSet {
	switch string(name) {
	case "model":
		return fieldModel
	case "group":
		return fieldGroup
	case "block_size":
		return fieldBlockSize
	case "token_ids":
		return fieldTokens
	case "hashes":
		return fieldHashes
	case "lora_name":
		return fieldLora
	case "cache_salt":
		return fieldSalt
	case "max_blocks":
		return fieldMaxBlocks
	case "early_exit":
		return fieldEarlyExit
	case "tree_sizes":
		return fieldTreeSizes
	}
	return 0
}

// parse reads the body, which must not change while r is used. A field that is
// null counts as absent. maxTokens bounds the elements of either array.
func (r *findRequest) parse(body []byte, maxTokens int) *Problem {
	r.model, r.group, r.lora, r.salt, r.kept = nil, nil, nil, nil, r.kept[:0]
	r.tokens, r.hashes, r.blockSize, r.maxBlocks, r.has = r.tokens[:0], r.hashes[:0], 0, 0, 0
	r.earlyExit, r.treeSizes = false, false
	s := &r.scan
	s.body, s.pos = body, 0
	defer func() { s.body = nil }()

	if s.next() != '{' {
		return s.wrongType("body", "a JSON object")
	}
	s.pos++
	var seen fieldSet
	for first := true; ; first = false {
		if c := s.next(); c == '}' && first {
			s.pos++
			break
		} else if c != '"' {
			return s.malformed("a field name")
		}
		name, p := s.str("body")
		if p != nil {
			return p
		}
		f := fieldOf(name)
		if f == 0 {
			return bad(shorten(name), reasonUnknownField, "no such field; there are model, group, block_size, "+
				"token_ids, hashes, lora_name, cache_salt, max_blocks, early_exit and tree_sizes")
		}
		if seen&f != 0 {
			return bad(string(name), reasonDuplicateField, "the field is given twice")
		}
		seen |= f
		if p := s.take(':', `":"`); p != nil {
			return p
		}
		null, p := s.null()
		if p == nil && !null {
			r.has |= f
			p = r.parseField(f, maxTokens)
		}
		if p != nil {
			return p
		}
		if c := s.next(); c != ',' && c != '}' {
			return s.malformed(`"," or "}"`)
		} else if s.pos++; c == '}' {
			break
		}
	}
	if s.next(); s.pos != len(body) {
		return s.malformed("nothing after the object")
	}
	return r.check()
}

// parseField reads the value of one field.
func (r *findRequest) parseField(f fieldSet, maxTokens int) (p *Problem) {
	var v uint64
	switch f {
	case fieldModel:
		r.model, p = r.name("model")
	case fieldGroup:
		r.group, p = r.name("group")
	case fieldLora:
		r.lora, p = r.name("lora_name")
	case fieldSalt:
		r.salt, p = r.name("cache_salt")
	case fieldBlockSize:
		v, p = r.scan.number("block_size", 1, core.MaxBlockSize)
		r.blockSize = uint32(v)
	case fieldMaxBlocks:
		v, p = r.scan.number("max_blocks", 1, 1<<31)
		r.maxBlocks = uint32(v)
	case fieldEarlyExit:
		r.earlyExit, p = r.scan.boolean("early_exit")
	case fieldTreeSizes:
		r.treeSizes, p = r.scan.boolean("tree_sizes")
	case fieldTokens:
		r.tokens, p = r.scan.tokens("token_ids", r.tokens, maxTokens)
	case fieldHashes:
		r.hashes, p = r.scan.hashes("hashes", r.hashes, maxTokens)
	}
	return p
}

// name takes a text of bounded length.
func (r *findRequest) name(field string) ([]byte, *Problem) {
	text, p := r.scan.str(field)
	if p != nil {
		return nil, p
	}
	if len(text) > maxName {
		return nil, bad(field, reasonOutOfRange, "longer than "+strconv.Itoa(maxName)+" bytes")
	}
	if len(r.scan.text) > 0 && len(text) > 0 && &text[0] == &r.scan.text[0] { // the scanner's own memory
		start := len(r.kept)
		r.kept = append(r.kept, text...)
		text = r.kept[start:]
	}
	return text, nil
}

// check judges the fields together.
func (r *findRequest) check() *Problem {
	const both = fieldTokens | fieldHashes
	switch {
	case r.has&fieldModel == 0:
		return bad("model", reasonMissing, "name the model")
	case r.has&both == both:
		return bad("hashes", reasonConflict, "give token_ids or hashes, not both")
	case r.has&both == 0:
		return bad("token_ids", reasonMissing, "give token_ids, or the hashes of the prompt's blocks")
	case r.has&fieldHashes != 0 && len(r.lora) > 0:
		return bad("lora_name", reasonConflict, "hashes contain the LoRA name already; give it with token_ids only")
	case r.has&fieldHashes != 0 && len(r.salt) > 0:
		return bad("cache_salt", reasonConflict, "hashes contain the salt already; give it with token_ids only")
	}
	return nil
}

// shorten returns a name from outside for an error answer.
func shorten(name []byte) string {
	const most = 64
	if len(name) == 0 {
		return `""`
	}
	if len(name) <= most {
		return string(name)
	}
	return string(name[:most]) + "…"
}
