package obs

import (
	"cmp"
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/puzpuzpuz/xsync/v3"
)

// limitedKeys bounds how many keys a Limited keeps apart. Keys are meant to be
// few, constants of the program or reasons; beyond the bound they share one.
const limitedKeys = 256

// Limited writes log lines at most once per key and interval, for causes that
// come from outside and may come a million times a second. Each line says how
// many of its key were left out since the one before. It is safe for
// concurrent use.
type Limited struct {
	log   *slog.Logger
	every time.Duration
	now   func() time.Time

	began time.Time
	keys  *xsync.MapOf[string, *limitedKey]
	kept  atomic.Int64 // keys, or more while one is refused
	rest  limitedKey   // what keys beyond the bound share
}

type limitedKey struct {
	next       atomic.Int64 // when the key may be logged again, after Limited.began
	suppressed atomic.Uint64
}

// NewLimited returns a Limited over log. A nil now means time.Now.
func NewLimited(log *slog.Logger, every time.Duration, now func() time.Time) *Limited {
	if now == nil {
		now = time.Now
	}
	return &Limited{log: log, every: every, now: now, began: now(), keys: xsync.NewMapOf[string, *limitedKey]()}
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
	suppressed, ok := l.allow(key)
	if !ok {
		return
	}
	if suppressed > 0 {
		attrs = append(attrs, slog.Uint64("suppressed", suppressed))
	}
	l.log.LogAttrs(context.Background(), level, msg, attrs...)
}

// allow reports whether the key may be logged now, and how many of it were not.
func (l *Limited) allow(key string) (suppressed uint64, ok bool) {
	k, ok := l.keys.Load(key)
	if !ok {
		k, _ = l.keys.LoadOrTryCompute(key, func() (k *limitedKey, full bool) {
			if l.kept.Add(1) > limitedKeys {
				l.kept.Add(-1)
				return nil, true
			}
			return new(limitedKey), false
		})
		k = cmp.Or(k, &l.rest)
	}
	now := l.now().Sub(l.began)
	next := k.next.Load()
	if int64(now) < next || !k.next.CompareAndSwap(next, int64(now+l.every)) {
		k.suppressed.Add(1)
		return 0, false
	}
	return k.suppressed.Swap(0), true
}
