package sock

import (
	"errors"
	"os"
	"sync"
	"time"
)

// deadline is one of a connection's two. Servers put it off with each request, and to tell the
// runtime each time costs several percent of theirs: so it is told only what is earlier than
// what it was told, and of what is later when it says that the time is over.
type deadline struct {
	tell func(time.Time) error // the connection's own

	mu     sync.Mutex
	wanted time.Time
	told   time.Time // at or before wanted; zero: none
}

// set makes t the deadline. It may be called by any goroutine, also while one waits.
func (d *deadline) set(t time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.wanted = t; !t.IsZero() && !d.told.IsZero() && !d.told.After(t) {
		return nil
	}
	d.told = t
	return d.tell(t)
}

// early reports whether err says that a deadline is over which was put off since; the runtime
// is told of it then.
func (d *deadline) early(err error) bool {
	if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.wanted.IsZero() && time.Until(d.wanted) <= 0 {
		return false
	}
	d.told = d.wanted
	return d.tell(d.wanted) == nil
}
