package keeper

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// deaf is a way on which a server gets nothing any more, once it is told to.
type deaf struct {
	wire
	now atomic.Bool
}

type deafConn struct {
	net.Conn
	way *deaf
}

// Dial implements nats.CustomDialer.
func (d *deaf) Dial(network, address string) (net.Conn, error) {
	c, err := d.wire.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return deafConn{c, d}, nil
}

func (c deafConn) Write(b []byte) (int, error) {
	if c.way.now.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

// A server that ends while a replica that stops asks it for its last snapshot is not waited for:
// whoever has the embedded one and is stopped with everybody else is gone before their answers.
func TestTheLastSnapshotDoesNotWaitForAServerThatIsGone(t *testing.T) {
	w := newWorld(t, "")
	way := new(deaf)
	n := w.start("a", func(c *Config) {
		c.Conn = w.connect(way)
		c.step = func(string) error {
			way.now.Store(true)
			time.AfterFunc(50*time.Millisecond, way.cut)
			return nil
		}
	})
	w.publish(10)
	n.equal()
	n.stop()
	err := n.keeper.Newest()[stream.Name("default", testSpace)].Err
	if !errors.Is(err, errAway) || !errors.Is(err, context.Canceled) { // the request was given up, and did not end by its own time
		t.Error(err)
	}
}

// Buckets that were deleted since the last snapshot are made again for the one at the end.
func TestTheLastSnapshotWithoutItsBuckets(t *testing.T) {
	w := newWorld(t, "")
	n := w.start("a", func(c *Config) { c.Threshold = 20 })
	w.publish(30)
	n.equal()
	name := stream.Name("default", testSpace)
	waittest.For(t, "a snapshot", func() bool { return n.keeper.Newest()[name].Name != "" })
	n.keeper.cancel() // the end is what looks next
	<-n.keeper.done
	w.publish(10)
	n.equal()
	if err := w.js.DeleteKeyValue(t.Context(), store.KVName("default")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	n.stop()
	if newest := n.keeper.Newest()[name]; newest.Err != nil || newest.Written.Before(began) {
		t.Errorf("%+v", newest)
	}
}

// A connection that is away for longer than to another server of a cluster ends what waits for it.
func TestAConnectionThatIsAwayAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		began := time.Now()
		go (&Keeper{cfg: Config{Conn: new(nats.Conn)}}).watchConnection(ctx, cancel) // ends with ctx
		<-ctx.Done()
		if took := time.Since(began); !errors.Is(context.Cause(ctx), errAway) || took < awayAtEnd || took > 2*awayAtEnd {
			t.Errorf("%v after %v", context.Cause(ctx), took)
		}
	})
}
