package publish

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// coreNATS sends each message once. One that does not get away is lost and
// counted: the replicas see the gap, or the next heartbeat, and ask for it.
type coreNATS struct {
	nc   *nats.Conn
	lost *metrics.Counter
	sent sentFuture
}

func newCoreNATS(cfg Config) *coreNATS {
	sent := make(chan *jetstream.PubAck)
	close(sent)
	return &coreNATS{nc: cfg.Conn, lost: newMeters(cfg.Metrics).lost, sent: sentFuture{sent}}
}

func (t *coreNATS) subject(namespace string, sp event.Space, worker uint64) string {
	return stream.LiveSubject(namespace, sp, worker)
}

func (t *coreNATS) publish(subject, _ string, data []byte) (jetstream.PubAckFuture, error) {
	if t.nc.Publish(subject, data) != nil {
		t.lost.Inc()
	}
	return t.sent, nil
}

func (t *coreNATS) tell(subject string, data []byte) error { return t.nc.Publish(subject, data) }
func (t *coreNATS) restore(context.Context) error          { return nil }
func (t *coreNATS) grow(context.Context) (bool, error)     { return false, nil }
func (t *coreNATS) maxMessage() int                        { return int(t.nc.MaxPayload()) - headerRoom }

// close lets what was published leave the process.
func (t *coreNATS) close() { _ = t.nc.FlushTimeout(time.Second) }

// sentFuture is over from the start, without an acknowledgement.
type sentFuture struct{ done chan *jetstream.PubAck }

func (f sentFuture) Ok() <-chan *jetstream.PubAck { return f.done }
func (f sentFuture) Err() <-chan error            { return nil }
func (f sentFuture) Msg() *nats.Msg               { return nil }
