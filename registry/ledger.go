package registry

import (
	"cmp"
	"slices"
	"strings"
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
type ledger struct {
	cfg  ledgerConfig
	emit func(Event)
	m    *meters

	members map[Key]*member
	byKey   map[string]source // which source a key of the bucket is
	drains  map[uint64]*drain
	corrupt map[string]Corrupt // by key
	// markers are deleted keys whose markers are still in the bucket.
	markers map[string]marker
	// replicas are the beats of all replicas, by key.
	replicas map[string]marker

	beatAt     time.Time // when the last own beat was heard
	steadyFrom time.Time // since when own beats are heard without a break
	serverAt   time.Time // when the server stored the last own beat
	loading    bool      // between begin and loaded
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

type drain struct {
	since     time.Time
	by        string
	confirmed bool
}

type marker struct {
	revision uint64
	created  time.Time
}

// Corrupt is a value of the bucket that is ignored.
type Corrupt struct {
	Key    string
	Reason string
	Error  string
}

func newLedger(cfg ledgerConfig, m *meters, emit func(Event)) *ledger {
	return &ledger{cfg: cfg, m: m, emit: emit,
		members: make(map[Key]*member), byKey: make(map[string]source), drains: make(map[uint64]*drain),
		corrupt: make(map[string]Corrupt), markers: make(map[string]marker), replicas: make(map[string]marker)}
}

// begin starts a load: all of the bucket follows, then loaded.
func (l *ledger) begin() {
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
	l.loading = false
	for _, m := range l.members {
		for _, h := range m.http {
			if !h.confirmed && h.missing.IsZero() {
				h.missing = now
			}
		}
	}
	for worker, d := range l.drains {
		if !d.confirmed {
			delete(l.drains, worker)
			l.drainChanged(worker)
		}
	}
}

// apply takes one change.
func (l *ledger) apply(now time.Time, c change) {
	if c.deleted {
		l.markers[c.key] = marker{c.revision, c.created}
	} else {
		delete(l.markers, c.key)
	}
	delete(l.corrupt, c.key)
	var err error
	switch kind, _ := splitKey(c.key); kind {
	case keyLease, keyHTTP:
		if c.deleted {
			l.unregister(now, c)
			return
		}
		err = l.register(now, c)
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

func (l *ledger) register(now time.Time, c change) error {
	r, err := parseWorker(c.key, c.value)
	if err != nil {
		return err
	}
	m := l.members[r.Key()]
	if m == nil {
		if len(l.members) >= l.cfg.maxWorkers {
			return corrupt("too_many", "already %d workers", len(l.members))
		}
		m = &member{key: r.Key(), state: Gone}
		l.members[m.key] = m
	}
	if r.LeaseMS == 0 {
		if m.http == nil {
			m.http = make(map[uint32]*httpSource)
		}
		l.byKey[c.key] = source{member: m, rank: r.Ranks[0], http: true}
		m.http[r.Ranks[0]] = &httpSource{worker: r.Worker, confirmed: true}
		l.settle(now, m, true)
		return nil
	}
	same := m.lease != nil && m.revision == c.revision && m.stored.Equal(c.created)
	if same { // a load repeats what was known: no sign of life
		return nil
	}
	known := m.lease != nil
	if known && m.lease.Announcer != r.Announcer {
		l.replace(now, m, r.Announcer)
	}
	l.byKey[c.key] = source{member: m}
	m.lease, m.revision, m.stored, m.seen = r, c.revision, c.created, now
	m.heard = !l.loading || known
	l.settle(now, m, true)
	return nil
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

// unregister takes a deleted lease or HTTP key.
func (l *ledger) unregister(now time.Time, c change) {
	src, known := l.byKey[c.key]
	if !known {
		return
	}
	delete(l.byKey, c.key)
	m := src.member
	if src.http {
		delete(m.http, src.rank)
	} else {
		m.lease = nil
	}
	m.leaving(Unregistered, c.created)
	l.settle(now, m, false)
}

func (l *ledger) drain(c change) error {
	if c.deleted {
		worker, err := drainWorker(c.key)
		if err == nil && l.drains[worker] != nil {
			delete(l.drains, worker)
			l.drainChanged(worker)
		}
		return err
	}
	worker, r, err := parseDrain(c.key, c.value)
	if err != nil {
		return err
	}
	if len(l.drains) >= l.cfg.maxWorkers && l.drains[worker] == nil {
		return corrupt("too_many", "already %d drained workers", len(l.drains))
	}
	before := l.drains[worker]
	l.drains[worker] = &drain{since: r.Since, by: r.By, confirmed: true}
	if before == nil || !before.since.Equal(r.Since) {
		l.drainChanged(worker)
	}
	return nil
}

func (l *ledger) drainChanged(worker uint64) {
	for _, m := range l.members {
		if m.key.Worker == worker && m.state != Gone {
			l.tell(Event{Kind: Updated, Entry: l.entry(m)})
		}
	}
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
	}
	return nil
}

// settle makes the member what its sources say, and tells what changed. A sign
// of life brings a worker back that has left.
func (l *ledger) settle(now time.Time, m *member, alive bool) {
	before, had := m.worker, m.state
	if m.lease == nil && len(m.http) == 0 && m.static == nil {
		if had == Live || had == Suspect {
			l.leave(now, m, Gone)
		} else {
			m.state = Gone // a lost one that now unregisters
		}
		return
	}
	m.worker = m.merged()
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
	switch {
	case had == Gone && m.leftSince.IsZero():
		e.Kind = Joined
	case had == Gone || had == Lost:
		e.Kind, e.NeedsDump = Returned, true
		e.Restarted = before.Incarnation != m.worker.Incarnation
	case had == m.state && before.equal(&m.worker):
		return // a heartbeat
	default:
		e.Kind = Updated
		e.Restarted = before.Incarnation != m.worker.Incarnation
		for _, rank := range before.Ranks {
			if !slices.Contains(m.worker.Ranks, rank) {
				e.RemovedRanks = append(e.RemovedRanks, rank)
			}
		}
	}
	l.tell(e)
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
	l.m.left(m.leftBy)
	l.tell(Event{Kind: Left, Entry: l.entry(m)})
}

func (l *ledger) tell(e Event) {
	l.m.event(e.Kind)
	l.emit(e)
}

// setStatic makes the workers the static list. It is called once, before the
// first load.
func (l *ledger) setStatic(now time.Time, workers []Worker) {
	for i := range workers {
		w := workers[i]
		m := l.members[w.Key()]
		if m == nil {
			m = &member{key: w.Key(), state: Gone}
			l.members[m.key] = m
		}
		m.static = &w
		l.settle(now, m, true)
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

// left returns when the worker last left, by the server's clock: what it
// published until then is void.
func (l *ledger) left(k Key) (time.Time, bool) {
	if m := l.members[k]; m != nil {
		return m.leftAt, !m.leftAt.IsZero()
	}
	mk, ok := l.markers[leaseKey(k)] // it left before this replica began
	return mk.created, ok
}

// contents returns everything the ledger knows, sorted.
func (l *ledger) contents() Contents {
	var c Contents
	for _, m := range l.members {
		c.Workers = append(c.Workers, l.entry(m))
	}
	slices.SortFunc(c.Workers, func(a, b Entry) int { return a.Key.compare(b.Key) })
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
