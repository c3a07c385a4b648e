package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The tests of this file run against a real server inside the process.

const (
	quickBeat  = 40 * time.Millisecond
	quickLease = 300 * time.Millisecond
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func startBroker(t testing.TB, dir string) *broker.Broker {
	t.Helper()
	b, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: dir, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// restartable is a server that can be stopped, with a connection that stays.
type restartable struct {
	t      testing.TB
	dir    string
	server *broker.Broker
	conn   *broker.Broker
}

func newRestartable(t testing.TB) *restartable {
	t.Helper()
	r := &restartable{t: t, dir: t.TempDir()}
	r.server = startBroker(t, r.dir)
	r.conn = startBroker(t, r.dir)
	if r.conn.Owner() {
		t.Fatal("two servers")
	}
	return r
}

func (r *restartable) stop() {
	r.t.Helper()
	if err := r.server.Close(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *restartable) start() { r.t.Helper(); r.server = startBroker(r.t, r.dir) }

func openRegistry(t testing.TB, b *broker.Broker, name string, change func(*Config)) *Registry {
	t.Helper()
	cfg := Config{Conn: b.Conn(), Replica: name, Beat: quickBeat, Grace: quickLease, Metrics: metrics.NewSet(), Log: quiet()}
	if change != nil {
		change(&cfg)
	}
	r, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func announce(t testing.TB, b *broker.Broker, w Worker) *Announcement {
	t.Helper()
	a, err := Register(deadline(t), w, AnnounceConfig{Conn: b.Conn(), Lease: quickLease, Log: quiet(),
		Positions: func() []event.Position { return []event.Position{{DPRank: 1, ID: 42}} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = a.Close(ctx) // a test may have stopped the server
	})
	return a
}

func (r *Registry) status(w Worker) string {
	e, ok := r.Lookup(w.Key())
	if !ok {
		return "unknown"
	}
	return e.Status()
}

func (r *Registry) is(t testing.TB, w Worker, status string) {
	t.Helper()
	waittest.For(t, fmt.Sprintf("worker %d is %s", w.ID, status), func() bool { return r.status(w) == status })
}

// kinds returns what the events of a subscription say, and ends with want.
func kinds(t testing.TB, s *Subscription, want string) {
	t.Helper()
	var got []string
	late := time.After(time.Minute)
	for {
		for _, e := range s.Next() {
			if e.Kind != Updated {
				got = append(got, fmt.Sprint(e.Kind, " ", e.Entry.Key.Worker))
			}
		}
		if strings.Join(got, "; ") == want {
			return
		}
		select {
		case <-s.Wait():
		case <-late:
			t.Fatalf("events %q, want %q", got, want)
		}
	}
}

func TestWorkersAnnounceThemselves(t *testing.T) {
	b := startBroker(t, t.TempDir())
	first := announce(t, b, testWorker(1))
	one := openRegistry(t, b, "one", nil)
	sub := one.Subscribe(100)
	if e, ok := one.Lookup(testWorker(1).Key()); !ok || !e.Announced {
		t.Fatal("Open returned before the registry was read")
	}
	second := announce(t, b, testWorker(2))
	two := openRegistry(t, b, "two", nil)
	for _, r := range []*Registry{one, two} {
		r.is(t, testWorker(1), "live")
		r.is(t, testWorker(2), "live")
		e, _ := r.Lookup(testWorker(2).Key())
		want := testWorker(2)
		if err := want.normalise(); err != nil || !e.Worker.equal(&want) || len(e.Last) != 1 || e.Last[0].ID != 42 || e.Lease != quickLease {
			t.Fatalf("%+v", e)
		}
	}
	w := first.Worker()
	w.TotalBlocks = 77
	if err := first.Update(deadline(t), w); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the update is seen", func() bool { e, _ := two.Lookup(w.Key()); return e.TotalBlocks == 77 })
	if err := second.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	one.is(t, testWorker(2), "gone")
	two.is(t, testWorker(2), "gone")
	kinds(t, sub, "joined 2; left 2")
	if _, ok := openRegistry(t, b, "three", nil).Left(testWorker(2).Key(), 1); !ok {
		t.Error("a replica that starts does not know who left")
	}
	if err := second.Update(deadline(t), testWorker(2)); !errors.Is(err, ErrWithdrawn) {
		t.Error(err)
	}
	announce(t, b, testWorker(2))
	kinds(t, sub, "returned 2")
	if n := len(one.Snapshot(false)); n != 2 {
		t.Errorf("%d workers", n)
	}
}

// die ends the heartbeats without unregistering.
func (a *Announcement) die() { a.cancel(); <-a.done }

func TestARestartOfTheServerLosesNobody(t *testing.T) {
	s := newRestartable(t)
	r := openRegistry(t, s.conn, "one", nil)
	sub := r.Subscribe(100)
	announce(t, s.conn, testWorker(1))
	dies := announce(t, s.conn, testWorker(2))
	kinds(t, sub, "joined 1; joined 2")
	for range 2 {
		s.stop()
		waittest.For(t, "the replica knows that it hears nothing", func() bool { return !r.Connected() })
		silent := time.NewTimer(3 * quickLease) // longer than every lease
		<-silent.C
		if n := len(r.Snapshot(false)); n != 2 {
			t.Fatalf("%d workers during the outage", n)
		}
		s.start()
		waittest.For(t, "the replica hears again", r.Connected)
		beats := r.m.beats.Get()
		waittest.For(t, "full leases with a connection", func() bool { return r.m.beats.Get() > beats+uint64(3*quickLease/quickBeat) })
		r.is(t, testWorker(1), "live")
		r.is(t, testWorker(2), "live")
	}
	kinds(t, sub, "")
	dies.die()
	kinds(t, sub, "left 2")
	r.is(t, testWorker(1), "live")
	if e, _ := r.Lookup(testWorker(2).Key()); e.LeftBy != LeaseLost || !e.Left.Silent {
		t.Errorf("%+v", e)
	}
	announce(t, s.conn, testWorker(2))
	kinds(t, sub, "returned 2")
}

// An announcement is written as soon as the server is back, and not with the next heartbeat.
func TestAnAnnouncementIsWrittenOnReconnect(t *testing.T) {
	r := newRestartable(t)
	a, err := Register(deadline(t), testWorker(1), AnnounceConfig{Conn: r.conn.Conn(), Lease: maxLease, Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Stop)
	revision := func() uint64 {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.revision
	}
	before := revision()
	r.stop()
	r.start()
	waittest.For(t, "another heartbeat", func() bool { return revision() > before })
}

// In a cluster without a quorum it is said what there is to look at, and not that the key changes.
func TestABucketThatTakesNothing(t *testing.T) {
	b := startBroker(t, t.TempDir())
	a := announce(t, b, testWorker(1))
	a.Stop()
	restore := takesNothing(t, b.Conn())
	write := func() error {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.writeLocked(deadline(t), false)
	}
	if err := write(); err == nil || !strings.Contains(err.Error(), obs.SeeCluster) || !errors.Is(err, jetstream.ErrNoStreamResponse) {
		t.Error(err)
	}
	sub, err := b.Conn().Subscribe("$KV."+BucketName("default")+".>", func(m *nats.Msg) { // as where a write is not finished
		_ = m.Respond(fmt.Appendf(nil, `{"error":{"code":400,"err_code":%d}}`, jetstream.JSErrCodeStreamWrongLastSequenceConstant))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := write(); err == nil || !strings.Contains(err.Error(), obs.SeeCluster) || !strings.Contains(err.Error(), "stays as it was") {
		t.Error(err)
	}
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	restore()
	if err := write(); err != nil {
		t.Error(err)
	}
}

// takesNothing has nobody take what is written into the bucket, until restore is called.
func takesNothing(t *testing.T, nc *nats.Conn) (restore func()) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(deadline(t), "KV_"+BucketName("default"))
	if err != nil {
		t.Fatal(err)
	}
	update := func(cfg jetstream.StreamConfig) {
		t.Helper()
		if _, err := js.UpdateStream(deadline(t), cfg); err != nil {
			t.Fatal(err)
		}
	}
	was := s.CachedInfo().Config
	is := was
	is.Subjects = []string{"elsewhere"}
	update(is)
	return func() { update(was) }
}

// What lasts is not said again and again: a cluster may be without a quorum for hours.
func TestWhyWatchingBeginsAgainIsSaidNowAndThen(t *testing.T) {
	b := startBroker(t, t.TempDir())
	var log waittest.Log
	r := openRegistry(t, b, "one", func(cfg *Config) { cfg.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	b.Conn().Close()
	waittest.For(t, "the watch has begun again and again", func() bool { return r.m.sessions.Get() > 5 })
	if lines := strings.Count(log.String(), "connection closed"); lines == 0 || lines > 2 { // of what was under way, and since
		t.Errorf("it is said %d times:\n%s", lines, log.String())
	}
}

// A server that comes back without its data: the living write themselves in
// again, the dead are lost by their lease.
func TestAnEmptyServerLosesNobodyWhoLives(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	sub := r.Subscribe(100)
	announce(t, b, testWorker(1))
	announce(t, b, testWorker(2)).die()
	kinds(t, sub, "joined 1; joined 2")
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(deadline(t), BucketName("default")); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the watch begins again", func() bool { return r.m.sessions.Get() > 0 })
	kinds(t, sub, "left 2")
	r.is(t, testWorker(1), "live")
	c, err := r.bucket().Read(deadline(t))
	if err != nil || len(c.Workers) != 1 || c.Workers[0].Status() != "live" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestTheNewerOfTwoAnnouncementsWins(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	old := announce(t, b, testWorker(1))
	w := testWorker(1)
	w.Incarnation = 5
	young := announce(t, b, w)
	waittest.For(t, "the old one notices", func() bool { return errors.Is(old.Err(), ErrSuperseded) })
	if e, _ := r.Lookup(w.Key()); e.Incarnation != 5 || e.State != Live {
		t.Fatalf("%+v", e)
	}
	if err := old.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	if err := young.Err(); err != nil {
		t.Fatal(err)
	}
	r.is(t, w, "live") // the old one took nothing with it

	third := announce(t, b, testWorker(1))
	waittest.For(t, "the second notices", func() bool { return errors.Is(young.Err(), ErrSuperseded) })
	third.die()
	waittest.For(t, "the second takes over from the silent third", func() bool { return young.Err() == nil })
	waittest.For(t, "the replica sees it", func() bool { e, _ := r.Lookup(w.Key()); return e.Incarnation == 5 && e.State == Live })
}

func TestSlowSubscribersResync(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	sub := r.Subscribe(3)
	for id := range uint64(10) {
		announce(t, b, testWorker(id))
	}
	r.is(t, testWorker(9), "live")
	events := sub.Next()
	if len(events) == 0 || len(events) > 4 || events[0].Kind != Resync {
		t.Fatalf("%+v", events)
	}
	if r.m.overflows.Get() == 0 {
		t.Error("not counted")
	}
	sub.Close()
	announce(t, b, testWorker(10))
	r.is(t, testWorker(10), "live")
	if e := sub.Next(); len(e) != 0 {
		t.Errorf("after Close: %+v", e)
	}
}

func TestDrainResumeRemove(t *testing.T) {
	b := startBroker(t, t.TempDir())
	one, two := openRegistry(t, b, "one", nil), openRegistry(t, b, "two", nil)
	a := announce(t, b, testWorker(1))
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Drain(deadline(t), 1, "me"); err != nil {
		t.Fatal(err)
	}
	if err := bucket.Drain(deadline(t), 1, "me"); !errors.Is(err, ErrAlready) {
		t.Error(err)
	}
	one.is(t, testWorker(1), "drained")
	two.is(t, testWorker(1), "drained")
	if err := bucket.Drain(deadline(t), 99, "me"); err != nil { // it need not be registered
		t.Error(err)
	}
	waittest.For(t, "99 is drained", func() bool { return two.IsDrained(99) })
	if err := bucket.Resume(deadline(t), 1); err != nil {
		t.Fatal(err)
	}
	two.is(t, testWorker(1), "live")
	if err := bucket.Resume(deadline(t), 1); !errors.Is(err, ErrAlready) {
		t.Error(err)
	}
	if err := bucket.Remove(deadline(t), 1, false); !errors.Is(err, ErrAlive) {
		t.Error(err)
	}
	if err := bucket.Remove(deadline(t), 98, false); !errors.Is(err, ErrUnknownWorker) {
		t.Error(err)
	}
	if err := bucket.Remove(deadline(t), 99, false); err != nil {
		t.Error(err)
	}
	waittest.For(t, "99 is forgotten", func() bool { return !two.IsDrained(99) })
	a.die()
	one.is(t, testWorker(1), "lost")
	if err := bucket.Remove(deadline(t), 1, false); err != nil {
		t.Error(err)
	}
	two.is(t, testWorker(1), "gone")
}

func TestUnsafeBucketsAreRefused(t *testing.T) {
	b := startBroker(t, t.TempDir())
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	for ns, cfg := range map[string]jetstream.KeyValueConfig{
		"ttl": {TTL: time.Hour}, "memory": {Storage: jetstream.MemoryStorage},
	} {
		cfg.Bucket = BucketName(ns)
		if _, err := js.CreateKeyValue(deadline(t), cfg); err != nil {
			t.Fatal(err)
		}
		if _, err := OpenBucket(deadline(t), b.Conn(), ns, BucketConfig{}); !errors.Is(err, ErrUnsafe) {
			t.Errorf("%s: %v", ns, err)
		}
	}
}

func TestGarbageLeavesTheBucket(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", func(c *Config) { c.Forget = 2 * quickLease })
	announce(t, b, testWorker(1)).die()
	if err := announce(t, b, testWorker(2)).Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	r.is(t, testWorker(1), "lost")
	waittest.For(t, "only the replica's own key is left", func() bool {
		st, err := r.bucket().kv.Status(deadline(t))
		return err == nil && st.Values() == 1
	})
	waittest.For(t, "memory is free", func() bool { return len(r.Snapshot(true)) == 0 })
}

func post(t *testing.T, serve func(context.Context, []byte) (int, []byte), body string, status int, want string) {
	t.Helper()
	got, answer := serve(deadline(t), []byte(body))
	if got != status || !strings.Contains(string(answer), want) || !json.Valid(answer) {
		t.Errorf("%s\ngot %d %s, want %d and %s", body, got, answer, status, want)
	}
}

func TestRegistrationOverHTTP(t *testing.T) {
	s := newRestartable(t)
	one, two := openRegistry(t, s.conn, "one", nil), openRegistry(t, s.conn, "two", nil)
	const dynamo = `{"instance_id":7,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`
	const rfc = `{"endpoint":"tcp://127.0.0.1:5560","type":"vLLM","modelname":"m","instance_id":"vllm-0","block_size":16,"dp_rank":0,"additionalsalt":"s","lora_name":"l"}`
	post(t, one.ServeRegister, dynamo, http.StatusCreated, `{"status":"ok"}`)
	post(t, one.ServeRegister, dynamo, http.StatusConflict, `"error"`)
	post(t, two.ServeRegister, strings.Replace(dynamo, `}`, `,"dp_rank":1,"tenant_id":"x","replay_endpoint":"tcp://127.0.0.1:5600"}`, 1), http.StatusCreated, `ok`)
	post(t, one.ServeRegister, rfc, http.StatusOK, `{"instance_id":"vllm-0","status":"registered successfully"}`)
	post(t, one.ServeRegister, rfc, http.StatusOK, `registered successfully`)
	post(t, one.ServeRegister, strings.Replace(rfc, "5560", "5561", 1), http.StatusConflict, `unregister it first`)
	seven := Worker{ID: 7, Model: "m", BlockSize: 16}
	named := Worker{ID: event.WorkerID("vllm-0"), Model: "m", BlockSize: 16}
	for _, r := range []*Registry{one, two} {
		r.is(t, seven, "live")
		r.is(t, named, "live")
		waittest.For(t, "both ranks", func() bool { e, _ := r.Lookup(seven.Key()); return len(e.Ranks) == 2 })
	}
	if err := one.SetListener(seven.Key(), 0, ListenerActive, nil); err != nil {
		t.Fatal(err)
	}
	if err := one.SetListener(seven.Key(), 1, ListenerFailed, errors.New("refused")); err != nil {
		t.Fatal(err)
	}
	want := `[{"instance_id":7,"source":"zmq","status":"failed","model_name":"m","routing_group":"default","block_size":16,` +
		`"endpoints":{"0":"tcp://127.0.0.1:5557","1":"tcp://127.0.0.1:5557"},` +
		`"listeners":{"0":{"endpoint":"tcp://127.0.0.1:5557","status":"active"},"1":{"endpoint":"tcp://127.0.0.1:5557","status":"failed","last_error":"refused"}},"drained":false},` +
		`{"instance_id":"vllm-0","source":"zmq","status":"pending","model_name":"m","routing_group":"default","block_size":16,` +
		`"endpoints":{"0":"tcp://127.0.0.1:5560"},"listeners":{"0":{"endpoint":"tcp://127.0.0.1:5560","status":"pending"}},"drained":false}]` + "\n"
	if got := string(one.ServeWorkers("m", "default")); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	if got := string(one.ServeWorkers("", "other")); got != "[]\n" {
		t.Error(got)
	}

	// It outlives the server and every replica.
	s.stop()
	waittest.For(t, "the outage is noticed", func() bool { return !one.Connected() })
	s.start()
	waittest.For(t, "connected again", one.Connected)
	three := openRegistry(t, s.conn, "three", nil)
	three.is(t, named, "live")
	post(t, three.ServeUnregister, `{"instance_id":7,"model_name":"m","dp_rank":1}`, http.StatusOK, `{"status":"ok"}`)
	waittest.For(t, "rank 1 is gone", func() bool { e, _ := two.Lookup(seven.Key()); return len(e.Ranks) == 1 })
	post(t, three.ServeUnregister, `{"instance_id":"7","model_name":"m"}`, http.StatusOK, `ok`)
	two.is(t, seven, "gone")
	post(t, three.ServeUnregister, `{"instance_id":7,"model_name":"m"}`, http.StatusNotFound, `"error"`)
	post(t, three.ServeUnregister, `{"type":"vLLM","modelname":"m","tenant_id":"default","instance_id":"vllm-0","block_size":16,"dp_rank":0}`,
		http.StatusOK, `{"removed_instances":["vllm-0|default|0"],"status":"unregistered successfully"}`)
	two.is(t, named, "gone")
	announce(t, s.conn, testWorker(5))
	three.is(t, testWorker(5), "live")
	post(t, three.ServeUnregister, `{"instance_id":5,"model_name":"org/model"}`, http.StatusConflict, `announces itself`)
}

func TestBadRegistrationsAreRefused(t *testing.T) {
	r := openRegistry(t, startBroker(t, t.TempDir()), "one", nil)
	good := map[string]any{"instance_id": 7, "endpoint": "tcp://127.0.0.1:5557", "model_name": "m", "block_size": 16}
	for _, c := range []struct {
		field  string
		value  any
		status int
	}{
		{"instance_id", nil, 400}, {"instance_id", -1, 400}, {"instance_id", 1.5, 400}, {"instance_id", "", 400},
		{"instance_id", []int{1}, 400}, {"endpoint", nil, 400}, {"endpoint", 7, 400}, {"endpoint", "", 400},
		{"endpoint", "tcp://10.0.0.1:5557", 403}, {"endpoint", "http://169.254.169.254/latest", 403},
		{"endpoint", "file:///etc/passwd", 403}, {"replay_endpoint", "tcp://example.com:1", 403},
		{"model_name", nil, 400}, {"model_name", "", 400}, {"block_size", nil, 400}, {"block_size", 0, 400},
		{"block_size", 5000, 400}, {"block_size", -16, 400}, {"dp_rank", -1, 400}, {"dp_rank", "x", 400},
		{"routing_group", 5, 400}, {"lora_name", strings.Repeat("x", 2000), 400},
	} {
		body := map[string]any{}
		for k, v := range good {
			body[k] = v
		}
		if body[c.field] = c.value; c.value == nil {
			delete(body, c.field)
		}
		data, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		post(t, r.ServeRegister, string(data), c.status, `"error"`)
	}
	for _, body := range []string{"", "{", "null", "[]", `{"modelname":"m","instance_id":"a","endpoint":"tcp://127.0.0.1:1","block_size":16,"dp_rank":0}`} {
		post(t, r.ServeRegister, body, 400, `"error"`)
	}
	if n := len(r.Snapshot(true)); n != 0 {
		t.Errorf("%d workers registered", n)
	}
}

// Departures of all kinds are in the bucket with where the space's stream was,
// and a registration that follows takes their place.
func TestDeparturesOutliveWhoSawThem(t *testing.T) {
	b := startBroker(t, t.TempDir())
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	wk := testWorker(1)
	wk.Ranks = []uint32{0, 1, 2}
	info, err := stream.Ensure(deadline(t), js, "default", wk.Space(), stream.Config{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	seq := uint64(0)
	publish := func() {
		t.Helper()
		ack, err := js.Publish(deadline(t), stream.Subject("default", wk.Space(), 9), []byte("x"))
		if err != nil {
			t.Fatal(err)
		}
		seq = ack.Sequence
	}
	replicas := 0
	left := func(rank uint32, want uint64) { // by who starts now; 0: it did not
		t.Helper()
		replicas++
		r := openRegistry(t, b, fmt.Sprint("r", replicas), nil)
		defer r.Close()
		d, ok := r.Left(wk.Key(), rank)
		if ok != (want > 0) || d.Seq != want || ok && !d.Created.Equal(info.Created) || d.Silent {
			t.Errorf("rank %d left %v %+v, want at %d", rank, ok, d, want)
		}
	}
	publish()
	a := announce(t, b, wk)
	left(0, 0)
	less := wk
	less.Ranks = []uint32{0, 1}
	if err := a.Update(deadline(t), less); err != nil {
		t.Fatal(err)
	}
	left(2, 1)
	publish()
	less.Ranks = []uint32{0}
	a.die()                  // or it would take over again once the next one is gone
	a = announce(t, b, less) // by another process
	left(1, 2)
	left(2, 1)
	publish()
	if err := a.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for rank := range uint32(4) {
		left(rank, 3)
	}
	publish()
	less.Ranks = []uint32{1}
	announce(t, b, less).die()
	left(0, 3)
	left(1, 0)
	left(2, 1)
	bucket, err := OpenBucket(deadline(t), b.Conn(), "default", BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Remove(deadline(t), 1, true); err != nil {
		t.Fatal(err)
	}
	left(1, 4)
	if err := bucket.Remove(deadline(t), 1, true); !errors.Is(err, ErrUnknownWorker) {
		t.Errorf("one that is gone is removed again: %v", err)
	}

	r := openRegistry(t, b, "routes", nil)
	const body = `{"instance_id":1,"endpoint":"tcp://127.0.0.1:5557","model_name":"org/model","routing_group":"g","block_size":16}`
	for range 2 {
		publish()
		post(t, r.ServeRegister, body, http.StatusCreated, "ok")
		left(0, 0)
		post(t, r.ServeUnregister, body, http.StatusOK, "ok")
		left(0, seq)
		post(t, r.ServeUnregister, body, http.StatusNotFound, "error")
	}
}

// The server loses its store: what was registered over HTTP, of which only replicas know, is
// stored again and never left; what was unregistered before stays away.
func TestHTTPRegistrationsOutliveTheStore(t *testing.T) {
	b := startBroker(t, t.TempDir())
	r := openRegistry(t, b, "one", nil)
	other := openRegistry(t, b, "two", nil)
	sub := r.Subscribe(100)
	body := func(id int) []byte {
		return fmt.Appendf(nil, `{"instance_id":%d,"endpoint":"tcp://127.0.0.1:%d","model_name":"m","block_size":16}`, id, 5000+id)
	}
	for id := range 3 {
		if status, answer := r.ServeRegister(deadline(t), body(id+1)); status != http.StatusCreated {
			t.Fatalf("%d %s", status, answer)
		}
	}
	waittest.For(t, "the other replica knows it", func() bool { _, ok := other.Lookup(Key{event.Space{Model: "m", BlockSize: 16}, 3}); return ok })
	if status, answer := other.ServeUnregister(deadline(t), []byte(`{"instance_id":3,"model_name":"m"}`)); status != http.StatusOK {
		t.Fatalf("%d %s", status, answer)
	}
	kinds(t, sub, "joined 1; joined 2; joined 3; left 3")
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteKeyValue(deadline(t), BucketName("default")); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "the registrations are in the bucket again", func() bool {
		c, err := r.bucket().Read(deadline(t))
		return err == nil && len(c.Workers) == 2
	})
	for _, x := range []*Registry{r, other} {
		waittest.For(t, "both replicas have read that", func() bool {
			x.mu.Lock()
			defer x.mu.Unlock()
			return x.m.sessions.Get() > 0 && len(x.mu.ledger.lost(10)) == 0
		})
	}
	begun := time.Now()
	waittest.For(t, "the time in which they would have left", func() bool { return time.Since(begun) > 3*r.cfg.Grace })
	for _, e := range r.Snapshot(true) {
		if want := e.ID != 3; e.Present() != want {
			t.Errorf("worker %d is there: %v", e.ID, e.Present())
		}
	}
	late := openRegistry(t, b, "three", nil)
	if n := len(late.Snapshot(false)); n != 2 {
		t.Errorf("a replica that starts later knows %d workers", n)
	}
}

// Each replica hears the others' beats, and tells how long ago.
func TestBeats(t *testing.T) {
	b := startBroker(t, t.TempDir())
	one, two := openRegistry(t, b, "one", nil), openRegistry(t, b, "two", nil)
	waittest.For(t, "both hear of both", func() bool {
		for _, r := range []*Registry{one, two} {
			list := r.Beats()
			if len(list) != 2 || list[0].Replica != "one" || list[1].Replica != "two" || list[0].Ago < 0 || list[0].Ago > time.Minute {
				return false
			}
		}
		return true
	})
	two.Close()
	waittest.For(t, "who has ended is gone", func() bool { return len(one.Beats()) == 1 })
}
