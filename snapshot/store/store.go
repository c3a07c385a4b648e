package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	natsstream "github.com/kvatlas/kvatlas/internal/nats/stream"
)

// Errors that callers may want to tell apart.
var (
	// ErrConflict is returned by Replace if the manifest has changed.
	ErrConflict = errors.New("the manifest has been changed by another process")
	// ErrFenced is of a writer that lost its turn to a later one.
	ErrFenced = errors.New("another process has taken over the writing of snapshots")
	// ErrNotFound is of a snapshot that is not in the store.
	ErrNotFound = errors.New("no such snapshot")
	// ErrLost is of a snapshot of which the store has lost a part.
	ErrLost = natsstream.ErrLost
	// ErrManifest is of a manifest that cannot be read, or is of another stream.
	ErrManifest = errors.New("the manifest is damaged")
)

// Entry is one snapshot that counts.
type Entry struct {
	Name    string    `json:"name"`
	Seq     uint64    `json:"seq"`     // in the stream, up to which it has everything
	Created time.Time `json:"created"` // of the stream
	// Stored is when the stream stored message Seq, if that is known.
	Stored  time.Time `json:"stored,omitzero"`
	Written time.Time `json:"written"`
	Writer  string    `json:"writer"`
	Fence   uint64    `json:"fence"`
	Bytes   uint64    `json:"bytes"`
	Blocks  uint64    `json:"blocks"`
	Digest  uint64    `json:"digest,string"`
	// TookMs is how long it took to take, in ms: whoever takes the next one, who may never
	// have taken any, rests by it. 0: not known.
	TookMs uint64 `json:"took_ms,omitempty"`
}

// Manifest says which snapshots count.
type Manifest struct {
	Format    int     `json:"format"`
	Stream    string  `json:"stream,omitempty"`
	Fence     uint64  `json:"fence"` // of the last claim
	Writer    string  `json:"writer,omitempty"`
	Snapshots []Entry `json:"snapshots"` // newest first
}

const manifestFormat = 1

// Revision is which manifest it is; 0: there is none yet.
type Revision uint64

// File is an open snapshot.
type File interface {
	io.ReadSeeker
	io.Closer
}

// Store keeps the snapshots of one stream. Implementations are safe for
// concurrent use, by several processes too.
type Store interface {
	// Put stores what write writes under the name, which is not used yet.
	Put(ctx context.Context, name string, write func(w io.Writer) error) error
	// Open opens a snapshot; the error wraps ErrNotFound if there is none.
	Open(ctx context.Context, name string) (File, error)
	// Delete deletes a snapshot, or what is left of an unfinished one.
	Delete(ctx context.Context, name string) error
	// Names returns all names, sorted, whether or not the manifest has them.
	Names(ctx context.Context) ([]string, error)
	// Manifest returns the manifest; empty if there is none. With an error that
	// wraps ErrManifest the revision can still be replaced.
	Manifest(ctx context.Context) (Manifest, Revision, error)
	// Replace replaces the manifest of that revision; the error wraps
	// ErrConflict if it is another's turn by now.
	Replace(ctx context.Context, m Manifest, of Revision) error
	// String says where the snapshots are, for people.
	String() string
}

const suffix = ".kvsnap"

// Name returns the name of a snapshot: names sort by sequence.
func Name(seq, fence uint64) string { return fmt.Sprintf("%020d-%d%s", seq, fence, suffix) }

var namePattern = regexp.MustCompile(`^([0-9]{20})-([0-9]{1,20})\.kvsnap$`)

// maxFence is more than there can be claims.
const maxFence = 1 << 62

// parseName returns what a name says.
func parseName(name string) (seq, fence uint64, ok bool) {
	m := namePattern.FindStringSubmatch(name)
	if m == nil {
		return 0, 0, false
	}
	seq, err := strconv.ParseUint(m[1], 10, 64)
	if err == nil {
		fence, err = strconv.ParseUint(m[2], 10, 64)
	}
	return seq, fence, err == nil && fence <= maxFence && Name(seq, fence) == name
}

// CheckName refuses what is no name of a snapshot.
func CheckName(name string) error {
	if !isName(name) {
		return fmt.Errorf("%q is no name of a snapshot", name)
	}
	return nil
}

// isName reports whether it is the name of a finished snapshot.
func isName(name string) bool {
	_, _, ok := parseName(name)
	return ok
}

// fenceOf returns the fencing number in a name; 0 if it is none.
func fenceOf(name string) uint64 {
	_, fence, _ := parseName(name)
	return fence
}

// sealed is a manifest with its checksum.
type sealed struct {
	Manifest json.RawMessage `json:"manifest"`
	XXH3     string          `json:"xxh3"`
}

func encodeManifest(m Manifest, stream string) ([]byte, error) {
	m.Format, m.Stream = manifestFormat, stream
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("snapshot manifest: %w", err)
	}
	return json.Marshal(sealed{text, sum(text)})
}

func sum(text []byte) string { return fmt.Sprintf("%016x", xxh3.Hash(text)) }

func decodeManifest(data []byte, stream string) (Manifest, error) {
	var s sealed
	var m Manifest
	if err := json.Unmarshal(data, &s); err != nil {
		return m, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if s.XXH3 != sum(s.Manifest) {
		return m, fmt.Errorf("%w: its checksum is wrong", ErrManifest)
	}
	if err := json.Unmarshal(s.Manifest, &m); err != nil {
		return Manifest{}, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	if m.Format > manifestFormat {
		return Manifest{}, fmt.Errorf("%w: format %d, and %d is the newest that this program reads", ErrManifest, m.Format, manifestFormat)
	}
	// Those of earlier programs do not say of which stream they are.
	if m.Stream != "" && m.Stream != stream {
		return Manifest{}, fmt.Errorf("%w: it is that of stream %s", ErrManifest, m.Stream)
	}
	if m.Fence > maxFence {
		return Manifest{}, fmt.Errorf("%w: its fencing number %d is out of range", ErrManifest, m.Fence)
	}
	for i := range m.Snapshots {
		if err := CheckName(m.Snapshots[i].Name); err != nil {
			return Manifest{}, fmt.Errorf("%w: %w", ErrManifest, err)
		}
	}
	return m, nil
}

// Claim makes writer the one whose snapshots count from now on and returns its
// fencing number, higher than any before: than those of the names, too, as a
// manifest may be lost, or be put back from a backup.
//
// It puts the manifest in order by the way: what is not there any more leaves it,
// and a snapshot with a fencing number that it does not know of comes in again if
// adopt says so; nil: none does.
func Claim(ctx context.Context, s Store, writer string, adopt func(ctx context.Context, name string) (Entry, bool)) (fence uint64, err error) {
	adopted := make(map[string]Entry)
	for range 10 {
		m, rev, err := s.Manifest(ctx)
		if err != nil && !errors.Is(err, ErrManifest) {
			return 0, err
		}
		names, err := s.Names(ctx) // after it: if one is new since, Replace fails
		if err != nil {
			return 0, err
		}
		m.Snapshots = slices.DeleteFunc(m.Snapshots, func(e Entry) bool { return !slices.Contains(names, e.Name) })
		known := m.Fence
		for _, f := range unlisted(&m, names) {
			m.Fence = max(m.Fence, f.Fence)
			if f.Fence <= known || adopt == nil {
				continue
			}
			e, ok := adopted[f.Name]
			if !ok {
				e, ok = adopt(ctx, f.Name)
			}
			if ok {
				adopted[f.Name] = e
				m.Snapshots = append(m.Snapshots, e)
			}
		}
		slices.SortStableFunc(m.Snapshots, func(a, b Entry) int { return cmp.Compare(b.Fence, a.Fence) })
		m.Fence++
		m.Writer = writer
		if err = context.Cause(ctx); err == nil {
			err = s.Replace(ctx, m, rev)
		}
		if err == nil {
			return m.Fence, nil
		} else if !errors.Is(err, ErrConflict) {
			return 0, err
		}
	}
	return 0, fmt.Errorf("claiming the manifest of %s: %w", s, ErrConflict)
}

// Publish makes e the newest snapshot that counts, keeps at most keep, and
// returns the manifest. It fails with ErrFenced if another writer has claimed
// the manifest since e.Fence.
func Publish(ctx context.Context, s Store, e Entry, keep int) (Manifest, error) {
	m, err := change(ctx, s, e.Fence, func(m *Manifest) {
		kept := []Entry{e}
		for _, old := range m.Snapshots {
			// One that is ahead of the newest is of messages that the server
			// has lost since.
			if !old.Created.Equal(e.Created) || old.Seq <= e.Seq {
				kept = append(kept, old)
			}
		}
		m.Snapshots = kept
		m.Snapshots = m.Snapshots[:min(len(m.Snapshots), max(1, keep))]
	})
	return m, err
}

// change changes the manifest as the writer with that fencing number.
func change(ctx context.Context, s Store, fence uint64, f func(m *Manifest)) (Manifest, error) {
	m, rev, err := s.Manifest(ctx)
	if err != nil {
		return m, err
	}
	if m.Fence != fence {
		return m, fmt.Errorf("%w: %s, with number %d after %d", ErrFenced, m.Writer, m.Fence, fence)
	}
	f(&m)
	if err := s.Replace(ctx, m, rev); err != nil {
		if errors.Is(err, ErrConflict) {
			err = fmt.Errorf("%w: %w", ErrFenced, err)
		}
		return m, err
	}
	return m, nil
}

// Sweep deletes what the manifest does not have and no later writer may be
// writing: what is of that fencing number or an earlier one.
func Sweep(ctx context.Context, s Store, fence uint64) error {
	m, _, err := s.Manifest(ctx)
	if err != nil {
		return err
	}
	if m.Fence != fence {
		return fmt.Errorf("%w: %s", ErrFenced, m.Writer)
	}
	names, err := s.Names(ctx)
	if err != nil {
		return err
	}
	counts := make(map[string]bool)
	for _, e := range m.Snapshots {
		counts[e.Name] = true
	}
	for _, n := range names {
		if !counts[n] && (!isName(n) || fenceOf(n) <= fence) {
			err = errors.Join(err, s.Delete(ctx, n))
		}
	}
	if c, ok := s.(interface {
		Clean(ctx context.Context) error
	}); ok && err == nil {
		err = c.Clean(ctx)
	}
	return err
}

// Forget takes the snapshots that which names out of the manifest, as the
// writer with that fencing number; Sweep then deletes them.
func Forget(ctx context.Context, s Store, fence uint64, which func(e Entry) bool) error {
	_, err := change(ctx, s, fence, func(m *Manifest) {
		m.Snapshots = slices.DeleteFunc(m.Snapshots, which)
	})
	return err
}
