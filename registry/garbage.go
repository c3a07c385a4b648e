package registry

import "time"

// garbage is a key that may be taken out of the bucket: the record of a worker
// that was lost long ago, the beat of a replica that ended without its Close,
// or the marker of a deleted key.
type garbage struct {
	key      string
	revision uint64
	marker   bool
}

// garbage returns what may be cleaned up. Ages are between two times of the
// server's clock.
func (l *ledger) garbage() []garbage {
	var list []garbage
	old := func(t time.Time) bool { return l.serverAt.Sub(t) > l.cfg.forget }
	for _, m := range l.members {
		if m.state == Lost && m.lease != nil && old(m.leftAt) && old(m.stored) {
			list = append(list, garbage{key: leaseKey(m.key), revision: m.revision})
		}
	}
	for key, beat := range l.replicas {
		if old(beat.created) {
			list = append(list, garbage{key: key, revision: beat.revision})
		}
	}
	for key, mk := range l.markers {
		if old(mk.created) {
			list = append(list, garbage{key: key, revision: mk.revision, marker: true})
			delete(l.markers, key)
		}
	}
	return list
}
