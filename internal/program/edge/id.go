package edge

import (
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"sync/atomic"
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

// IDs are ids that nobody else gives: random per process, then a number. They are no secrets.
type IDs struct {
	prefix string
	last   atomic.Uint64
}

// NewIDs returns new ones.
func NewIDs() *IDs {
	var b [8]byte
	rand.Read(b[:]) //nolint:errcheck,gosec // never fails, by its contract
	return &IDs{prefix: hex.EncodeToString(b[:]) + "-"}
}

// Append appends the next one.
func (i *IDs) Append(dst []byte) []byte {
	return strconv.AppendUint(append(dst, i.prefix...), i.last.Add(1), 16)
}

// Next returns the next one.
func (i *IDs) Next() string {
	var b [33]byte // 16 digits, a dash and 16 more
	return string(i.Append(b[:0]))
}
