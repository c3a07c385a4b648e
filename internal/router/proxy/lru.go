package proxy

import (
	"container/list"
	"sync"
	"time"
)

// lru is a map that forgets what was not used for longest beyond its size, and
// what is older than its lifetime. It is safe for concurrent use.
//
// It is a list under a lock. With xsync's map, times of use that are noted without
// the lock, and a heap to find the oldest of them, a use takes 0.6 of the time
// where two ask at once and as long where one does; but what is new takes twice as
// long, and the code too (BENCHMARKS.md, Concurrent maps).
type lru[K comparable, V any] struct {
	size int64         // most of the sum of costs; 0 keeps nothing
	life time.Duration // since the last put; 0 is for ever

	mu    sync.Mutex
	at    map[K]*list.Element
	order *list.List // front: used last
	sum   int64
}

type lruEntry[K comparable, V any] struct {
	key  K
	val  V
	cost int64
	end  time.Time
}

func newLRU[K comparable, V any](size int64, life time.Duration) *lru[K, V] {
	return &lru[K, V]{size: size, life: life, at: make(map[K]*list.Element), order: list.New()}
}

func (l *lru[K, V]) get(k K, now time.Time) (v V, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at[k]
	if at == nil {
		return v, false
	}
	e := at.Value.(*lruEntry[K, V]) //nolint:forcetypeassert // the list holds nothing else
	if l.life > 0 && now.After(e.end) {
		l.drop(at)
		return v, false
	}
	l.order.MoveToFront(at)
	return e.val, true
}

func (l *lru[K, V]) put(k K, v V, cost int64, now time.Time) {
	if cost > l.size {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at[k]
	if at == nil {
		at = l.order.PushFront(&lruEntry[K, V]{key: k})
		l.at[k] = at
	}
	e := at.Value.(*lruEntry[K, V]) //nolint:forcetypeassert // the list holds nothing else
	l.sum += cost - e.cost
	e.val, e.cost, e.end = v, cost, now.Add(l.life)
	l.order.MoveToFront(at)
	for l.sum > l.size {
		l.drop(l.order.Back())
	}
}

func (l *lru[K, V]) drop(at *list.Element) {
	e := l.order.Remove(at).(*lruEntry[K, V]) //nolint:forcetypeassert // the list holds nothing else
	delete(l.at, e.key)
	l.sum -= e.cost
}
