package publish

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The log says why publishing waits, also where nothing was answered.
func TestWhyPublishingWaitsIsSaid(t *testing.T) {
	for err, why := range map[error]error{nil: errLate, jetstream.ErrNoStreamResponse: jetstream.ErrNoStreamResponse} {
		var log waittest.Log
		p := &Publisher{cfg: Config{StreamWait: -1, Log: slog.New(slog.NewTextHandler(&log, nil))}, m: newMeters(metrics.NewSet())}
		newSender(p).wait(&message{sent: time.Now().Add(-time.Minute), err: err})
		if text := log.String(); !strings.Contains(text, why.Error()) || strings.Contains(text, "nil") {
			t.Error(text)
		}
	}
}
