package publish

import (
	"fmt"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/recovery"
)

// meters are the counters of every publisher that shares a Set: they add up.
type meters struct {
	set *metrics.Set

	events, blocks [event.Cleared + 1]*metrics.Counter // by kind

	messages, bytes, acked, duplicates, heartbeats *metrics.Counter
	blocked, droppedFull, droppedLarge             *metrics.Counter
	droppedRefused                                 *metrics.Counter
	lost, recoveryBytes                            *metrics.Counter
	blockedSeconds                                 *metrics.FloatCounter
	pending, inFlight, refusing                    *metrics.Gauge
	batchEvents, ackSeconds                        *metrics.PrometheusHistogram
}

func newMeters(set *metrics.Set) *meters {
	m := &meters{
		set:            set,
		messages:       set.GetOrCreateCounter("kvatlas_publish_messages_total"),
		bytes:          set.GetOrCreateCounter("kvatlas_publish_bytes_total"),
		acked:          set.GetOrCreateCounter("kvatlas_publish_acks_total"),
		duplicates:     set.GetOrCreateCounter("kvatlas_publish_duplicate_acks_total"),
		heartbeats:     set.GetOrCreateCounter("kvatlas_publish_heartbeats_total"),
		blocked:        set.GetOrCreateCounter("kvatlas_publish_blocked_total"),
		blockedSeconds: set.GetOrCreateFloatCounter("kvatlas_publish_blocked_seconds_total"),
		droppedFull:    set.GetOrCreateCounter(`kvatlas_publish_dropped_events_total{reason="full"}`),
		droppedLarge:   set.GetOrCreateCounter(`kvatlas_publish_dropped_events_total{reason="too_large"}`),
		droppedRefused: set.GetOrCreateCounter(`kvatlas_publish_dropped_events_total{reason="refused"}`),
		refusing:       set.GetOrCreateGauge("kvatlas_publish_refused_streams", nil),
		lost:           set.GetOrCreateCounter("kvatlas_publish_lost_messages_total"),
		recoveryBytes:  set.GetOrCreateCounter("kvatlas_publish_recovery_bytes_total"),
		pending:        set.GetOrCreateGauge("kvatlas_publish_pending_bytes", nil),
		inFlight:       set.GetOrCreateGauge("kvatlas_publish_in_flight_messages", nil),
		batchEvents: set.GetOrCreatePrometheusHistogramExt("kvatlas_publish_batch_events",
			[]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}),
		ackSeconds: set.GetOrCreatePrometheusHistogramExt("kvatlas_publish_ack_seconds",
			[]float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60}),
	}
	for k := event.Stored; k <= event.Cleared; k++ {
		m.events[k] = set.GetOrCreateCounter(fmt.Sprintf("kvatlas_publish_events_total{kind=%q}", k))
		m.blocks[k] = set.GetOrCreateCounter(fmt.Sprintf("kvatlas_publish_blocks_total{kind=%q}", k))
	}
	return m
}

func (m *meters) accepted(ev *event.Event) {
	m.events[ev.Kind].Inc()
	m.blocks[ev.Kind].Add(len(ev.Engine))
}

// answered counts a reply to a replica that missed something.
func (m *meters) answered(kind recovery.Kind, bytes int) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_publish_recovery_answers_total{answer=%q}", kind)).Inc()
	m.recoveryBytes.Add(bytes)
}

// retry counts a failed attempt; they are rare enough to look the counter up.
func (m *meters) retry(reason string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_publish_retries_total{reason=%q}", reason)).Inc()
}
