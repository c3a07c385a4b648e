package loadsync

import (
	"errors"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// maxTurn bounds what is told of one response, in bytes; a server may allow less.
const maxTurn = 512 << 10

// Turns carries what routers tell one another of responses that were given. What is lost, or
// told before a router was there, is not known to it: what goes on with that is routed by load.
// Its methods are safe for concurrent use.
type Turns struct {
	conn    *nats.Conn
	subject string
	sub     *nats.Subscription
	close   sync.Once
}

// OpenTurns begins to listen. hear is called by one goroutine, for the router's own words too.
func OpenTurns(conn *nats.Conn, namespace string, hear func(msg []byte)) (*Turns, error) {
	if err := stream.CheckNamespace(namespace); err != nil {
		return nil, err
	}
	t := &Turns{conn: conn, subject: prefix + "." + namespace + ".turns"} // no token of a space
	var err error
	if t.sub, err = conn.Subscribe(t.subject, func(m *nats.Msg) { hear(m.Data) }); err != nil {
		return nil, fmt.Errorf("listening to what other routers tell of responses on %s: %w", t.subject, err)
	}
	return t, t.sub.SetPendingLimits(pendingMessages, pendingBytes)
}

// Tell tells the others.
func (t *Turns) Tell(msg []byte) error {
	most := int64(maxTurn)
	if allowed := t.conn.MaxPayload(); allowed > 0 {
		most = min(most, allowed)
	}
	if int64(len(msg)) > most {
		return fmt.Errorf("%d bytes are more than the %d that may be told at once", len(msg), most)
	}
	return t.conn.Publish(t.subject, msg)
}

// Close stops listening.
func (t *Turns) Close() (err error) {
	t.close.Do(func() {
		if err = t.sub.Unsubscribe(); errors.Is(err, nats.ErrConnectionClosed) {
			err = nil
		}
	})
	return err
}
