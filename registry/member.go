package registry

import (
	"maps"
	"slices"
	"time"
)

// member is one worker.
type member struct {
	key    Key
	worker Worker // what its sources say together
	state  State

	lease    *record // nil: not announced
	revision uint64
	stored   time.Time // by the server's clock
	seen     time.Time // when this replica heard it last
	heard    bool      // by a heartbeat, not from what was there at the start

	http   map[uint32]*httpSource
	static *Worker

	mismatch  string
	replaced  []uint64 // announcers before the present one
	conflict  time.Time
	departed  map[string][]departed // ranks that left, by the key of the bucket that says so
	left      Departure             // when it last left as a whole
	leftBy    Reason
	leftSince time.Time // by the replica's clock

	listeners map[uint32]Listener
}

type httpSource struct {
	worker    Worker
	revision  uint64
	stored    time.Time // by the server's clock
	confirmed bool
	outdated  uint64    // revision of an older registration that the bucket has in its place; 0: none
	missing   time.Time // since when it is not in the bucket; zero: it is
}

// registered reports whether anything says that the worker is there.
func (m *member) registered() bool { return m.lease != nil || len(m.http) > 0 || m.static != nil }

// crowded reports whether the member has no room for one more rank over HTTP.
func (m *member) crowded(rank uint32) bool { return len(m.http) >= maxRanks && m.http[rank] == nil }

// otherwise reports whether a rank over HTTP is registered with what another one
// of the member is not: all of a worker's events are read alike.
func (m *member) otherwise(w *Worker) bool {
	for rank, h := range m.http {
		if o := &h.worker; rank != w.Ranks[0] && (o.Lora != w.Lora || o.Salt != w.Salt || o.EngineScheme != w.EngineScheme) {
			return true
		}
	}
	return false
}

// merged returns what the member's sources say together: the announcement, or
// else the static entry, tells; HTTP registrations add their ranks.
func (m *member) merged() Worker {
	var w Worker
	switch {
	case m.lease != nil:
		w = m.lease.Worker
	case m.static != nil:
		w = *m.static
	}
	if len(m.http) == 0 {
		return w
	}
	ranks := slices.Sorted(maps.Keys(m.http))
	if w.Model == "" {
		w = m.http[ranks[0]].worker
	}
	events, replay, snapshot := make(map[uint32]string), make(map[uint32]string), make(map[uint32]string)
	for _, h := range m.http {
		maps.Copy(events, h.worker.Endpoints.Events)
		maps.Copy(replay, h.worker.Endpoints.Replay)
		maps.Copy(snapshot, h.worker.Endpoints.Snapshot)
	}
	maps.Copy(events, w.Endpoints.Events) // what is announced goes first
	maps.Copy(replay, w.Endpoints.Replay)
	maps.Copy(snapshot, w.Endpoints.Snapshot)
	w.Endpoints.Events, w.Endpoints.Replay, w.Endpoints.Snapshot = events, replay, snapshot
	w.Ranks = slices.Compact(slices.Sorted(slices.Values(slices.Concat(w.Ranks, ranks))))
	return w
}

// setWorker sets what a member's sources say together.
func (l *ledger) setWorker(m *member, w Worker) {
	switch {
	case m.worker.Name == "" && w.Name != "":
		l.named.Add(1)
	case m.worker.Name != "" && w.Name == "":
		l.named.Add(-1)
	}
	m.worker = w
}

// entry returns the member as others see it.
func (l *ledger) entry(m *member) Entry {
	e := Entry{
		Worker: m.worker, Key: m.key, State: m.state,
		Announced: m.lease != nil && m.state != Lost, HTTP: len(m.http) > 0, Static: m.static != nil,
		Lease: m.leaseTime(), Mismatch: m.mismatch,
	}
	if d := l.drains[m.key.Worker]; d != nil {
		e.Drained, e.DrainedSince, e.DrainedBy = true, d.since, d.by
	}
	if m.lease != nil {
		e.LastSeen, e.Last = m.seen, m.lease.positions()
		if !m.heard {
			e.LastSeen = m.stored
		}
	}
	if !m.conflict.IsZero() {
		e.Conflict = "two processes announce it: give each worker an id of its own"
	}
	if m.state == Lost || m.state == Gone {
		e.Left, e.LeftBy = m.left, m.leftBy
	}
	e.Listeners = m.listenersOf()
	return e
}
