package registry

import "time"

// beat hears this replica's own beat: everything stored before it is heard.
func (l *ledger) beat(now, stored time.Time) {
	if l.beatAt.IsZero() || now.Before(l.beatAt) || now.Sub(l.beatAt) > l.cfg.gap {
		l.steadyFrom = now // from here on, silence is the worker's
	}
	l.beatAt, l.serverAt = now, stored
	for _, m := range l.members {
		l.applyLease(now, m)
	}
}

// applyLease applies the lease rules to a worker at a beat.
func (l *ledger) applyLease(now time.Time, m *member) {
	if m.state == Gone || m.state == Lost {
		if now.Sub(m.leftSince) > l.cfg.forget && m.lease == nil {
			l.forget(m)
		}
		return
	}
	if !m.conflict.IsZero() && now.Sub(m.conflict) > 4*m.leaseTime() {
		m.conflict = time.Time{}
	}
	silent := Departure{At: l.serverAt, Silent: true}
	var gone []uint32
	for rank, h := range m.http {
		if !h.missing.IsZero() && l.silence(now, h.missing) >= l.cfg.grace {
			key := httpKey(m.key, rank)
			delete(m.http, rank)
			delete(l.byKey, key)
			gone = append(gone, m.departs(key, []departed{{[]uint32{rank}, silent}})...)
			m.leftBy = Vanished
		}
	}
	if m.lease != nil && l.silence(now, m.seen) >= m.leaseTime() {
		m.leftBy = LeaseLost
		if len(m.http) == 0 && m.static == nil {
			m.left = silent
			l.leave(now, m, Lost)
			return
		}
		key := leaseKey(m.key)
		gone = append(gone, m.departs(key, []departed{{m.lease.Ranks, silent}})...)
		m.lease = nil // others vouch for it
		delete(l.byKey, key)
	}
	if len(gone) > 0 {
		m.left = silent // should nothing else vouch for it
		l.recompute(now, m, false, gone)
	} else if state := l.stateOf(now, m); state != m.state {
		m.state = state
		l.tell(Event{Kind: Updated, Entry: l.entry(m)})
	}
}

// silence returns for how long this replica listened since at without a break.
func (l *ledger) silence(now, at time.Time) time.Duration {
	if at.Before(l.steadyFrom) || at.After(now) {
		at = l.steadyFrom
	}
	return now.Sub(at)
}

func (m *member) leaseTime() time.Duration {
	if m.lease == nil {
		return 0
	}
	return time.Duration(m.lease.LeaseMS) * time.Millisecond
}

// stateOf returns the state of a worker that has a source.
func (l *ledger) stateOf(now time.Time, m *member) State {
	if m.lease != nil && len(m.http) == 0 && m.static == nil && (!m.heard || l.silence(now, m.seen) >= m.leaseTime()/2) {
		return Suspect
	}
	return Live
}
