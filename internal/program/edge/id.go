package edge

import (
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// maxID bounds the ids that clients give, in bytes.
const maxID = 128

// PlainID reports whether an id that a client gives can go into headers, logs and
// labels as it is.
func PlainID[T ~string | ~[]byte](id T) bool {
	if len(id) == 0 || len(id) > maxID {
		return false
	}
	for i := range len(id) {
		switch c := id[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '-', c == '_', c == '.', c == ':', c == '/', c == '+', c == '=':
		default:
			return false
		}
	}
	return true
}

// AppendID appends an id that nobody else gives, and nobody can tell before it is given: engines get
// it, and who could name another's request would have it refused, or ended with their own.
func AppendID(dst []byte) []byte {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], rand.Uint64()) // ChaCha8, seeded by the system: it takes no call of it
	binary.BigEndian.PutUint64(b[8:], rand.Uint64())
	return hex.AppendEncode(dst, b[:])
}

// NewID returns one.
func NewID() string {
	var b [32]byte
	return string(AppendID(b[:0]))
}
