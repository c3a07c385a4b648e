package stream

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/kvatlas/kvatlas/event"
)

// prefix begins every subject and stream name.
const prefix = "kvatlas"

// maxNamespace and maxSlug bound the readable parts of names, in bytes.
const (
	maxNamespace = 64
	maxSlug      = 48
)

// CheckNamespace refuses a namespace that cannot be part of a subject.
func CheckNamespace(ns string) error {
	if ns == "" || len(ns) > maxNamespace || slug(ns) != ns {
		return fmt.Errorf("namespace %q: give 1 to %d letters, digits, '-' or '_'", ns, maxNamespace)
	}
	return nil
}

// Token names a space within a subject: the readable part of the model's
// name, the block size, and a hash of the whole space, which makes it unique.
func Token(sp event.Space) string {
	// Lengths go before the names: no two spaces have the same bytes.
	b := binary.LittleEndian.AppendUint32(nil, sp.BlockSize)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(sp.Model)))
	b = append(append(b, sp.Model...), sp.Group...)
	return fmt.Sprintf("%s-b%d-%016x", slug(sp.Model[:min(len(sp.Model), maxSlug)]), sp.BlockSize, xxh3.Hash(b))
}

// slug replaces every byte that is not a letter, a digit, '-' or '_'.
func slug(s string) string {
	b := []byte(s)
	for i, c := range b {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			b[i] = '_'
		}
	}
	return string(b)
}

// Name returns the name of the space's stream.
func Name(ns string, sp event.Space) string {
	return prefix + "_" + ns + "_" + Token(sp)
}

// Subject returns the subject on which a worker's events are published.
func Subject(ns string, sp event.Space, worker uint64) string {
	return prefix + "." + ns + "." + Token(sp) + "." + strconv.FormatUint(worker, 10)
}

// namespaceSubjects matches every stream of the namespace.
func namespaceSubjects(ns string) string { return prefix + "." + ns + ".>" }

// The last tokens of what a worker has beside its stream's subject. No stream captures
// them.
const (
	liveToken    = "live"
	recoverToken = "recover"
)

// LiveSubject returns the subject on which a worker's events are published
// without a stream, for whoever listens at the moment.
func LiveSubject(ns string, sp event.Space, worker uint64) string {
	return Subject(ns, sp, worker) + "." + liveToken
}

// LiveSubjects matches the live subjects of the namespace.
func LiveSubjects(ns string) string { return prefix + "." + ns + ".*.*." + liveToken }

// RecoverSubject returns the subject on which a worker's publisher answers
// requests for what a reader missed.
func RecoverSubject(ns string, sp event.Space, worker uint64) string {
	return Subject(ns, sp, worker) + "." + recoverToken
}

// ParseLive returns the space's token and the worker that a live subject names.
func ParseLive(subject string) (token string, worker uint64, err error) {
	if parts := strings.Split(subject, "."); len(parts) == 5 && parts[0] == prefix && parts[4] == liveToken {
		worker, err = strconv.ParseUint(parts[3], 10, 64)
		if err == nil {
			return parts[2], worker, nil
		}
	}
	return "", 0, fmt.Errorf("%w: %q", errSubject, subject)
}

var errSubject = errors.New("subject does not name a worker")

// Worker returns the worker whose events are published on the subject.
func Worker(subject string) (uint64, error) {
	rest := subject
	for range 3 { // prefix, namespace, space
		_, rest, _ = strings.Cut(rest, ".")
	}
	worker, _, _ := strings.Cut(rest, ".") // the part of the space follows, if it has several
	id, err := strconv.ParseUint(worker, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %q", errSubject, subject)
	}
	return id, nil
}
