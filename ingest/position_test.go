package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/shard"
)

// rolledBack is a fleet on a server that is stopped, backed up and restored,
// while publishers and readers live.
type rolledBack struct {
	*natsBench
	dir   string
	owner *broker.Broker
	pubs  []*publish.Publisher
	eng   []*engine
}

func newRolledBack(t *testing.T) *rolledBack {
	t.Helper()
	dir := t.TempDir()
	owner := startBroker(t, dir)
	b := &rolledBack{natsBench: newNATSBench(t, startBroker(t, dir).Conn()), dir: dir, owner: owner}
	for id := range uint64(3) {
		p, e := b.worker(id, nil)
		b.pubs, b.eng = append(b.pubs, p), append(b.eng, e)
	}
	return b
}

// publish has every worker do so many things.
func (b *rolledBack) publish(steps int) {
	b.t.Helper()
	for i, p := range b.pubs {
		b.run(p, b.eng[i], steps)
		if err := p.Flush(deadline(b.t)); err != nil {
			b.t.Fatal(err)
		}
	}
}

// stopped calls f while the server is down.
func (b *rolledBack) stopped(f func()) {
	b.t.Helper()
	if err := b.owner.Close(); err != nil {
		b.t.Fatal(err)
	}
	f()
	b.owner = startBroker(b.t, b.dir)
}

// info waits until the server says how the stream is.
func (b *rolledBack) info() (info stream.Info) {
	b.t.Helper()
	waittest.Until(b.t, func() (err error) {
		// A server that is about to start may take a request and never answer it.
		ctx, cancel := context.WithTimeout(deadline(b.t), 2*time.Second)
		defer cancel()
		info, err = stream.Get(ctx, b.js, stream.Name("default", testSpace))
		return err
	})
	return info
}

// equal waits until the replica has all of the stream and of what the oracle has.
func (b *rolledBack) equal(r *replica) {
	b.t.Helper()
	b.drained(r)
	waittest.For(b.t, "the index equals the oracle", func() bool { return digest(b.t, r.set) == b.truth.digest() })
	waittest.Until(b.t, r.Ready)
}

// beyond is a snapshot whose position the stream does not have.
type beyond struct{ start Start }

func (s beyond) Start() Start                                               { return s.start }
func (s beyond) Rank(context.Context, shard.RankID) ([]shard.Dumped, error) { return nil, nil }
func (s beyond) Close()                                                     {}

// A server is restored from a backup, below where a replica has read, and the
// only snapshots are newer, too. The replica asks every publisher once, reads
// what the stream has, and goes on.
func TestAServerRestoredFromABackup(t *testing.T) {
	b := newRolledBack(t)
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := b.config("one", r, nil)
	cfg.FindSnapshot = func(_ context.Context, at Trimmed) (Snapshot, error) {
		return beyond{Start{Seq: 1 << 20, Created: at.Created, Stored: time.Now()}}, nil
	}
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	b.publish(100)
	b.equal(r)
	s, err := b.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Purge(deadline(t), jetstream.WithPurgeKeep(5)); err != nil { // as a trim does
		t.Fatal(err)
	}
	var restore func()
	b.stopped(func() { restore = natstest.BackUp(t, b.dir) })
	backedUp := b.info().LastSeq
	b.publish(200)
	b.equal(r)
	lost := b.info().LastSeq
	b.stopped(restore)
	b.publish(20)
	if now := b.info().LastSeq; now >= lost || now <= backedUp {
		t.Fatalf("the stream was backed up at %d, had come to %d, and is at %d", backedUp, lost, now)
	}
	b.equal(r)
	for b.info().LastSeq <= lost { // beyond the numbers that messages had before
		b.publish(50)
	}
	b.equal(r)
	if got := r.counter("kvatlas_ingest_void_positions_total"); got != 1 {
		t.Errorf("the position was void %d times", got)
	}
	if got := r.asked.count(Void); got != 6 {
		t.Errorf("publishers of 6 ranks were asked %d times because of it", got)
	}
	if got := r.counter(`kvatlas_ingest_reader_resets_total{reason="reloaded"}`); got != 0 {
		t.Errorf("%d snapshots were taken up that the stream does not have", got)
	}
}

// A server that was restored while nobody was connected, and whose stream has
// come as far as before, or further, by messages of its own.
func TestASequenceThatIsAnotherMessages(t *testing.T) {
	for name, more := range map[string]int{"as far": 0, "further": 30} {
		t.Run(name, func(t *testing.T) {
			b := newRolledBack(t)
			b.publish(50)
			r := b.open("one", nil, nil)
			b.equal(r)
			r.Close()
			start := r.Positions()
			var restore func()
			b.stopped(func() { restore = natstest.BackUp(t, b.dir) })
			from := b.info().LastSeq
			b.publish(50)
			r = b.open("one", r.set, start)
			b.equal(r)
			r.Close()
			start = r.Positions()
			seq := start[stream.Name("default", testSpace)].Seq
			b.stopped(restore)
			for b.info().LastSeq < seq-1 {
				b.publish(1)
			}
			b.publish(more)
			r = b.open("one", r.set, start)
			b.equal(r)
			if got := r.counter("kvatlas_ingest_void_positions_total"); got != 1 || r.asked.count(Void) != 6 {
				t.Errorf("from %d to %d and back: void %d times, publishers asked %d times", from, seq-1, got, r.asked.count(Void))
			}
		})
	}
}

// What a reader learns of the stream while it reads: a rolled-back one ends the
// session, for a consumer beyond its end would wait for ever.
func TestLooks(t *testing.T) {
	at := time.Unix(100, 7)
	before := mark{created: time.Unix(1, 0), read: 50, readAt: at, compared: true}
	whole := stream.Info{Created: before.created, FirstSeq: 10, LastSeq: 50, LastTime: at}
	for name, tc := range map[string]struct {
		change func(i *stream.Info, m *mark)
		want   error
	}{
		"the same":                    {func(*stream.Info, *mark) {}, nil},
		"further":                     {func(i *stream.Info, _ *mark) { i.LastSeq, i.LastTime = 60, at.Add(1) }, nil},
		"purged":                      {func(i *stream.Info, _ *mark) { i.FirstSeq = 51 }, nil},
		"trimmed beyond":              {func(i *stream.Info, _ *mark) { i.FirstSeq, i.LastSeq = 52, 60 }, errTrimmed},
		"rolled back":                 {func(i *stream.Info, _ *mark) { i.LastSeq = 49 }, errMoved},
		"empty":                       {func(i *stream.Info, _ *mark) { i.FirstSeq, i.LastSeq = 1, 0 }, errMoved},
		"made again":                  {func(i *stream.Info, _ *mark) { i.Created = i.Created.Add(1) }, errMoved},
		"another last message":        {func(i *stream.Info, _ *mark) { i.LastTime = at.Add(-1) }, errMoved},
		"not known which":             {func(i *stream.Info, m *mark) { i.LastTime, m.readAt = at.Add(-1), time.Time{} }, nil},
		"not compared with any yet":   {func(i *stream.Info, m *mark) { i.LastSeq, m.compared = 1, false }, nil},
		"nothing read, nothing there": {func(i *stream.Info, m *mark) { i.FirstSeq, i.LastSeq, m.read, m.readAt = 1, 0, 0, time.Time{} }, nil},
	} {
		r := &reader{group: &group{shared: &shared{cfg: &Config{StallAfter: time.Hour}}}, source: &source{window: newWindow(1, 1)}, sessionEnd: make(chan error, 1)}
		info, m := whole, before
		tc.change(&info, &m)
		r.mu.mark = m
		var got error
		for range 2 { // the second time what was there once is no news
			r.compareWithStream(&info, m)
			select {
			case got = <-r.sessionEnd:
			default:
			}
		}
		if !errors.Is(got, tc.want) || (got == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
	}
	r := &reader{group: &group{shared: &shared{cfg: &Config{StallAfter: time.Hour}}}, source: &source{window: newWindow(1, 1)}, sessionEnd: make(chan error, 1)}
	r.mu.mark = before
	other := whole
	other.LastTime = at.Add(1)
	r.compareWithStream(&other, before)
	<-r.sessionEnd //nolint:errcheck // that it ends is what counts
	r.compareWithStream(&other, before)
	if len(r.sessionEnd) != 0 {
		t.Error("the same last message is looked into twice")
	}
}

// How late what is not applied is goes by the server's clock, which stored it, and not by this machine's.
func TestLagGoesByTheServersClock(t *testing.T) {
	now := time.Now()
	for _, ahead := range []time.Duration{-time.Hour, 0, time.Hour} {
		server := now.Add(ahead).Round(0)
		r := &reader{group: &group{shared: &shared{cfg: &Config{StallAfter: time.Hour}, contact: &contact{began: now}}}, source: &source{window: newWindow(8, 1<<20)}, sessionEnd: make(chan error, 1)}
		if _, err := r.window.add(t.Context(), entry{seq: 1, at: server.Add(-5 * time.Second), bytes: 1}); err != nil {
			t.Fatal(err)
		}
		r.compareWithStream(&stream.Info{FirstSeq: 1, LastSeq: 1, At: server}, mark{})
		if late := r.status(now.Add(2 * time.Second)).LagTime.Round(time.Second); late != 7*time.Second {
			t.Errorf("the server is %v ahead: late by %v, want 7s", ahead, late)
		}
	}
}

// Positions that are void again and again cost ever less.
func TestVoidPositionsAreWaitedFor(t *testing.T) {
	var v restartPause
	now := time.Unix(1000, 0)
	asked := 0
	for range 3600 * 10 { // ten times a second, for an hour
		if v.remaining(now) == 0 {
			asked++
		}
		now = now.Add(100 * time.Millisecond)
	}
	if asked < 60 || asked > 66 {
		t.Errorf("publishers were asked %d times in an hour", asked)
	}
	if now = now.Add(time.Hour); v.remaining(now) != 0 || v.remaining(now.Add(leastRestartWait/2)) == 0 || v.remaining(now.Add(leastRestartWait)) != 0 {
		t.Error("one void position in an hour is waited for")
	}
}

// A reader that begins again and again without a message ends readiness, says
// why, and is ready again once it reads.
func TestALoopWithoutProgressEndsReadiness(t *testing.T) {
	b := newRolledBack(t)
	r := &replica{metrics: metrics.NewSet(), asked: &asked{}}
	r.set, _ = newIndex(t, 2)
	cfg := b.config("one", r, nil)
	cfg.StallAfter = 100 * time.Millisecond
	in, err := Open(deadline(t), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.Close)
	r.Ingest = in
	b.publish(20)
	b.equal(r)
	s, err := b.js.Stream(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	good := s.CachedInfo().Config
	bad := good
	bad.MaxMsgsPerSubject = 1 << 20
	if _, err := b.js.UpdateStream(deadline(t), bad); err != nil {
		t.Fatal(err)
	}
	if err := s.DeleteConsumer(deadline(t), "replica_one"); err != nil { // so that it looks at the stream again
		t.Fatal(err)
	}
	waittest.For(t, "readiness says that nothing is read", func() bool {
		err := in.Ready()
		return errors.Is(err, stream.ErrUnsafe) && strings.Contains(err.Error(), "again and again")
	})
	if _, err := b.js.UpdateStream(deadline(t), good); err != nil {
		t.Fatal(err)
	}
	b.publish(20)
	b.equal(r)
	// A server that is away is no such loop: the index is as of before.
	for _, tc := range []struct {
		err  error
		away bool
	}{
		{errReconnected, true},
		{fmt.Errorf("reading: %w", jetstream.ErrNoHeartbeat), true},
		{fmt.Errorf("stream: %w", nats.ErrNoResponders), true},
		{fmt.Errorf("stream: %w", context.DeadlineExceeded), true},
		{&jetstream.APIError{Code: 503}, true},
		{fmt.Errorf("stream: %w", jetstream.ErrStreamNotFound), true},
		{errHole, false},
		{errReloaded, false},
		{errVoid, false},
		{&jetstream.APIError{Code: 400}, false},
	} {
		if got := serverAway(b.nc, tc.err); got != tc.away {
			t.Errorf("%v: the server is away: %v", tc.err, got)
		}
	}
	b.stopped(func() {
		waittest.For(t, "the connection is lost", func() bool { return serverAway(b.nc, errHole) })
	})
}
