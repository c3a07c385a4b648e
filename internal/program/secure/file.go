package secure

import (
	"fmt"
	"log/slog"
	"os"
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
	paths []string
	read  func() (*T, error)
	log   *slog.Logger
	now   func() time.Time

	value atomic.Pointer[T]
	next  atomic.Pointer[time.Time] // when to look again: a clock that is set back must not put that off
	mu    sync.Mutex                // one looks at a time
	marks []mark                    // guarded by mu
	fails atomic.Uint64
}

// mark tells one state of a file from another.
type mark struct {
	size    int64
	changed time.Time
	inode   any
}

// open reads the files for the first time; what cannot be read is an error
// then, and later only a line in the log.
func open[T any](log *slog.Logger, now func() time.Time, read func() (*T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, read: read, log: log, now: now}
	r.marks = r.look() // before reading: a change meanwhile is seen later
	v, err := read()
	if err != nil {
		return nil, err
	}
	r.value.Store(v)
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
	marks := r.look()
	if equal(marks, r.marks) {
		return r.value.Load()
	}
	v, err := r.read()
	if err != nil {
		r.fails.Add(1)
		r.log.Error("a changed file is not taken; what was read before stays in force", "files", r.paths, "error", err)
		r.marks = marks
		return r.value.Load()
	}
	r.marks = marks
	r.value.Store(v)
	r.log.Info("read again", "files", r.paths)
	return v
}

// look stats the files; of one that is away there is no mark, which differs
// from any.
func (r *reloaded[T]) look() []mark {
	marks := make([]mark, len(r.paths))
	for i, path := range r.paths {
		if info, err := os.Stat(path); err == nil {
			marks[i] = mark{info.Size(), info.ModTime(), inode(info)}
		}
	}
	return marks
}

func equal(a, b []mark) bool {
	for i := range a {
		if a[i].size != b[i].size || !a[i].changed.Equal(b[i].changed) || a[i].inode != b[i].inode {
			return false
		}
	}
	return true
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
