package keeper

import (
	"net"
	"sync/atomic"
	"testing"
	"time"
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
	began := time.Now()
	n.stop()
	if took := time.Since(began); took > 3*awayAtEnd {
		t.Errorf("stopped after %v", took)
	}
}
