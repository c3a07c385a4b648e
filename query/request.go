package query

import (
	"strconv"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
	"github.com/kvatlas/kvatlas/internal/wire/jsonscan"
)

// findRequest is what a find_matches asks, in whatever form it came. Its
// slices and texts are valid until the next parse.
//
// It is read value by value into memory that requests reuse, and not by encoding/json:
// prompts are arrays of up to a million numbers, a field that is not known is refused, and
// an error is to name the field, or the element, at fault.
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
	sequence  bool // hashes are sequence hashes, not local ones

	has  fieldSet // the fields that are given and not null: a group of "" is one, no group is none
	in   jsonscan.Reader
	kept []byte // where texts are
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

const (
	maxName      = 1024 // bounds the names in a request: model, group, LoRA and salt
	maxMaxBlocks = 1 << 31
)

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

// reset forgets the request before.
func (r *findRequest) reset() {
	r.model, r.group, r.lora, r.salt, r.kept = nil, nil, nil, nil, r.kept[:0]
	r.tokens, r.hashes, r.blockSize, r.maxBlocks, r.has = r.tokens[:0], r.hashes[:0], 0, 0, 0
	r.earlyExit, r.treeSizes, r.sequence = false, false, false
}

// parse reads the body. A field that is null counts as absent. maxTokens
// bounds the elements of either array.
func (r *findRequest) parse(body []byte, maxTokens int) *edge.Problem {
	r.reset()
	s := &r.in
	s.Reset(body)
	defer s.Reset(nil) // keep nothing of the body: it is the connection's, which reads the next one into it
	if !s.Open('{') {
		return edge.FieldProblem(s.Err(), "body", "a JSON object")
	}
	var seen fieldSet
	for first := true; s.More('}', &first); {
		name := s.Key()
		if s.Err() != nil {
			break
		}
		f := fieldOf(name)
		if f == 0 {
			return edge.Bad(shorten(name), edge.UnknownField, "no such field; there are model, group, block_size, "+
				"token_ids, hashes, lora_name, cache_salt, max_blocks, early_exit and tree_sizes")
		}
		if seen&f != 0 {
			return edge.Bad(string(name), edge.DuplicateField, "the field is given twice")
		}
		// A null is given, and so not to be given again, but says nothing.
		if seen |= f; s.Null() || s.Err() != nil {
			continue
		}
		r.has |= f
		if p := r.parseField(f, maxTokens); p != nil {
			return p
		}
	}
	if s.End(); s.Err() != nil {
		return edge.FieldProblem(s.Err(), "body", "JSON")
	}
	return r.check()
}

// parseField reads the value of one field.
func (r *findRequest) parseField(f fieldSet, maxTokens int) (p *edge.Problem) {
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
		r.blockSize, p = r.number("block_size", blockhash.MaxBlockSize)
	case fieldMaxBlocks:
		r.maxBlocks, p = r.number("max_blocks", maxMaxBlocks)
	case fieldEarlyExit:
		r.earlyExit, p = r.boolean("early_exit")
	case fieldTreeSizes:
		r.treeSizes, p = r.boolean("tree_sizes")
	case fieldTokens:
		p = r.tokenArray("token_ids", maxTokens)
	case fieldHashes:
		p = r.hashArray("hashes", maxTokens, false)
	}
	return p
}

// name takes a text of bounded length.
func (r *findRequest) name(field string) ([]byte, *edge.Problem) {
	text := r.in.Str()
	switch {
	case r.in.Err() != nil:
		return nil, edge.FieldProblem(r.in.Err(), field, "a text")
	case len(text) > maxName:
		return nil, edge.Bad(field, edge.OutOfRange, "longer than "+strconv.Itoa(maxName)+" bytes")
	}
	return r.keep(text), nil
}

// keep copies a text into the request's own memory. That may move when it grows: what
// was kept before stays in the old, which nobody writes to any more.
func (r *findRequest) keep(text []byte) []byte {
	start := len(r.kept)
	r.kept = append(r.kept, text...)
	return r.kept[start:len(r.kept):len(r.kept)]
}

// number takes a whole number of 1 … hi.
func (r *findRequest) number(field string, hi uint64) (uint32, *edge.Problem) {
	v := r.in.Uint64()
	err := r.in.Err()
	if err == nil && (v < 1 || v > hi) {
		err = jsonscan.ErrRange
	}
	if err != nil {
		return 0, edge.FieldProblem(err, field, "a whole number between 1 and "+strconv.FormatUint(hi, 10))
	}
	return uint32(v), nil
}

func (r *findRequest) boolean(field string) (bool, *edge.Problem) {
	v := r.in.Bool()
	if r.in.Err() != nil {
		return false, edge.FieldProblem(r.in.Err(), field, "true or false")
	}
	return v, nil
}

// tokenArray takes the prompt. Whether the value is an array at all is looked at before it
// is read: afterwards an error could be that of the array or of its first element.
func (r *findRequest) tokenArray(field string, limit int) *edge.Problem {
	isArray := r.in.Peek() == '['
	r.tokens = r.in.Uint32s(r.tokens[:0], limit)
	return edge.ArrayProblem(r.in.Err(), field, isArray, len(r.tokens), "a whole number between 0 and 4294967295", limit)
}

func (r *findRequest) hashArray(field string, limit int, signed bool) *edge.Problem {
	isArray := r.in.Peek() == '['
	r.hashes = r.in.Uint64s(r.hashes[:0], limit, signed)
	return edge.ArrayProblem(r.in.Err(), field, isArray, len(r.hashes),
		"a whole number (or one as a decimal text) between 0 and 18446744073709551615", limit)
}

// check judges the fields together.
func (r *findRequest) check() *edge.Problem {
	// Empty ones are given, too: a prompt without a complete block is asked about like any.
	const both = fieldTokens | fieldHashes
	switch {
	case r.has&fieldModel == 0:
		return edge.Bad("model", edge.Missing, "name the model")
	case r.has&both == both:
		return edge.Bad("hashes", edge.Conflict, "give token_ids or hashes, not both")
	case r.has&both == 0:
		return edge.Bad("token_ids", edge.Missing, "give token_ids, or the hashes of the prompt's blocks")
	case r.has&fieldHashes != 0 && len(r.lora) > 0:
		return edge.Bad("lora_name", edge.Conflict, "hashes contain the LoRA name already; give it with token_ids only")
	case r.has&fieldHashes != 0 && len(r.salt) > 0:
		return edge.Bad("cache_salt", edge.Conflict, "hashes contain the salt already; give it with token_ids only")
	}
	return nil
}

// asks reports whether the request is about the space.
func (r *findRequest) asks(sp event.Space) bool {
	return string(r.model) == sp.Model &&
		(r.has&fieldGroup == 0 || string(r.group) == sp.Group) &&
		(r.blockSize == 0 || r.blockSize == sp.BlockSize)
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
