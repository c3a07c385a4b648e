package registry

import (
	"time"
)

// garbage is a key that may be taken out of the bucket: the record of a worker
// that was lost or left long ago, the beat of a replica that ended without its
// Close, or the marker of a deleted key.
type garbage struct {
	key      string
	revision uint64
}

// garbage returns what may be cleaned up, limit at most, and forgets it: what
// cannot be cleaned is found again by the next load. Ages are between two times
// of the server's clock.
func (l *ledger) garbage(limit int) []garbage {
	var list []garbage
	old := func(t time.Time) bool { return len(list) < limit && l.serverAt.Sub(t) > l.cfg.forget }
	for _, m := range l.members {
		if m.state == Lost && m.lease != nil && old(m.left.At) && old(m.stored) {
			list = append(list, garbage{leaseKey(m.key), m.revision})
			l.forget(m)
		}
	}
	for key, beat := range l.replicas {
		if old(beat.created) {
			list = append(list, garbage{key, beat.revision})
			delete(l.replicas, key)
		}
	}
	for key, mk := range l.markers {
		if !old(mk.created) {
			continue
		}
		list = append(list, garbage{key, mk.revision})
		delete(l.markers, key)
		if src, known := l.byKey[key]; known {
			delete(src.member.departed, key)
			delete(l.byKey, key)
		}
	}
	return list
}

// forget takes a worker that left out of memory.
func (l *ledger) forget(m *member) {
	l.setWorker(m, Worker{})
	delete(l.members, m.key)
	delete(l.byKey, leaseKey(m.key))
	for key := range m.departed {
		delete(l.byKey, key)
	}
}

// makeRoom forgets the worker that left first, if one did.
func (l *ledger) makeRoom() bool {
	var oldest *member
	for _, m := range l.members {
		if !m.registered() && (oldest == nil || m.leftSince.Before(oldest.leftSince)) {
			oldest = m
		}
	}
	if oldest != nil {
		l.forget(oldest)
	}
	return oldest != nil
}
