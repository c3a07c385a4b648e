package keeper

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// wire is a connection's way to the broker, which a test cuts and mends.
type wire struct {
	mu    sync.Mutex
	down  bool
	conns []net.Conn
}

// Dial implements nats.CustomDialer.
func (w *wire) Dial(network, address string) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.down {
		return nil, errors.New("the wire is cut")
	}
	c, err := net.DialTimeout(network, address, waittest.Patience)
	if err == nil {
		w.conns = append(w.conns, c)
	}
	return c, err
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func (w *wire) mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = false
}

// connect returns a connection over the wire.
func (w *world) connect(over nats.CustomDialer) *nats.Conn {
	w.t.Helper()
	nc, err := nats.Connect(w.nc.ConnectedUrl(), nats.UserInfo(w.nc.Opts.User, w.nc.Opts.Password), nats.SetCustomDialer(over),
		nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectBufSize(-1))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	return nc
}

// leaveBehind starts two replicas and cuts one of them off until the other has
// trimmed the stream beyond it. One of the workers runs anew meanwhile.
func leaveBehind(t *testing.T, w *world) (there, behind *node, way *wire) {
	t.Helper()
	there = w.start("there", func(c *Config) { c.Threshold = 20 })
	way = new(wire)
	behind = w.start("behind", func(c *Config) { c.Conn = w.connect(way) })
	w.publish(60)
	there.equal()
	behind.equal()
	way.cut()
	at := w.info().LastSeq
	for i := 0; w.info().FirstSeq <= at+1; i++ {
		if i == 1 {
			w.kill(w.pubs[1])
			w.pubs[1] = w.publisher(1)
			w.oracle.Clear(1, 0, true)
			w.held[1] = nil
		}
		w.publish(60)
		there.equal()
		last := w.info().LastSeq
		waittest.For(t, "a snapshot of all that", func() bool {
			m := w.manifest()
			return len(m.Snapshots) > 0 && m.Snapshots[0].Seq+20 > last
		})
	}
	return there, behind, way
}

// A replica that was cut off for longer than the stream reaches back takes up a
// snapshot: it ends equal to the oracle although a worker whose events it missed
// is dead, and cannot be asked.
func TestAReplicaBehindTheTrimTakesUpASnapshot(t *testing.T) {
	w := newWorld(t, "")
	there, behind, way := leaveBehind(t, w)
	w.kill(w.pubs[2])
	w.pubs[2] = nil
	there.keeper.cancel() // it takes no more, and trims no more
	<-there.keeper.done
	way.mend()
	w.publish(60) // while it catches up
	behind.equal()
	there.equal()
	if got := behind.count(`kvatlas_ingest_reloads_total{result="loaded"}`); got == 0 {
		t.Error("no snapshot was taken up")
	}
	if got := behind.count(`kvatlas_ingest_reloaded_ranks_total{result="loaded"}`); got == 0 {
		t.Error("of no rank was a snapshot taken up")
	}
	w.publish(60)
	behind.equal()
	// What it has and knows is enough for the next snapshot, and a start from it.
	behind.stop()
	next := w.start("next", nil)
	next.equal()
	if len(next.starts) != 1 {
		t.Error("it did not begin with a snapshot")
	}
}

// With no snapshot that the stream goes on from, the publishers are asked.
func TestAReplicaBehindTheTrimWithoutASnapshot(t *testing.T) {
	w := newWorld(t, "")
	there, behind, way := leaveBehind(t, w)
	there.crash()
	s, err := there.keeper.Store(deadline(t), stream.Name("default", testSpace))
	if err != nil {
		t.Fatal(err)
	}
	if err := clearStore(deadline(t), s, "test"); err != nil {
		t.Fatal(err)
	}
	way.mend()
	w.publish(60)
	behind.equal()
	if got := behind.count(`kvatlas_ingest_reloads_total{result="none"}`); got == 0 {
		t.Error("that no snapshot could be taken up is not counted")
	}
}
