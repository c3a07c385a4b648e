package keeper

import (
	"log/slog"
	"testing"

	"github.com/VictoriaMetrics/metrics"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// TestAServerWithoutRoomForSnapshots has a server whose storage is set aside for
// streams when a replica starts: it serves all the same, says why there are no
// snapshots, and takes them once there is room.
func TestAServerWithoutRoomForSnapshots(t *testing.T) {
	data := t.TempDir()
	b, err := broker.Open(deadline(t), broker.Config{
		URL: broker.Embedded, DataDir: data, MaxStore: 96 << 20, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	w := newWorldAt(t, data, "", 64<<20)
	if _, err := w.js.CreateStream(deadline(t), jetstream.StreamConfig{Name: "filler", MaxBytes: 31 << 20}); err != nil {
		t.Fatal(err)
	}
	m := metrics.NewSet()
	n := w.start("a", func(c *Config) { c.Threshold, c.Metrics = 20, m })
	w.publish(100)
	n.equal()
	waittest.For(t, "the failure is counted", func() bool {
		return m.GetOrCreateCounter(`kvatlas_snapshot_failures_total{reason="storage"}`).Get() > 0
	})
	if c := m.GetOrCreateCounter(`kvatlas_snapshot_restores_total{result="failed"}`).Get(); c != 1 {
		t.Errorf("%d restores failed", c)
	}
	if err := w.js.DeleteStream(deadline(t), "filler"); err != nil {
		t.Fatal(err)
	}
	waittest.For(t, "a snapshot", func() bool { return m.GetOrCreateCounter(`kvatlas_snapshots_total{because="messages"}`).Get() > 0 })
}
