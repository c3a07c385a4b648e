package registry

import (
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
	confirmed bool
	missing   time.Time // since when it is not in the bucket; zero: it is
}

// registered reports whether anything says that the worker is there.
func (m *member) registered() bool { return m.lease != nil || len(m.http) > 0 || m.static != nil }

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
	ranks := make([]uint32, 0, len(m.http))
	for rank := range m.http {
		ranks = append(ranks, rank)
	}
	slices.Sort(ranks)
	for i, rank := range ranks {
		h := &m.http[rank].worker
		if i == 0 && w.Model == "" {
			w = *h
		}
		w.Ranks = append(slices.Clone(w.Ranks), rank)
		w.Endpoints.Events = withEndpoint(w.Endpoints.Events, rank, h.Endpoints.Events[rank])
		w.Endpoints.Replay = withEndpoint(w.Endpoints.Replay, rank, h.Endpoints.Replay[rank])
	}
	slices.Sort(w.Ranks)
	w.Ranks = slices.Compact(w.Ranks)
	return w
}

// withEndpoint returns a copy of the addresses with one more.
func withEndpoint(all map[uint32]string, rank uint32, address string) map[uint32]string {
	if address == "" {
		return all
	}
	with := map[uint32]string{rank: address}
	for k, v := range all {
		with[k] = v
	}
	return with
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
