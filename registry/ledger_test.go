package registry

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
)

const (
	testBeat  = 2 * time.Second
	testLease = 15 * time.Second
)

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func testWorker(id uint64) Worker {
	return Worker{ID: id, Model: "org/model", BlockSize: 16, Group: "g", Ranks: []uint32{0, 1}, Transport: JetStream,
		Role: Aggregated, TotalBlocks: 1000, Incarnation: 100 + id}
}

// world is a bucket, the fleet that writes to it and one replica that reads,
// on a clock of its own. The replica's clock may differ from it.
type world struct {
	t      testing.TB
	l      *ledger
	now    time.Time     // true time, and the server's
	skew   time.Duration // of the replica's clock
	seq    uint64
	log    []change // what the replica has not heard yet
	last   map[string]change
	events []Event
	set    *metrics.Set

	brokerDown, paused bool
	nextBeat           time.Time
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, now: epoch, set: metrics.NewSet(), last: make(map[string]change)}
	w.l = newLedger(ledgerConfig{replica: "me", nonce: 7, gap: testBeat * 5 / 2, grace: testLease, forget: time.Hour, maxWorkers: 100},
		newMeters(w.set), func(e Event) { w.events = append(w.events, e) })
	w.load()
	return w
}

// load begins a session of the replica.
func (w *world) load() {
	w.log = nil
	w.l.begin()
	for _, key := range sortedKeys(w.last) {
		w.l.apply(w.clock(), w.last[key])
	}
	w.l.loaded(w.clock())
}

func sortedKeys(m map[string]change) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	for i := range keys { // by revision, as the server delivers them
		for j := i; j > 0 && m[keys[j]].revision < m[keys[j-1]].revision; j-- {
			keys[j], keys[j-1] = keys[j-1], keys[j]
		}
	}
	return keys
}

func (w *world) clock() time.Time { return w.now.Add(w.skew) }

// store writes to the bucket; false while the broker is away.
func (w *world) store(key string, value any) bool {
	if w.brokerDown {
		return false
	}
	w.seq++
	c := change{key: key, revision: w.seq, created: w.now, deleted: value == nil}
	switch v := value.(type) {
	case nil:
	case []byte:
		c.value = v
	default:
		data, err := json.Marshal(value)
		if err != nil {
			w.t.Fatal(err)
		}
		c.value = data
	}
	w.last[key] = c
	w.log = append(w.log, c)
	w.deliver()
	return true
}

func (w *world) announce(wk Worker, announcer uint64) bool {
	return w.store(leaseKey(wk.Key()), record{Version: 1, Worker: wk, LeaseMS: testLease.Milliseconds(), Announcer: announcer})
}

// unregister ends the worker's announcement when its stream has seq messages.
func (w *world) unregister(wk Worker) { w.bury(leaseKey(wk.Key()), wk, 7) }

// bury puts a tombstone under a key.
func (w *world) bury(key string, wk Worker, seq uint64) {
	old := record{Worker: wk}
	w.store(key, old.tombstone(moment{At: w.now, Stream: epoch, Seq: seq}))
}

func (w *world) deliver() {
	if w.paused || w.brokerDown {
		return
	}
	for _, c := range w.log {
		w.l.apply(w.clock(), c)
	}
	w.log = nil
}

// step lets time pass, with the replica's beats.
func (w *world) step(d time.Duration) {
	w.now = w.now.Add(d)
	w.deliver()
	if !w.paused && !w.now.Before(w.nextBeat) {
		w.nextBeat = w.now.Add(testBeat)
		w.store(replicaKey("me"), beatRecord{Version: 1, Nonce: 7})
	}
}

// live lets time pass while the workers keep their leases.
func (w *world) live(d time.Duration, workers ...Worker) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.step(time.Second)
		if w.now.Unix()%5 == 0 {
			for _, wk := range workers {
				w.announce(wk, wk.ID)
			}
		}
	}
}

// take returns the events so far as "kind worker", and forgets them.
func (w *world) take() string {
	var all []string
	for _, e := range w.events {
		text := fmt.Sprintf("%s %d", e.Kind, e.Entry.Key.Worker)
		if e.Kind == Left {
			text += " " + e.Entry.LeftBy.String()
		}
		if e.NeedsDump {
			text += " dump"
		}
		if e.Restarted {
			text += " restarted"
		}
		if len(e.RemovedRanks) > 0 {
			text += fmt.Sprint(" without ", slices.Sorted(maps.Keys(e.RemovedRanks)))
		}
		all = append(all, text)
	}
	w.events = nil
	return strings.Join(all, "; ")
}

func (w *world) expect(want string) {
	w.t.Helper()
	if got := w.take(); got != want {
		w.t.Fatalf("at %v: events %q, want %q", w.now.Sub(epoch), got, want)
	}
}

func (w *world) state(wk Worker) string {
	e, ok := w.l.lookup(wk.Key())
	if !ok {
		return "unknown"
	}
	return e.Status()
}

func (w *world) counter(name string) uint64 { return w.set.GetOrCreateCounter(name).Get() }

func TestAWorkerComesAndGoes(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	w.announce(a, 1)
	w.expect("joined 1")
	w.live(time.Minute, a)
	w.expect("")
	if s := w.state(a); s != "live" {
		t.Fatal(s)
	}
	w.unregister(a)
	w.expect("left 1 unregistered")
	if e, _ := w.l.lookup(a.Key()); e.State != Gone || !e.Left.At.Equal(w.now) || e.Present() {
		t.Fatalf("%+v", e)
	}
	w.announce(a, 2) // the same incarnation
	w.expect("returned 1 dump")
	a.Incarnation++
	w.announce(a, 3) // a restart without having left
	w.expect("updated 1 restarted")
	w.unregister(a)
	a.Incarnation++
	w.announce(a, 4)
	w.expect("left 1 unregistered; returned 1 dump restarted")
	a.Ranks = []uint32{1}
	w.announce(a, 4)
	w.expect("updated 1 without [0]")
}

func TestADeadWorkerIsSuspectedThenLost(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	w.live(10*time.Second, a)
	w.expect("joined 1")
	died := w.now
	w.live(10 * time.Second)
	w.expect("updated 1")
	if s := w.state(a); s != "suspect" {
		t.Fatal(s)
	}
	for w.state(a) == "suspect" {
		w.step(time.Second)
	}
	w.expect("left 1 lease_lost")
	if took := w.now.Sub(died); took < testLease || took > testLease+testBeat+time.Second {
		t.Fatalf("lost after %v", took)
	}
	w.announce(a, 1)
	w.expect("returned 1 dump")
}

func TestABrokerOutageLosesNobody(t *testing.T) {
	for _, outage := range []time.Duration{time.Second, testLease / 2, testLease, 10 * testLease, time.Hour} {
		w, a, b := newWorld(t), testWorker(1), testWorker(2)
		w.live(30*time.Second, a, b)
		w.take()
		w.brokerDown = true
		w.live(outage, a, b)
		w.brokerDown = false
		w.live(time.Minute, a, b)
		if got := w.take(); strings.Contains(got, "left") {
			t.Errorf("an outage of %v: %s", outage, got)
		}
		// One that died in it is lost a full lease later, not sooner.
		w.brokerDown = true
		w.live(outage, a)
		w.brokerDown = false
		back := w.now
		for w.state(b) != "lost" {
			w.live(time.Second, a)
			if w.now.Sub(back) > time.Hour {
				t.Fatalf("outage of %v: never lost", outage)
			}
		}
		if took := w.now.Sub(back); outage > testBeat*5/2 && took < testLease {
			t.Errorf("outage of %v: lost after %v with a connection", outage, took)
		}
		if s := w.state(a); s != "live" {
			t.Errorf("outage of %v: the living one is %s", outage, s)
		}
	}
}

// The server may also come back with nothing, or with old contents: workers
// that live write themselves in again.
func TestAnEmptyBucketLosesNobodyWhoLives(t *testing.T) {
	w, a, b := newWorld(t), testWorker(1), testWorker(2)
	h := testWorker(3)
	h.Ranks, h.Transport, h.Endpoints.Events = []uint32{4}, ZMQ, map[uint32]string{4: "tcp://127.0.0.1:5557"}
	w.store(httpKey(h.Key(), 4), record{Version: 1, Worker: h})
	w.store(drainKey(1), drainRecord{Version: 1, Since: epoch})
	w.live(20*time.Second, a, b)
	w.take()
	clear(w.last)
	w.load()
	w.expect("") // who answers may be behind
	w.step(testBeat)
	w.expect("updated 1") // nobody says any more that it is drained
	w.live(10*time.Second, a)
	w.expect("updated 2")
	w.live(20*time.Second, a)
	if got := w.take(); got != "left 2 lease_lost; left 3 vanished" && got != "left 3 vanished; left 2 lease_lost" {
		t.Fatal(got)
	}
}

func TestAReplicaThatStartsReadsWhoIsThere(t *testing.T) {
	w, a, dead, gone := newWorld(t), testWorker(1), testWorker(2), testWorker(3)
	w.live(10*time.Second, a, dead, gone)
	w.unregister(gone)
	left := w.now
	w.live(time.Hour, a)
	// Another replica starts with what the bucket has.
	fresh := newWorld(t)
	fresh.now, fresh.last, fresh.seq = w.now, w.last, w.seq
	fresh.load()
	fresh.expect("joined 2; left 3 unregistered; joined 1") // in the order in which they were stored
	if s := fresh.state(a); s != "suspect" {
		t.Fatalf("before its first heartbeat: %s", s)
	}
	if d, ok := fresh.l.left(gone.Key(), 0); !ok || d != (Departure{At: left, Seq: 7, Created: epoch}) {
		t.Fatalf("the one that left before: %v %v", d, ok)
	}
	fresh.live(time.Minute, a)
	fresh.expect("updated 1; left 2 lease_lost")
}

func TestDuplicateRegistrationsAreNoticed(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	b := a
	b.Incarnation = 999
	w.announce(a, 1)
	w.announce(b, 2) // a restart
	w.live(time.Minute, Worker{})
	if n := w.counter("kvatlas_registry_conflicts_total"); n != 0 {
		t.Fatalf("%d conflicts after a restart", n)
	}
	for range 3 {
		w.announce(a, 1)
		w.announce(b, 2)
	}
	if n := w.counter("kvatlas_registry_conflicts_total"); n != 1 {
		t.Fatalf("%d conflicts", n)
	}
	if e, _ := w.l.lookup(a.Key()); e.Conflict == "" {
		t.Fatal("not shown")
	}
	w.live(10*testLease, a) // as announcer 1, alone
	if e, _ := w.l.lookup(a.Key()); e.Conflict != "" || e.State != Live {
		t.Fatalf("shown although it is over: %+v", e)
	}
}

func TestCorruptValuesAreCountedShownAndIgnored(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	w.live(10*time.Second, a)
	w.take()
	good, err := json.Marshal(record{Version: 1, Worker: a, LeaseMS: testLease.Milliseconds()})
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(good), `"worker_id":"1"`, `"worker_id":"2"`, 1)
	for key, c := range map[string]struct{ value, reason string }{
		leaseKey(a.Key()):             {"{", "json"},
		leaseKey(testWorker(5).Key()): {other, "key"},
		leaseKey(testWorker(6).Key()): {strings.Replace(string(good), `"v":1`, `"v":2`, 1), "version"},
		leaseKey(testWorker(7).Key()): {strings.NewReplacer(`"worker_id":"1"`, `"worker_id":"7"`,
			`"lease_ms":15000`, `"lease_ms":9000000000000000000`).Replace(string(good)), "lease"},
		leaseKey(testWorker(8).Key()):    {strings.Replace(string(good), `"block_size":16`, `"block_size":0`, 1), "worker"},
		httpKey(testWorker(9).Key(), 3):  {string(good), "key"},
		httpKey(testWorker(10).Key(), 3): {"[1,2]", "json"},
		"drain.x":                        {"{}", "key"},
		"drain.7":                        {"\xff", "json"},
		"replica.me":                     {"", "json"},
		"nonsense":                       {"{}", "key"},
	} {
		before := w.counter(`kvatlas_registry_corrupt_total{reason="` + c.reason + `"}`)
		w.store(key, []byte(c.value))
		if n := w.counter(`kvatlas_registry_corrupt_total{reason="`+c.reason+`"}`) - before; n != 1 {
			t.Errorf("%s: %s counted %d times", key, c.reason, n)
		}
	}
	w.expect("")
	if n := len(w.l.contents().Corrupt); n != 11 {
		t.Errorf("%d shown: %+v", n, w.l.contents().Corrupt)
	}
	if s := w.state(a); s != "live" {
		t.Errorf("the worker whose value was damaged is %s", s)
	}
	w.announce(a, 1)
	for key := range w.last {
		if key != leaseKey(a.Key()) {
			w.store(key, nil)
		}
	}
	// Deleted keys are no longer shown, but for those whose very names are wrong.
	if x := w.l.contents().Corrupt; len(x) != 2 || x[0].Key != "drain.x" || x[1].Key != "nonsense" {
		t.Errorf("still shown: %+v", x)
	}
}

func TestRegistrationsAreBounded(t *testing.T) {
	w := newWorld(t)
	for id := range uint64(150) {
		w.announce(testWorker(id), id)
		w.store(drainKey(id), drainRecord{Version: 1, Since: epoch})
	}
	if n := len(w.l.members); n != 100 {
		t.Errorf("%d workers", n)
	}
	if n := w.counter(`kvatlas_registry_corrupt_total{reason="too_many"}`); n != 100 || len(w.l.drains) != 100 {
		t.Errorf("%d ignored, %d drained", n, len(w.l.drains))
	}
}

func TestDrainedWorkersStay(t *testing.T) {
	w, a := newWorld(t), testWorker(1)
	w.store(drainKey(1), drainRecord{Version: 1, Since: epoch, By: "op"})
	w.live(10*time.Second, a)
	w.expect("joined 1")
	if s := w.state(a); s != "drained" {
		t.Fatal(s)
	}
	w.store(drainKey(1), nil)
	w.expect("updated 1")
	if s := w.state(a); s != "live" {
		t.Fatal(s)
	}
}

// A replica that begins again to watch may do so at a server of a cluster that is behind: who was drained
// meanwhile stays so, whatever that one says of before.
func TestDrainedWorkersStayAtAServerThatIsBehind(t *testing.T) {
	w, all := newWorld(t), []Worker{testWorker(1), testWorker(2), testWorker(3)}
	w.live(10*time.Second, all...)
	mark := drainRecord{Version: 1, Since: epoch, By: "op"}
	w.store(drainKey(2), mark)
	w.store(drainKey(3), mark)
	w.store(drainKey(3), nil)
	w.step(testBeat)
	for _, wk := range all {
		w.announce(wk, wk.ID)
	}
	behind := maps.Clone(w.last)
	var since []change
	for _, c := range []struct {
		key   string
		value any
	}{{drainKey(1), mark}, {drainKey(2), nil}, {drainKey(2), mark}, {drainKey(3), mark}} {
		w.now = w.now.Add(time.Millisecond)
		w.store(c.key, c.value)
		since = append(since, w.last[c.key])
	}
	w.step(testBeat)
	w.take()
	caughtUp := w.last
	w.last = behind
	w.load()
	w.l.apply(w.clock(), behind[replicaKey("me")]) // of before
	for _, c := range since {
		w.l.apply(w.clock(), c)
	}
	w.last = caughtUp
	w.step(testBeat)
	w.expect("")
	for _, wk := range all {
		if s := w.state(wk); s != "drained" {
			t.Error(wk.ID, s)
		}
	}
}

func TestAnotherHashSchemeIsReported(t *testing.T) {
	w := newWorld(t)
	for id, scheme := range []string{"", Scheme(16), Scheme(32), "xxh3-64;seed=0;block=16;salt=added-to-seed"} {
		a := testWorker(uint64(id))
		a.HashScheme = scheme
		w.announce(a, 1)
		w.announce(a, 1)
		if e, _ := w.l.lookup(a.Key()); (e.Mismatch != "") != (id >= 2) {
			t.Errorf("scheme %q: %q", scheme, e.Mismatch)
		}
	}
	if n := w.counter("kvatlas_registry_scheme_mismatches_total"); n != 2 {
		t.Errorf("counted %d", n)
	}
}

func TestSourcesOfAWorkerAddUp(t *testing.T) {
	w := newWorld(t)
	rank := func(n uint32) Worker {
		h := testWorker(1)
		h.Ranks, h.Transport = []uint32{n}, ZMQ
		h.Endpoints.Events = map[uint32]string{n: fmt.Sprintf("tcp://127.0.0.1:%d", 5557+n)}
		return h
	}
	for _, n := range []uint32{1, 0} {
		w.store(httpKey(rank(n).Key(), n), record{Version: 1, Worker: rank(n)})
	}
	w.expect("joined 1; updated 1")
	e, _ := w.l.lookup(rank(0).Key())
	if len(e.Ranks) != 2 || e.Endpoints.Events[1] != "tcp://127.0.0.1:5558" || e.Listeners[0].Status != ListenerPending || e.State != Live {
		t.Fatalf("%+v", e)
	}
	w.live(time.Hour) // no lease, nothing to lose
	w.store(httpKey(rank(0).Key(), 0), nil)
	w.expect("updated 1 without [0]")
	static := rank(0)
	w.l.setStatic(w.clock(), []Worker{static})
	w.store(httpKey(rank(0).Key(), 1), nil)
	w.expect("updated 1; updated 1 without [1]")
	w.live(time.Minute, testWorker(1))
	w.live(time.Minute) // its lease runs out, the static entry stays
	if got := w.take(); strings.Contains(got, "left") {
		t.Fatal(got)
	}
	if s := w.state(static); s != "live" {
		t.Fatal(s)
	}
}

func TestGarbageIsCollected(t *testing.T) {
	w, lost, gone, a := newWorld(t), testWorker(1), testWorker(2), testWorker(3)
	w.live(10*time.Second, lost, gone, a)
	w.unregister(gone)
	w.store(replicaKey("old"), beatRecord{Version: 1, Nonce: 1})
	w.live(50*time.Minute, a)
	if g := w.l.garbage(100); len(g) != 0 {
		t.Fatalf("too soon: %+v", g)
	}
	w.live(time.Hour, a)
	for _, g := range w.l.garbage(100) {
		if w.last[g.key].revision != g.revision {
			t.Errorf("%+v has changed", g)
		}
		delete(w.last, g.key)
	}
	w.live(2*time.Hour, a)
	if len(w.last) != 2 || w.last[leaseKey(a.Key())].value == nil || w.last[replicaKey("me")].value == nil {
		t.Fatalf("left in the bucket: %v", sortedKeys(w.last))
	}
	if len(w.l.members) != 1 || len(w.l.markers) != 0 || len(w.l.replicas) != 1 {
		t.Fatalf("left in memory: %d workers, %d markers, %d replicas", len(w.l.members), len(w.l.markers), len(w.l.replicas))
	}
}

// TestLeaseRules runs random histories: outages of the broker, pauses of the
// replica, jumps of its clock, new sessions, wiped buckets, workers that die,
// return and unregister.
func TestLeaseRules(t *testing.T) {
	const workers = 4
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 17))
		w := newWorld(t)
		alive := [workers]bool{}
		wrote := [workers]time.Time{} // last heartbeat that was stored
		present := map[uint64]bool{}  // by the events
		steady := w.now               // since when nothing disturbed the replica
		var until [3]time.Time        // outage, pause
		quiet := false                // nothing is disturbed any more
		check := func(step int) {
			for _, e := range w.events {
				id := e.Entry.Key.Worker
				switch e.Kind {
				case Joined, Returned:
					if present[id] {
						t.Fatalf("seed %d, step %d: %s while it is present", seed, step, e.Kind)
					}
					if e.Kind == Returned != e.NeedsDump {
						t.Fatalf("seed %d: %+v", seed, e)
					}
					present[id] = true
				case Left:
					if !present[id] && e.Entry.LeftBy != Unregistered { // a lost one may unregister
						t.Fatalf("seed %d, step %d: left twice", seed, step)
					}
					present[id] = false
					if e.Entry.LeftBy != LeaseLost {
						break
					}
					if since := w.now.Sub(wrote[id]); since < testLease {
						t.Fatalf("seed %d, step %d: worker %d lost %v after a heartbeat", seed, step, id, since)
					}
					if since := w.now.Sub(steady); since < testLease-testBeat {
						t.Fatalf("seed %d, step %d: worker %d lost %v after a disturbance", seed, step, id, since)
					}
				case Updated, Resync:
				}
			}
			w.events = nil
		}
		for step := range 1200 {
			if step == 1000 {
				quiet = true
			}
			disturbed := false
			if !quiet {
				switch r := rng.IntN(400); {
				case r == 0:
					until[0] = w.now.Add(time.Duration(6+rng.IntN(60)) * time.Second)
				case r == 1:
					until[1] = w.now.Add(time.Duration(6+rng.IntN(60)) * time.Second)
				case r == 2:
					jump := time.Duration(6+rng.IntN(3600)) * time.Second
					if rng.IntN(2) == 0 {
						jump = -jump
					}
					w.skew += jump
					disturbed = true
				case r == 3 && !w.brokerDown && !w.paused:
					w.load()
				case r == 4 && !w.brokerDown && !w.paused:
					clear(w.last)
					w.load()
				case r < 4+2*workers && r > 4:
					i := uint64(r-5) % workers
					if alive[i] = !alive[i]; !alive[i] && rng.IntN(2) == 0 && !w.brokerDown {
						w.unregister(testWorker(i))
					}
				}
			}
			w.brokerDown, w.paused = w.now.Before(until[0]), w.now.Before(until[1])
			if disturbed || w.brokerDown || w.paused {
				steady = w.now
			}
			w.step(time.Second)
			check(step)
			for i := range workers {
				if alive[i] && (step+i)%5 == 0 && w.announce(testWorker(uint64(i)), uint64(i)) {
					wrote[i] = w.now
				}
			}
			check(step)
		}
		for i := range uint64(workers) { // long undisturbed: the truth
			if present[i] != alive[i] {
				t.Fatalf("seed %d: worker %d is alive: %v, the registry says %v (%s)", seed, i, alive[i], present[i], w.state(testWorker(i)))
			}
		}
	}
}

// FuzzLedger applies arbitrary values under every kind of key.
func FuzzLedger(f *testing.F) {
	good, err := json.Marshal(record{Version: 1, Worker: testWorker(1), LeaseMS: 15000, Last: []position{{0, 7}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(leaseKey(testWorker(1).Key()), good)
	f.Add("drain.1", []byte(`{"v":1,"since":"2026-11-21T12:00:00Z"}`))
	f.Add("replica.me", []byte(`{"v":1,"nonce":"7"}`))
	f.Add("http.x.1.0", good)
	gone := &record{Worker: testWorker(1), Former: []formerRanks{{[]uint32{0, 7}, moment{At: epoch, Stream: epoch, Seq: 3}}}}
	tombstone, err := json.Marshal(gone.tombstone(moment{At: epoch, Stream: epoch, Seq: 9}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(leaseKey(testWorker(1).Key()), tombstone)
	f.Add(httpKey(testWorker(1).Key(), 1), []byte(strings.Replace(string(tombstone), "[0,1]", "[1]", 1)))
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		w := newWorld(t)
		w.announce(testWorker(1), 1)
		w.store(key, value)
		w.store(leaseKey(testWorker(1).Key()), value)
		w.live(time.Minute)
		w.load()
		for _, e := range w.l.contents().Workers {
			if e.Key != (Key{event.Space{Model: e.Model, BlockSize: e.BlockSize, Group: e.Group}, e.ID}) {
				t.Fatalf("%+v", e)
			}
			for _, rank := range e.Ranks {
				if d, left := w.l.left(e.Key, rank); left == e.Present() {
					t.Fatalf("rank %d left %v %+v: %+v", rank, left, d, e)
				}
			}
		}
		for range 3 { // lost, forgotten
			w.now = w.now.Add(2 * time.Hour)
			w.live(20 * time.Second)
		}
		for len(w.l.garbage(1)) > 0 {
		}
		if len(w.l.members) > 1 || len(w.l.byKey) > 1 {
			t.Fatalf("%d members and %d keys are not forgotten", len(w.l.members), len(w.l.byKey))
		}
	})
}

// What is shown of a fleet is read under the lock that heartbeats need: metrics copy
// no worker, and a list is made once.
func TestCountingAFleetCopiesNoWorkers(t *testing.T) {
	l := newLedger(ledgerConfig{maxWorkers: 1 << 20}, newMeters(metrics.NewSet()), func(Event) {})
	const workers = 5000
	static := make([]Worker, workers)
	for i := range static {
		static[i] = Worker{ID: uint64(i), Model: "m", BlockSize: 16, Transport: JetStream}
	}
	l.setStatic(time.Unix(1, 0), static)
	l.drains[7] = &drain{}
	if n := l.count(); n["live"] != workers-1 || n["drained"] != 1 || len(n) != 2 {
		t.Errorf("%v", n)
	}
	if n := testing.AllocsPerRun(5, func() { l.count() }); n > 10 {
		t.Errorf("counting %d workers allocates %.0f times", workers, n)
	}
	list := l.contents().Workers
	if cap(list) != workers || !slices.IsSortedFunc(list, func(a, b Entry) int { return a.Key.compare(b.Key) }) {
		t.Errorf("%d workers in a list of room for %d, or not sorted", len(list), cap(list))
	}
}

// The members with names are counted, whatever becomes of them: without any nobody is asked for a name.
func TestNamedMembersAreCounted(t *testing.T) {
	w := newWorld(t)
	one, two, bare := testWorker(1), testWorker(2), testWorker(1)
	one.Name, two.Name, bare.Name = "one", "two", ""
	for i, c := range []struct {
		static []Worker
		want   int64
	}{{nil, 0}, {[]Worker{one}, 1}, {[]Worker{one, two}, 2}, {[]Worker{bare, two}, 1}, {[]Worker{one, two}, 2}} {
		if w.l.setStatic(w.clock(), c.static); w.l.named.Load() != c.want {
			t.Errorf("list %d: %d have names, want %d", i, w.l.named.Load(), c.want)
		}
	}
	w.l.setStatic(w.clock(), nil)
	for _, m := range w.l.members {
		w.l.forget(m)
	}
	if n := w.l.named.Load(); n != 0 {
		t.Errorf("all are forgotten, and %d have names", n)
	}
}
