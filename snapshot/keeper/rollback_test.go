package keeper

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/racetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// restorable is a world whose server is stopped, backed up and restored. Snapshots
// in a directory are newer than the server after that.
type restorable struct {
	*world
	data  string
	owner *broker.Broker
}

func newRestorable(t *testing.T, dir string) *restorable {
	t.Helper()
	r := &restorable{data: t.TempDir()}
	r.owner = serve(t, r.data)
	r.world = newWorldAt(t, r.data, dir, 64<<20)
	return r
}

// stopped calls f while the server is down.
func (r *restorable) stopped(f func()) {
	r.t.Helper()
	if err := r.owner.Close(); err != nil {
		r.t.Fatal(err)
	}
	f()
	r.owner = serve(r.t, r.data)
	r.info()
}

// further publishes until the taker has taken n more snapshots, the last of all
// that the stream has.
func (r *restorable) further(taker *node, n int) {
	r.t.Helper()
	for ; n > 0; n-- {
		before := r.manifest().Fence
		r.publish(60)
		taker.equal()
		last := r.info().LastSeq
		waittest.For(r.t, "a snapshot", func() bool {
			m := r.manifest()
			return len(m.Snapshots) > 0 && m.Snapshots[0].Fence > before && m.Snapshots[0].Seq+20 > last
		})
	}
}

// A server that comes back with nothing has lost the buckets of snapshots as well, which were there
// when the replica began: they are made again, and snapshots taken as before.
func TestSnapshotsGoOnWithAnEmptyServer(t *testing.T) {
	for kind, dir := range map[string]string{"dir": t.TempDir(), "bucket": ""} {
		t.Run(kind, func(t *testing.T) {
			r := newRestorable(t, dir)
			taker := r.start("taker", func(c *Config) { c.Threshold = 20 })
			r.further(taker, 1)
			if err := r.owner.Close(); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(filepath.Join(r.data, "jetstream")); err != nil {
				t.Fatal(err)
			}
			r.owner = serve(t, r.data)
			created := time.Now()
			r.publish(60)
			taker.equal()
			waittest.For(t, "a snapshot of the new stream", func() bool {
				return taker.keeper.Newest()[stream.Name("default", testSpace)].Written.After(created)
			})
		})
	}
}

// The server is restored from a backup that is older than every snapshot, and a
// worker whose last events it lost is dead. A replica that runs goes on, and one
// that starts begins with the newest snapshot; both ask every publisher once, and
// end equal to the oracle. The next snapshot is of the stream as it is now.
func TestSnapshotsNewerThanTheStream(t *testing.T) {
	r := newRestorable(t, t.TempDir())
	taker := r.start("taker", func(c *Config) { c.Threshold, c.Keep, c.Lease = 10, 3, 200*time.Millisecond })
	running := r.start("running", nil)
	running.keeper.cancel() // it takes none
	<-running.keeper.done
	r.further(taker, 5)
	if r.info().FirstSeq == 1 {
		t.Fatal("the stream is not trimmed")
	}
	var restore func()
	r.stopped(func() { restore = natstest.BackUp(t, r.data) })
	backedUp := r.info().LastSeq
	r.further(taker, 4)
	r.kill(r.pubs[2])
	r.pubs[2] = nil
	running.equal()
	taker.crash()
	snaps := r.manifest().Snapshots
	if oldest := snaps[len(snaps)-1].Seq; oldest <= backedUp {
		t.Fatalf("a snapshot of %d is older than the backup of %d", oldest, backedUp)
	}
	lost := r.info().LastSeq
	r.stopped(restore)
	r.publish(10)
	if now := r.info().LastSeq; now >= snaps[2].Seq {
		t.Fatalf("the stream is at %d already, of %d before, and the snapshots are %+v", now, lost, snaps)
	}
	starting := r.start("starting", nil)
	for _, n := range []*node{running, starting} {
		n.equal()
		waittest.Until(t, n.in.Ready)
		if got := n.count("kvatlas_ingest_void_positions_total"); got != 1 {
			t.Errorf("the position was void %d times", got)
		}
		if got := n.count(`kvatlas_ingest_recoveries_asked_total{cause="void"}`); got != 3 {
			t.Errorf("3 publishers were asked %d times because of it", got)
		}
		// The other one may have taken a snapshot of the stream as it is by then.
		if got := n.count(`kvatlas_ingest_reloads_total{result="loaded"}`); got > 1 {
			t.Errorf("%d snapshots were taken up", got)
		}
	}
	if start := starting.starts[stream.Name("default", testSpace)]; start.Seq != snaps[0].Seq+1 {
		t.Errorf("it began at %d, the newest snapshot is of %d", start.Seq, snaps[0].Seq)
	}
	running.crash()
	starting.crash()

	// A snapshot of the stream as it is now; what is newer by its sequence goes.
	again := r.start("again", func(c *Config) { c.Threshold, c.Lease = 1<<40, 200*time.Millisecond })
	again.equal()
	waittest.Until(t, again.in.Ready)
	again.stop()
	m := r.manifest()
	if info := r.info(); len(m.Snapshots) == 0 || m.Snapshots[0].Seq > info.LastSeq || m.Fence <= snaps[0].Fence {
		t.Fatalf("the newest snapshot of a stream of %+v is %+v", info, m)
	}
	last := r.start("last", nil)
	last.equal()
	if got := last.count("kvatlas_ingest_void_positions_total"); got != 0 {
		t.Errorf("the position of the new snapshot is void")
	}
}

// A snapshot from before the rollback whose sequence the stream has again, as
// another message's, is a fallback still: it is no bound of what is trimmed, and
// a start from it takes no position for granted.
func TestASnapshotOfWhatTheStreamWas(t *testing.T) {
	racetest.Without(t, "it goes step by step, for long")
	r := newRestorable(t, t.TempDir())
	taker := r.start("taker", func(c *Config) { c.Threshold, c.Lease, c.Keep = 10, 200*time.Millisecond, 2 })
	r.further(taker, 1)
	var restore func()
	r.stopped(func() { restore = natstest.BackUp(t, r.data) })
	r.further(taker, 1)
	taker.crash()
	was := r.manifest().Snapshots[0]
	r.stopped(restore)
	r.beyond(was)
	taker = r.start("taker2", func(c *Config) { c.Threshold, c.Lease, c.Keep = 1<<40, 200*time.Millisecond, 2 })
	taker.equal()
	waittest.Until(t, taker.in.Ready)
	first := r.info().FirstSeq
	taker.stop() // takes one
	m := r.manifest()
	if len(m.Snapshots) != 2 || m.Snapshots[0].Seq <= was.Seq || m.Snapshots[1] != was {
		t.Fatalf("%+v, after %+v", m.Snapshots, was)
	}
	if now := r.info().FirstSeq; now != first {
		t.Errorf("trimmed from %d to %d, and the oldest snapshot is of %d of another history", first, now, was.Seq)
	}
	s := r.shelf()
	s.write(m.Snapshots[0].Name, nil)
	n := r.start("fallback", nil)
	if start := n.starts[stream.Name("default", testSpace)]; start.Seq != was.Seq+1 {
		t.Errorf("it began at %d, not from the fallback of %d", start.Seq, was.Seq)
	}
	n.equal()
	if got := n.count("kvatlas_ingest_void_positions_total"); got != 1 {
		t.Errorf("its position was void %d times", got)
	}
}

// beyond publishes until the stream is well beyond the snapshot again.
func (r *restorable) beyond(was store.Entry) {
	r.t.Helper()
	for r.info().LastSeq <= was.Seq+10 {
		r.publish(20)
	}
}
