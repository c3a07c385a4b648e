package secure

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// lookEvery is how often files in use are looked at.
const lookEvery = time.Second

// reloaded is what was read from files, and is read again when one of them
// has changed. It needs no goroutine: whoever uses it looks, once a second at
// most.
type reloaded[T any] struct {
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
	why   string // the last failure, while it lasts
}

// mark tells one state of a file from another.
type mark struct {
	size    int64
	changed int64 // ns
	inode   any
}

// open reads the files for the first time; what cannot be read is an error
// then, and later only a line in the log.
func open[T any](log *slog.Logger, now func() time.Time, read func() (*T, error), paths ...string) (*reloaded[T], error) {
	return openNaming(log, now, read, nil, paths...)
}

// openNaming does so with files that name others, which are looked at, too.
func openNaming[T any](log *slog.Logger, now func() time.Time, read func() (*T, error), named func(*T) []string, paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{first: paths, named: named, paths: paths, read: read, log: log, now: now}
	if err := r.readAll(); err != nil {
		return nil, err
	}
	next := now().Add(lookEvery)
	r.next.Store(&next)
	return r, nil
}

// get returns the content that is in force.
func (r *reloaded[T]) get() *T {
	now, next := r.now(), r.next.Load()
	if now.Before(*next) {
		return r.value.Load()
	}
	if later := now.Add(lookEvery); !r.next.CompareAndSwap(next, &later) {
		return r.value.Load()
	}
	if !r.mu.TryLock() {
		return r.value.Load()
	}
	defer r.mu.Unlock()
	if r.why == "" && slices.Equal(look(r.paths), r.marks) {
		return r.value.Load()
	}
	// What could not be read is tried each time: it may name a file that comes later.
	if err := r.readAll(); err != nil {
		if why := err.Error(); why != r.why {
			r.log.Error("a changed file is not taken; what was read before stays in force", "files", r.paths, "error", err)
			r.why = why
		}
		return r.value.Load()
	}
	r.why = ""
	r.log.Info("read again", "files", r.paths)
	return r.value.Load()
}

// readAll reads the files, with marks from before that: a change meanwhile is seen
// later. For those that are named anew that takes another time.
func (r *reloaded[T]) readAll() error {
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

// limitRead reads a small file.
func limitRead(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("%s has %d bytes, more than %d", path, info.Size(), limit)
	}
	return os.ReadFile(path)
}
