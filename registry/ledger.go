package registry

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// change is one value of the bucket, in the order in which they were stored.
type change struct {
	key      string
	value    []byte
	deleted  bool
	revision uint64
	created  time.Time // by the server's clock
}

// ledger is what the bucket's values say: a state machine that gets every
// change in order, together with the replica's time. It reads no clock and
// does no I/O.
//
// Time passes for leases only between two beats of the replica itself, as they
// come back through the bucket: with its own beat a replica has heard
// everything that was stored before it.
//
// A member is what all sources of one worker say together: its announcement with a
// lease, ranks over HTTP, the static list. It is computed anew from them after each
// change (recompute), so no event, and no order of them, can leave it otherwise than its
// sources are. What a load repeats is no sign of life: the server may give out what it
// stored long ago.
type ledger struct {
	cfg  ledgerConfig
	emit func(Event)
	m    *meters

	members map[Key]*member
	named   *atomic.Int64     // members with names
	byKey   map[string]source // which source a key of the bucket is
	drains  map[uint64]*drain
	corrupt map[string]Corrupt // by key
	// markers are the keys of which the bucket still says that they are gone.
	markers map[string]marker
	// ended are the keys that were gone before the load, while it lasts, and outdated the
	// registrations that it brought of them: the server has been restored from a backup.
	ended    map[string]marker
	outdated map[string]outdated
	// replicas are the beats of all replicas, by key.
	replicas map[string]marker

	beatAt     time.Time     // when the last own beat was heard
	steadyFrom time.Time     // since when own beats are heard without a break
	serverAt   time.Time     // when the server stored the last own beat
	changed    time.Time     // when it stored the change that is being applied
	loading    bool          // between begin and loaded
	begun      bool          // it was loaded once
	away       time.Duration // how long the bucket was not heard before the last load
}

// source is a registration of a member: its announcement, or a rank's over
// HTTP.
type source struct {
	member *member
	rank   uint32
	http   bool
}

type ledgerConfig struct {
	replica    string        // name of this replica; "": it hears no beats
	nonce      uint64        // of this run
	gap        time.Duration // a longer silence between own beats is a break
	grace      time.Duration // after which an HTTP registration that is not in the bucket any more is gone
	forget     time.Duration // after which a worker that left is forgotten
	maxWorkers int
}

// Corrupt is a value of the bucket that is ignored.
type Corrupt struct {
	Key    string
	Reason string
	Error  string
}

func newLedger(cfg ledgerConfig, m *meters, emit func(Event)) *ledger {
	return &ledger{cfg: cfg, m: m, emit: emit,
		members: make(map[Key]*member), named: new(atomic.Int64), byKey: make(map[string]source), drains: make(map[uint64]*drain),
		corrupt: make(map[string]Corrupt), markers: make(map[string]marker), outdated: make(map[string]outdated), replicas: make(map[string]marker)}
}

// begin starts a load: all of the bucket follows, then loaded.
func (l *ledger) begin() {
	l.noteEnded()
	l.loading = true
	clear(l.corrupt)
	clear(l.markers)
	clear(l.replicas)
	for _, m := range l.members {
		for _, h := range m.http {
			h.confirmed = false
		}
	}
	for _, d := range l.drains {
		d.confirmed = false
	}
}

// loaded ends a load. What was known and is not in the bucket any more has
// been removed long ago, or the server lost it. An announcement is judged by
// its lease, which a live worker keeps; an HTTP registration gets as long.
func (l *ledger) loaded(now time.Time) {
	l.loading, l.begun, l.away, l.ended = false, true, l.awayFor(now), nil
	for _, m := range l.members {
		for _, h := range m.http {
			if !h.confirmed && h.missing.IsZero() {
				h.missing = now
			}
		}
	}
}

// apply takes one change. A value that cannot be used changes nothing but what is shown
// of it (corrupt), and its key's next value, or its end, takes that back.
func (l *ledger) apply(now time.Time, c change) {
	l.changed = c.created
	if c.deleted {
		l.markers[c.key] = marker{c.revision, c.created}
	} else {
		delete(l.markers, c.key)
	}
	delete(l.corrupt, c.key)
	delete(l.outdated, c.key)
	var err error
	switch kind, _ := splitKey(c.key); kind {
	case keyLease, keyHTTP:
		if c.deleted {
			l.deleted(now, c)
			return
		}
		err = l.registration(now, c)
	case keyDrain:
		err = l.drain(c)
	case keyReplica:
		err = l.replica(now, c)
	default:
		err = corrupt("key", "%q is no key of a registry", c.key)
	}
	if err == nil {
		return
	}
	l.m.corrupt(reasonOf(err))
	if len(l.corrupt) < l.cfg.maxWorkers {
		l.corrupt[c.key] = Corrupt{Key: c.key, Reason: reasonOf(err), Error: err.Error()}
	}
}

// registration takes the value of a lease or HTTP key.
func (l *ledger) registration(now time.Time, c change) error {
	r, err := parseWorker(c.key, c.value)
	if err != nil {
		return err
	}
	if end := l.ended[c.key]; r.Gone == nil && end.after(c) {
		l.outdated[c.key] = outdated{record: r, revision: c.revision, ended: end}
		return nil
	}
	m := l.members[r.Key()]
	if m == nil {
		if len(l.members) >= l.cfg.maxWorkers && !l.makeRoom() {
			return corrupt("too_many", "already %d workers", len(l.members))
		}
		m = &member{key: r.Key(), state: Gone}
		l.setWorker(m, r.Worker)
		l.members[m.key] = m
	}
	src := source{member: m}
	if c.key != leaseKey(m.key) {
		src.rank, src.http = r.Ranks[0], true
		if r.Gone == nil && m.crowded(src.rank) {
			return corrupt("too_many", "already %d ranks of worker %d", len(m.http), r.ID)
		}
	}
	l.byKey[c.key] = src
	switch {
	case r.Gone != nil:
		l.markers[c.key] = marker{c.revision, c.created}
		l.unregister(now, src, c.key, r.departures(c.created))
	case src.http:
		if h := m.http[src.rank]; l.loading && h != nil && (marker{h.revision, h.stored}).after(c) {
			h.outdated = c.revision // what is known is newer, and is stored again
			return nil
		}
		if m.http == nil {
			m.http = make(map[uint32]*httpSource)
		}
		m.http[src.rank] = &httpSource{worker: r.Worker, revision: c.revision, stored: c.created, confirmed: true}
		l.recompute(now, m, true, m.departs(c.key, r.departures(c.created)))
	default:
		l.announce(now, m, r, c)
	}
	return nil
}

// announce takes an announcement. Which process announces (Announcer) tells a restart
// from two publishers that both think they are the worker: only the second kind comes
// back after it was replaced.
func (l *ledger) announce(now time.Time, m *member, r *record, c change) {
	if m.revision == c.revision && m.stored.Equal(c.created) {
		return // a load repeats what was known: no sign of life
	}
	if l.loading && (marker{m.revision, m.stored}).after(c) {
		m.revision, m.stored = c.revision, c.created // nor is what a backup had, however often it is read
		return
	}
	known := m.lease != nil
	if known && m.lease.Announcer != r.Announcer {
		l.replace(now, m, r.Announcer)
	}
	m.lease, m.revision, m.stored, m.seen = r, c.revision, c.created, now
	m.heard = !l.loading || known
	l.recompute(now, m, true, m.departs(c.key, r.departures(c.created)))
}

// replace notes that another process announces the worker. One that was
// replaced and is back is a second one, not a restart.
func (l *ledger) replace(now time.Time, m *member, announcer uint64) {
	if slices.Contains(m.replaced, announcer) {
		if m.conflict.IsZero() {
			l.m.conflicts.Inc()
		}
		m.conflict = now
	}
	const remembered = 4
	m.replaced = append(m.replaced, m.lease.Announcer)
	m.replaced = m.replaced[max(0, len(m.replaced)-remembered):]
}

// deleted takes a lease or HTTP key that somebody deleted: an operator, say, or what
// cleans up after a worker. Its ranks left then, if their source had not ended before.
func (l *ledger) deleted(now time.Time, c change) {
	src, known := l.byKey[c.key]
	if !known {
		return
	}
	var ranks []uint32
	switch m := src.member; {
	case src.http && m.http[src.rank] != nil:
		ranks = []uint32{src.rank}
	case !src.http && m.lease != nil:
		ranks = m.lease.Ranks
	default:
		return // it had ended before
	}
	l.unregister(now, src, c.key, []departed{{ranks, Departure{At: c.created, Silent: true}}})
}

// unregister ends a source of a member, whose ranks left then.
func (l *ledger) unregister(now time.Time, src source, key string, list []departed) {
	m := src.member
	if src.http {
		delete(m.http, src.rank)
	} else {
		m.lease = nil
	}
	news := m.departs(key, list)
	if !m.registered() && len(news) > 0 {
		m.left, m.leftBy = list[len(list)-1].Departure, Unregistered
	}
	l.recompute(now, m, false, news)
}

func (l *ledger) replica(now time.Time, c change) error {
	if c.deleted {
		delete(l.replicas, c.key)
		return nil
	}
	l.replicas[c.key] = marker{c.revision, c.created}
	var b beatRecord
	if err := parseJSON(c.value, &b); err != nil {
		return err
	}
	if l.cfg.replica != "" && c.key == replicaKey(l.cfg.replica) && b.Nonce == l.cfg.nonce {
		l.beat(now, c.created)
		l.undrain(c)
	}
	return nil
}

// recompute makes the member what its sources say, and tells what changed. A sign
// of life brings a worker back that has left. The ranks are those of which it is
// news that they left.
func (l *ledger) recompute(now time.Time, m *member, alive bool, departed []uint32) {
	before, had := m.worker, m.state
	if !m.registered() {
		if m.state = Gone; had == Live || had == Suspect || len(departed) > 0 {
			l.leave(now, m, Gone)
		}
		return
	}
	l.setWorker(m, m.merged())
	l.compareScheme(m)
	if had == Lost && !alive {
		return
	}
	if m.lease != nil && alive && m.heard {
		m.state = Live
	} else {
		m.state = l.stateOf(now, m)
	}
	e := Event{Entry: l.entry(m)}
	if had == Live || had == Suspect {
		departed = append(departed, before.Ranks...)
	}
	for _, rank := range departed {
		if !slices.Contains(m.worker.Ranks, rank) {
			e.remove(rank, l.removal(m.key, rank))
		}
	}
	switch {
	case had == Gone && m.leftSince.IsZero():
		e.Kind = Joined
	case had == Gone || had == Lost:
		e.Kind, e.NeedsDump = Returned, true
		e.Restarted = before.Incarnation != m.worker.Incarnation
	case had == m.state && before.equal(&m.worker) && len(e.RemovedRanks) == 0:
		return // a heartbeat
	default:
		e.Kind = Updated
		e.Restarted = before.Incarnation != m.worker.Incarnation
	}
	l.tell(e)
}

// remove adds a rank that left to an event.
func (e *Event) remove(rank uint32, d Departure) {
	if e.RemovedRanks == nil {
		e.RemovedRanks = make(map[uint32]Departure)
	}
	e.RemovedRanks[rank] = d
}

// removal returns when the rank of a worker that is there left: with the change
// that is being applied, if nothing says more.
func (l *ledger) removal(k Key, rank uint32) Departure {
	if d, ok := l.left(k, rank); ok {
		return d
	}
	return Departure{At: l.changed, Silent: true}
}

// compareScheme notes whether the worker's hashes can match here.
func (l *ledger) compareScheme(m *member) {
	mismatch := m.worker.mismatch()
	if mismatch != "" && m.mismatch == "" {
		l.m.mismatches.Inc()
	}
	m.mismatch = mismatch
}

// leave ends the worker's membership. What it registered stays shown until it
// is forgotten.
func (l *ledger) leave(now time.Time, m *member, state State) {
	m.state, m.leftSince = state, now
	if !l.begun {
		return // it had left before: nobody knows it
	}
	l.m.left(m.leftBy)
	l.tell(Event{Kind: Left, Entry: l.entry(m)})
}

func (l *ledger) tell(e Event) {
	l.m.event(e.Kind)
	l.emit(e)
}

// setStatic makes the workers of the static list those, at the start and whenever
// the list changes. Of those that are taken off it nothing else tells: they leave as
// if they had fallen silent.
func (l *ledger) setStatic(now time.Time, workers []Worker) {
	listed := make(map[Key]*Worker, len(workers))
	for i := range workers {
		listed[workers[i].Key()] = &workers[i]
	}
	for _, m := range l.members {
		if m.static == nil || listed[m.key] != nil {
			continue
		}
		d := Departure{At: now, Silent: true}
		if !l.serverAt.IsZero() {
			d.At = l.serverAt
		}
		news := m.departs(keyStatic, []departed{{m.static.Ranks, d}})
		if m.static = nil; !m.registered() {
			m.left, m.leftBy = d, Unregistered
		}
		l.recompute(now, m, false, news)
	}
	for k, w := range listed {
		m := l.members[k]
		if m == nil {
			m = &member{key: k, state: Gone}
			l.members[k] = m
		}
		m.static = w
		m.departs(keyStatic, nil)
		l.recompute(now, m, true, nil)
	}
}

// lookup returns one worker's entry.
func (l *ledger) lookup(k Key) (Entry, bool) {
	m := l.members[k]
	if m == nil {
		return Entry{}, false
	}
	return l.entry(m), true
}

// contents returns everything the ledger knows, sorted.
func (l *ledger) contents() Contents {
	c := Contents{Workers: l.entries(func(*member) bool { return true })}
	for worker, d := range l.drains {
		c.Drained = append(c.Drained, Drained{Worker: worker, Since: d.since, By: d.by})
	}
	slices.SortFunc(c.Drained, func(a, b Drained) int { return cmp.Compare(a.Worker, b.Worker) })
	for _, x := range l.corrupt {
		c.Corrupt = append(c.Corrupt, x)
	}
	slices.SortFunc(c.Corrupt, func(a, b Corrupt) int { return strings.Compare(a.Key, b.Key) })
	return c
}

// entries returns those members, sorted. An entry is large: it is made once, where
// it stays.
func (l *ledger) entries(which func(*member) bool) []Entry {
	members := make([]*member, 0, len(l.members))
	for _, m := range l.members {
		if which(m) {
			members = append(members, m)
		}
	}
	slices.SortFunc(members, func(a, b *member) int { return a.key.compare(b.key) })
	list := make([]Entry, len(members))
	for i, m := range members {
		list[i] = l.entry(m)
	}
	return list
}

// count returns how many members have which status.
func (l *ledger) count() map[string]int {
	n := make(map[string]int)
	for _, m := range l.members {
		n[statusOf(m.state, l.drains[m.key.Worker] != nil)]++
	}
	return n
}
