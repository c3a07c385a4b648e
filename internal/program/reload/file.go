package reload

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// LookEvery is how often files in use are looked at.
const LookEvery = time.Second

// Value is what was read from files, and is read again when one of them has
// changed. It is safe for concurrent use.
type Value[T any] struct {
	first []string          // paths of those that are always read
	named func(*T) []string // of those that what was read names; nil: none
	read  func() (*T, error)
	log   *slog.Logger
	now   func() time.Time

	value atomic.Pointer[T]
	next  atomic.Pointer[time.Time] // when to look again: a clock that is set back must not put that off
	mu    sync.Mutex                // one looks at a time; of what follows
	paths []string                  // of what is in force
	marks []mark
	bad   atomic.Pointer[error] // the last failure, while it lasts
}

// mark tells one state of a file from another.
type mark struct {
	size    int64
	changed int64 // ns
	inode   any
}

// Open reads the files for the first time; what cannot be read is an error
// then, and later only a line in the log and what Err says.
func Open[T any](log *slog.Logger, now func() time.Time, read func() (*T, error), paths ...string) (*Value[T], error) {
	return OpenNaming(log, now, read, nil, paths...)
}

// OpenNaming does so with files that name others, which are looked at, too.
func OpenNaming[T any](log *slog.Logger, now func() time.Time, read func() (*T, error), named func(*T) []string, paths ...string) (*Value[T], error) {
	r := &Value[T]{first: paths, named: named, paths: paths, read: read, log: log, now: now}
	if err := r.readAll(); err != nil {
		return nil, err
	}
	next := now().Add(LookEvery)
	r.next.Store(&next)
	return r, nil
}

// Err returns why the files as they are now are not in force; nil if they are.
func (r *Value[T]) Err() error {
	if bad := r.bad.Load(); bad != nil {
		return *bad
	}
	return nil
}

// Get returns the content that is in force.
func (r *Value[T]) Get() *T {
	now, next := r.now(), r.next.Load()
	if now.Before(*next) {
		return r.value.Load()
	}
	if later := now.Add(LookEvery); !r.next.CompareAndSwap(next, &later) {
		return r.value.Load()
	}
	if !r.mu.TryLock() {
		return r.value.Load()
	}
	defer r.mu.Unlock()
	if r.Err() == nil && slices.Equal(look(r.paths), r.marks) {
		return r.value.Load()
	}
	// What could not be read is tried each time: it may name a file that comes later.
	if err := r.readAll(); err != nil {
		if was := r.Err(); was == nil || was.Error() != err.Error() {
			r.log.Error("a changed file is not taken; what was read before stays in force", "files", r.paths, "error", err)
		}
		r.bad.Store(&err)
		return r.value.Load()
	}
	r.bad.Store(nil)
	r.log.Info("read again", "files", r.paths)
	return r.value.Load()
}

// readAll reads the files, with marks from before that: a change meanwhile is seen
// later. For those that are named anew that takes another time.
func (r *Value[T]) readAll() error {
	for paths := r.paths; ; {
		marks := look(paths)
		v, err := r.read()
		if err != nil {
			return err
		}
		all := slices.Clone(r.first)
		if r.named != nil {
			all = append(all, r.named(v)...)
		}
		if slices.Equal(all, paths) {
			r.value.Store(v)
			r.paths, r.marks = paths, marks
			return nil
		}
		paths = all
	}
}

// look stats the files; of one that is away there is no mark, which differs
// from any.
func look(paths []string) []mark {
	marks := make([]mark, len(paths))
	for i, path := range paths {
		if info, err := os.Stat(path); err == nil {
			marks[i] = mark{info.Size(), info.ModTime().UnixNano(), inode(info)}
		}
	}
	return marks
}

// Read reads a small file.
func Read(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}
