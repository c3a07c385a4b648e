package registry

import (
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The bucket is that of an older backup: who left since does not come back by it, who is
// registered since by HTTP stays, as it was registered last, and the bucket says so again.
func TestARegistryRestoredFromABackup(t *testing.T) {
	s := newRestartable(t)
	r := openRegistry(t, s.conn, "one", nil)
	sub := r.Subscribe(1000)
	registered := func(id, port int) {
		t.Helper()
		body := fmt.Appendf(nil, `{"instance_id":%d,"endpoint":"tcp://127.0.0.1:%d","model_name":"m","block_size":16}`, id, port)
		if status, answer := r.ServeRegister(deadline(t), body); status != http.StatusCreated && status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	byHTTP := func(id int) Worker { return Worker{ID: uint64(id), Model: "m", BlockSize: 16} }
	for id := 1; id <= 3; id++ {
		registered(id, 5000+id)
	}
	announce(t, s.conn, testWorker(10))
	dies, leaves := announce(t, s.conn, testWorker(11)), announce(t, s.conn, testWorker(12))
	kinds(t, sub, "joined 1; joined 2; joined 3; joined 10; joined 11; joined 12")
	restart := func(meanwhile func()) {
		t.Helper()
		sessions := r.m.sessions.Get()
		s.stop()
		meanwhile()
		s.start()
		waittest.For(t, "the bucket is read again", func() bool { return r.m.sessions.Get() > sessions && r.Connected() })
	}
	var restore func()
	restart(func() { restore = natstest.BackUp(t, s.dir) })

	for id := range 2 {
		if status, answer := r.ServeUnregister(deadline(t), fmt.Appendf(nil, `{"instance_id":%d,"model_name":"m"}`, id+1)); status != http.StatusOK {
			t.Fatalf("%d %s", status, answer)
		}
	}
	registered(1, 6001)
	registered(4, 5004)
	if err := r.bucket().Remove(deadline(t), 3, false); err != nil {
		t.Fatal(err)
	}
	dies.die()
	if err := leaves.Close(deadline(t)); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{11, 12} {
		waittest.For(t, "the worker left", func() bool { e, _ := r.Lookup(testWorker(id).Key()); return !e.Present() })
	}
	waittest.For(t, "the others are known", func() bool {
		three, _ := r.Lookup(byHTTP(3).Key())
		four, _ := r.Lookup(byHTTP(4).Key())
		return !three.Present() && four.Present()
	})
	sub.Next()
	restart(restore)

	waittest.For(t, "the bucket says again what was said since", func() bool {
		c, err := r.bucket().Read(deadline(t))
		if err != nil {
			return false
		}
		have := map[uint64]string{}
		for _, e := range c.Workers {
			if e.HTTP {
				have[e.ID] = e.Endpoints.Events[0]
			}
		}
		return len(have) == 2 && strings.HasSuffix(have[1], ":6001") && strings.HasSuffix(have[4], ":5004")
	})
	begun := time.Now()
	waittest.For(t, "all leases and graces", func() bool { return time.Since(begun) > 3*r.cfg.Grace })
	for _, e := range sub.Next() {
		if e.Kind == Returned || e.Kind == Joined || e.Kind == Left && (e.Entry.ID == 1 || e.Entry.ID == 4 || e.Entry.ID == 10) {
			t.Errorf("%v of worker %d", e.Kind, e.Entry.ID)
		}
	}
	late := openRegistry(t, s.conn, "two", nil)
	for name, x := range map[string]*Registry{"one that ran": r, "one that starts": late} {
		x.is(t, testWorker(10), "live")
		for _, w := range []Worker{byHTTP(2), byHTTP(3), testWorker(11), testWorker(12)} {
			waittest.For(t, fmt.Sprintf("%s: worker %d is not there", name, w.ID), func() bool { e, _ := x.Lookup(w.Key()); return !e.Present() })
		}
		for id, port := range map[int]string{1: ":6001", 4: ":5004"} {
			if e, _ := x.Lookup(Key{event.Space{Model: "m", BlockSize: 16}, uint64(id)}); !e.Present() || !strings.HasSuffix(e.Endpoints.Events[0], port) {
				t.Errorf("%s: worker %d: %+v", name, id, e)
			}
		}
	}
}

// An older backup says nothing new, however often it is read.
func TestABackupIsReadAgainAndAgain(t *testing.T) {
	w, lives, dies, leaves := newWorld(t), testWorker(1), testWorker(2), testWorker(3)
	w.live(10*time.Second, lives, dies, leaves)
	backup, seq := maps.Clone(w.last), w.seq
	w.live(10*time.Second, lives, dies, leaves)
	w.unregister(leaves)
	w.live(time.Minute, lives)
	w.take()
	w.last, w.seq = backup, seq
	for range 3 {
		w.load()
		w.live(5*time.Second, lives)
		w.expect("")
	}
	if s := w.state(dies); s != "lost" {
		t.Errorf("who died is %s", s)
	}
}

// A server of a cluster may be restored while the connection to another one stands.
func TestABucketThatGoesBackIsReadAgain(t *testing.T) {
	r, err := Open(deadline(t), Config{Replica: "one", Log: quiet()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	for _, c := range []struct {
		revision uint64
		back     bool
	}{{4, false}, {6, false}, {5, true}, {6, true}, {7, false}} {
		if back := r.applyChange(change{key: replicaKey("x"), value: []byte("{}"), revision: c.revision}); back != c.back {
			t.Errorf("revision %d: gone back %v", c.revision, back)
		}
	}
}

// A connection that was away may have come back to a server that has another past, and
// nats.go goes on reading after the last revision: all is read again, however rarely this
// replica beats.
func TestTheBucketIsReadAgainAfterEachReconnect(t *testing.T) {
	s := newRestartable(t)
	r := openRegistry(t, s.conn, "one", func(c *Config) { c.Beat = time.Hour })
	s.stop()
	s.start()
	waittest.For(t, "the bucket is read again", func() bool { return r.m.sessions.Get() > 0 })
}
