package query

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/kvatlas/kvatlas/blockhash"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/program/edge"
)

// The binary form of find_matches, for callers in a hurry. docs/http.md has
// the layout of the answer. The request's body is an array and nothing else:
// local hashes of 64 bits, or with ?elements=token_ids tokens of 32 bits; the
// other fields are arguments of the URL. Everything is little-endian.

const (
	typeBinary = "application/octet-stream"

	binaryMagic   = "KVA1"
	binaryHeader  = 16 // magic, flags, number of spaces, 0
	binarySpace   = 16 // block size, blocks, ranks, length of the group's name
	binaryRank    = 32 // worker, rank, four depths, tree size
	flagTreeSizes = 1
	flagEstimated = 2 // of some space
)

// isBinary reports whether a header names the binary form.
func isBinary(header []byte) bool {
	return len(header) >= len(typeBinary) && strings.EqualFold(string(header[:len(typeBinary)]), typeBinary)
}

// parseBinary reads a request in the binary form.
func (r *findRequest) parseBinary(args *fasthttp.Args, body []byte, maxTokens int) *edge.Problem {
	r.reset()
	width := 8
	for name, value := range args.All() {
		f := fieldOf(name)
		if r.has&f != 0 {
			return edge.Bad(string(name), edge.DuplicateField, "the argument is given twice")
		}
		r.has |= f
		var p *edge.Problem
		switch f {
		case fieldModel:
			r.model, p = r.argName(name, value)
		case fieldGroup:
			r.group, p = r.argName(name, value)
		case fieldLora:
			r.lora, p = r.argName(name, value)
		case fieldSalt:
			r.salt, p = r.argName(name, value)
		case fieldBlockSize:
			r.blockSize, p = argNumber(name, value, blockhash.MaxBlockSize)
		case fieldMaxBlocks:
			r.maxBlocks, p = argNumber(name, value, maxMaxBlocks)
		case fieldEarlyExit:
			r.earlyExit, p = argBool(name, value)
		case fieldTreeSizes:
			r.treeSizes, p = argBool(name, value)
		default:
			if string(name) != "elements" {
				return edge.Bad(shorten(name), edge.UnknownArgument, "no such argument in the URL of this route")
			}
			switch string(value) {
			case "hashes":
			case "token_ids":
				width = 4
			default:
				return edge.Bad("elements", edge.OutOfRange, "must be hashes or token_ids")
			}
		}
		if p != nil {
			return p
		}
	}
	switch {
	case len(body)%width != 0:
		return edge.Bad("body", edge.OutOfRange, "the length is not a multiple of "+strconv.Itoa(width)+" bytes")
	case len(body)/width > maxTokens:
		return edge.TooManyElements("body", maxTokens)
	case width == 4:
		r.has |= fieldTokens
		for ; len(body) > 0; body = body[4:] {
			r.tokens = append(r.tokens, binary.LittleEndian.Uint32(body))
		}
	default:
		r.has |= fieldHashes
		for ; len(body) > 0; body = body[8:] {
			r.hashes = append(r.hashes, binary.LittleEndian.Uint64(body))
		}
	}
	return r.check()
}

func (r *findRequest) argName(name, value []byte) ([]byte, *edge.Problem) {
	if len(value) > maxName {
		return nil, edge.Bad(string(name), edge.OutOfRange, "longer than "+strconv.Itoa(maxName)+" bytes")
	}
	return r.keep(value), nil
}

func argNumber(name, value []byte, hi uint64) (uint32, *edge.Problem) {
	v, err := strconv.ParseUint(string(value), 10, 32)
	if err != nil || v < 1 || v > hi {
		return 0, edge.Bad(string(name), edge.OutOfRange, "must be a whole number between 1 and "+strconv.FormatUint(hi, 10))
	}
	return uint32(v), nil
}

func argBool(name, value []byte) (bool, *edge.Problem) {
	switch string(value) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	return false, edge.Bad(string(name), edge.WrongType, "must be true or false")
}

// appendBinary is appendMatches in the binary form.
func (q *finder) appendBinary(ix Index, dst []byte) ([]byte, *edge.Problem) {
	begun := len(dst)
	flags := uint32(0)
	if q.req.treeSizes {
		flags = flagTreeSizes
	}
	le := binary.LittleEndian
	dst = append(dst, binaryMagic...)
	dst = le.AppendUint32(dst, flags)
	dst = le.AppendUint64(dst, 0)
	spaces := uint32(0)
	p := q.each(ix, func(sp event.Space, blocks int) {
		spaces++
		if q.estimated {
			flags |= flagEstimated
		}
		dst = le.AppendUint32(dst, sp.BlockSize)
		dst = le.AppendUint32(dst, uint32(blocks))
		dst = le.AppendUint32(dst, uint32(len(q.found.ranks)))
		dst = le.AppendUint32(dst, uint32(len(sp.Group)))
		dst = append(dst, sp.Group...)
		dst = append(dst, make([]byte, -len(sp.Group)&7)...)
		for i := range q.found.ranks {
			r := &q.found.ranks[i]
			dst = le.AppendUint64(dst, r.Worker)
			dst = le.AppendUint32(dst, r.DPRank)
			for _, d := range r.depth {
				dst = le.AppendUint32(dst, d)
			}
			held := uint32(0)
			if q.req.treeSizes {
				held = uint32(min(r.held, math.MaxUint32))
			}
			dst = le.AppendUint32(dst, held)
		}
	})
	if p != nil {
		return dst[:begun], p
	}
	le.PutUint32(dst[begun+4:], flags)
	le.PutUint32(dst[begun+8:], spaces)
	return dst, nil
}

// wantsBinary reports whether the answer is to be binary: as the request is,
// unless the client says what it accepts.
func wantsBinary(ctx *fasthttp.RequestCtx, request bool) bool {
	accept := ctx.Request.Header.Peek("Accept")
	switch {
	case bytes.Contains(accept, []byte(typeBinary)):
		return true
	case bytes.Contains(accept, []byte(edge.TypeJSON)):
		return false
	}
	return request
}
