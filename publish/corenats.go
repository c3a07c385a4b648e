package publish

import (
	"context"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
)

// coreNATS sends each message once. One that does not get away is lost and
// counted: the replicas see the gap, or the next heartbeat, and ask for it.
type coreNATS struct {
	*outcomes
	nc   *nats.Conn
	lost *metrics.Counter
}

func newCoreNATS(cfg Config) *coreNATS {
	return &coreNATS{outcomes: newOutcomes(), nc: cfg.Conn, lost: newMeters(cfg.Metrics).lost}
}

func (t *coreNATS) subject(namespace string, sp event.Space, worker uint64) string {
	return stream.LiveSubject(namespace, sp, worker)
}

func (t *coreNATS) publish(subject string, msg *message) error {
	if t.nc.Publish(subject, msg.data) != nil {
		t.lost.Inc()
	}
	t.add(outcome{seq: msg.seq, try: msg.tries})
	return nil
}

func (t *coreNATS) tell(subject string, data []byte) error { return t.nc.Publish(subject, data) }
func (t *coreNATS) restore(context.Context) error          { return nil }
func (t *coreNATS) grow(context.Context) (bool, error)     { return false, nil }
func (t *coreNATS) maxMessage() int                        { return int(t.nc.MaxPayload()) - headerRoom }

// close lets what was published leave the process.
func (t *coreNATS) close() { _ = t.nc.FlushTimeout(time.Second) }
