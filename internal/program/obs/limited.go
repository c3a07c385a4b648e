package obs

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// limitedKeys bounds how many keys a Limited keeps apart. Keys are meant to be
// constants of the program; beyond the bound they share one.
const limitedKeys = 256

// Limited writes log lines at most once per key and interval, for causes that
// come from outside and may come a million times a second. Each line says how
// many of its key were left out since the one before. It is safe for
// concurrent use.
type Limited struct {
	log   *slog.Logger
	every time.Duration
	now   func() time.Time

	mu struct {
		sync.Mutex
		keys map[string]*limitedKey
	}
}

type limitedKey struct {
	next       time.Time // when the key may be logged again
	suppressed uint64
}

// NewLimited returns a Limited over log. A nil now means time.Now.
func NewLimited(log *slog.Logger, every time.Duration, now func() time.Time) *Limited {
	if now == nil {
		now = time.Now
	}
	l := &Limited{log: log, every: every, now: now}
	l.mu.keys = make(map[string]*limitedKey)
	return l
}

// Warn logs a warning, unless the key's last line is too recent.
func (l *Limited) Warn(key, msg string, attrs ...slog.Attr) {
	l.Log(slog.LevelWarn, key, msg, attrs...)
}

// Log logs at the level, unless the key's last line is too recent.
func (l *Limited) Log(level slog.Level, key, msg string, attrs ...slog.Attr) {
	if !l.log.Enabled(context.Background(), level) {
		return
	}
	suppressed, ok := l.take(key)
	if !ok {
		return
	}
	if suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", suppressed))
	}
	l.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// take reports whether the key may be logged now, and how many of it were not.
func (l *Limited) take(key string) (suppressed uint64, ok bool) {
	now := l.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.mu.keys[key]
	if k == nil {
		if len(l.mu.keys) >= limitedKeys {
			key = ""
		}
		if k = l.mu.keys[key]; k == nil {
			k = new(limitedKey)
			l.mu.keys[key] = k
		}
	}
	if now.Before(k.next) {
		k.suppressed++
		return 0, false
	}
	suppressed = k.suppressed
	k.suppressed, k.next = 0, now.Add(l.every)
	return suppressed, true
}
