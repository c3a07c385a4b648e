package proxy

import (
	"container/list"
	"sync"
	"time"

	"github.com/zeebo/xxh3"
)

// lru is a map that forgets what was not used for longest beyond its size, and
// what is older than its lifetime. It is safe for concurrent use.
//
// What is put for somebody (putFor) makes room at the cost of whoever has most, so that what one
// puts in abundance takes nothing from those who have less. Of maxParts and more some share a part.
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
	parts map[uint64]*lruPart
	sum   int64
}

const maxParts = 1024

// lruPart is what is there of one owner, or of some.
type lruPart struct {
	name  uint64
	order *list.List // front: used last
	sum   int64
}

type lruEntry[K comparable, V any] struct {
	key  K
	val  V
	cost int64
	end  time.Time
	part *lruPart
}

func newLRU[K comparable, V any](size int64, life time.Duration) *lru[K, V] {
	return &lru[K, V]{size: size, life: life, at: make(map[K]*list.Element), parts: make(map[uint64]*lruPart)}
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
	e.part.order.MoveToFront(at)
	return e.val, true
}

func (l *lru[K, V]) put(k K, v V, cost int64, now time.Time) { l.putFor("", k, v, cost, now) }

func (l *lru[K, V]) putFor(owner string, k K, v V, cost int64, now time.Time) {
	if cost > l.size {
		return
	}
	name := uint64(0)
	if owner != "" {
		name = 1 + xxh3.HashString(owner)%maxParts
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.at[k]
	if at != nil && at.Value.(*lruEntry[K, V]).part.name != name { //nolint:forcetypeassert // the list holds nothing else
		l.drop(at)
		at = nil
	}
	if at == nil {
		at = l.part(name).order.PushFront(&lruEntry[K, V]{key: k, part: l.part(name)})
		l.at[k] = at
	}
	e := at.Value.(*lruEntry[K, V]) //nolint:forcetypeassert // the list holds nothing else
	l.sum += cost - e.cost
	e.part.sum += cost - e.cost
	e.val, e.cost, e.end = v, cost, now.Add(l.life)
	e.part.order.MoveToFront(at)
	for l.sum > l.size {
		l.drop(l.most().order.Back())
	}
	l.prune(now)
}

func (l *lru[K, V]) part(name uint64) *lruPart {
	p := l.parts[name]
	if p == nil {
		p = &lruPart{name: name, order: list.New()}
		l.parts[name] = p
	}
	return p
}

// most returns who has most.
func (l *lru[K, V]) most() (most *lruPart) {
	for _, p := range l.parts {
		if most == nil || p.sum > most.sum {
			most = p
		}
	}
	return most
}

// used returns the sum of costs.
func (l *lru[K, V]) used(now time.Time) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.prune(now)
	return l.sum
}

// prune lets go of what is too old and was used longest ago: of what is used no more all,
// within two lifetimes, as what stands behind it has ended by then.
func (l *lru[K, V]) prune(now time.Time) {
	if l.life == 0 {
		return
	}
	for _, p := range l.parts {
		for at := p.order.Back(); at != nil && now.After(at.Value.(*lruEntry[K, V]).end); at = p.order.Back() { //nolint:forcetypeassert // the list holds nothing else
			l.drop(at)
		}
	}
}

func (l *lru[K, V]) drop(at *list.Element) {
	e := at.Value.(*lruEntry[K, V]) //nolint:forcetypeassert // the list holds nothing else
	e.part.order.Remove(at)
	delete(l.at, e.key)
	l.sum -= e.cost
	if e.part.sum -= e.cost; e.part.order.Len() == 0 {
		delete(l.parts, e.part.name)
	}
}
