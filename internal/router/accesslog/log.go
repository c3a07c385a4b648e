package accesslog

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"
)

// lookEvery is how often it is looked whether the file is still there: who rotates logs
// renames it.
const lookEvery = time.Second

// Log is an access log. It is safe for concurrent use; a nil one takes nothing.
type Log struct {
	limit int
	log   *slog.Logger
	wake  chan struct{}
	done  chan struct{}

	out    io.Writer // the goroutine's, as the next
	path   string    // "" if it is no file of ours
	file   *os.File
	looked time.Time

	mu struct {
		sync.Mutex
		buf    []byte
		lines  uint64 // in it
		full   uint64 // dropped
		failed uint64 // not written
		closed bool
	}
}

// Open returns a Log that adds to the file, made if it does not exist, and made anew if
// it is renamed. limit bounds what waits to be written, in bytes.
func Open(path string, limit int, log *slog.Logger) (*Log, error) {
	f, err := create(path)
	if err != nil {
		return nil, err
	}
	l := &Log{path: path, file: f, out: f}
	l.start(limit, log)
	return l, nil
}

// New returns a Log that writes to w, which stays open.
func New(w io.Writer, limit int, log *slog.Logger) *Log {
	l := &Log{out: w}
	l.start(limit, log)
	return l
}

func create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600) //nolint:gosec // the path is a setting
	if err != nil {
		return nil, fmt.Errorf("access log: %w", err)
	}
	return f, nil
}

func (l *Log) start(limit int, log *slog.Logger) {
	l.limit, l.log, l.wake, l.done = limit, log, make(chan struct{}, 1), make(chan struct{})
	go l.run() // ends with Close
}

// Add writes the entry, soon.
func (l *Log) Add(e *Entry) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	before := len(l.mu.buf)
	if before >= l.limit || l.mu.closed {
		l.mu.full++
		return
	}
	if l.mu.buf = e.append(l.mu.buf); len(l.mu.buf) > l.limit {
		l.mu.buf = l.mu.buf[:before]
		l.mu.full++
		return
	}
	l.mu.lines++
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Dropped returns how many entries found no room, and how many could not be written.
func (l *Log) Dropped() (full, failed uint64) {
	if l == nil {
		return 0, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.full, l.mu.failed
}

func (l *Log) run() {
	defer close(l.done)
	var buf []byte
	bad := false
	for range l.wake {
		l.mu.Lock()
		buf, l.mu.buf = l.mu.buf, buf[:0]
		lines, closed := l.mu.lines, l.mu.closed
		l.mu.lines = 0
		l.mu.Unlock()
		if len(buf) > 0 {
			err := l.write(buf)
			if err != nil {
				l.mu.Lock()
				l.mu.failed += lines
				l.mu.Unlock()
			}
			if was := bad; err != nil && !was {
				l.log.Error("the access log is not written", "error", err)
			}
			bad = err != nil
		}
		if closed {
			return
		}
	}
}

func (l *Log) write(buf []byte) error {
	if now := time.Now(); l.path != "" && now.Sub(l.looked) >= lookEvery {
		l.looked = now
		is, err := os.Stat(l.path)
		own, oerr := l.file.Stat()
		if err != nil || oerr != nil || !os.SameFile(is, own) {
			f, err := create(l.path)
			if err != nil {
				return err
			}
			_ = l.file.Close() // all of it is written
			l.file, l.out = f, f
		}
	}
	_, err := l.out.Write(buf)
	return err
}

// Close writes what is left.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	l.mu.closed = true
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	<-l.done
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
