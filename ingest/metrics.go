package ingest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/ingest/follow"
)

// meters are the counters of an Ingest, over all its streams.
type meters struct {
	set *metrics.Set

	messages, bytes, redelivered, heartbeats       *metrics.Counter
	lateHeartbeats                                 *metrics.Counter
	events                                         [event.Cleared + 1]*metrics.Counter // handed to the index, by kind
	dropped                                        [follow.NumReasons]*metrics.Counter // events, by reason
	gaps, missed, restarts                         *metrics.Counter
	held                                           *metrics.Gauge
	blocks                                         [core.NumResults]*metrics.Counter // by what the index did
	batchEvents, messageBytes, visible             *metrics.PrometheusHistogram
	asked                                          [follow.NumCauses]*metrics.Counter
	filtered, liveMessages                         *metrics.Counter
	truncated, contested, dumps                    *metrics.Counter
	recoveredEvents, recoveryRetries               *metrics.Counter
	recoveryBytes                                  *metrics.Counter
	reloadedRanks, reloadFailed                    *metrics.Counter
	departed                                       *metrics.Counter
	recovering                                     *metrics.Gauge
	discoverErrors, refusedStreams, voidedPosition *metrics.Counter
}

func newMeters(set *metrics.Set) *meters {
	c := set.GetOrCreateCounter
	m := &meters{
		set:             set,
		messages:        c("kvatlas_ingest_messages_total"),
		bytes:           c("kvatlas_ingest_bytes_total"),
		redelivered:     c("kvatlas_ingest_redelivered_messages_total"),
		lateHeartbeats:  c("kvatlas_ingest_late_heartbeats_total"),
		heartbeats:      c("kvatlas_ingest_heartbeats_total"),
		departed:        c("kvatlas_ingest_departed_workers_total"),
		gaps:            c("kvatlas_ingest_gaps_total"),
		missed:          c("kvatlas_ingest_missed_events_total"),
		restarts:        c("kvatlas_ingest_publisher_restarts_total"),
		held:            set.GetOrCreateGauge("kvatlas_ingest_held_messages", nil),
		filtered:        c(`kvatlas_ingest_filtered_blocks_total{reason="residency_domain"}`),
		liveMessages:    c("kvatlas_ingest_live_messages_total"),
		truncated:       c("kvatlas_ingest_truncated_ranks_total"),
		contested:       c("kvatlas_ingest_contested_ranks_total"),
		dumps:           c("kvatlas_ingest_dumps_total"),
		recoveredEvents: c("kvatlas_ingest_recovered_events_total"),
		recoveryRetries: c("kvatlas_ingest_recovery_retries_total"),
		recoveryBytes:   c("kvatlas_ingest_recovery_bytes_total"),
		reloadedRanks:   c(`kvatlas_ingest_reloaded_ranks_total{result="loaded"}`),
		reloadFailed:    c(`kvatlas_ingest_reloaded_ranks_total{result="failed"}`),
		recovering:      set.GetOrCreateGauge("kvatlas_ingest_recovering_ranks", nil),
		discoverErrors:  c("kvatlas_ingest_discover_errors_total"),
		refusedStreams:  c("kvatlas_ingest_refused_streams_total"),
		voidedPosition:  c("kvatlas_ingest_void_positions_total"),
		batchEvents: set.GetOrCreatePrometheusHistogramExt("kvatlas_ingest_batch_events",
			[]float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}),
		messageBytes: set.GetOrCreatePrometheusHistogramExt("kvatlas_ingest_message_bytes",
			[]float64{256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}),
		visible: set.GetOrCreatePrometheusHistogramExt("kvatlas_ingest_publish_to_applied_seconds",
			[]float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60, 600}),
	}
	m.recoverySeconds(recoveryOutcome(nil)) // there from the start; those of failures once there are some
	for why := range follow.NumReasons {
		name := fmt.Sprintf("kvatlas_ingest_ignored_events_total{reason=%q}", why)
		if why == follow.Overflow {
			name = "kvatlas_ingest_overflow_events_total"
		}
		m.dropped[why] = c(name)
	}
	for cause := range follow.NumCauses {
		m.asked[cause] = c(fmt.Sprintf("kvatlas_ingest_recoveries_asked_total{cause=%q}", cause))
	}
	for i, b := range new(core.Outcome).Counts() {
		m.blocks[i] = c(fmt.Sprintf("kvatlas_ingest_blocks_total{result=%q}", b.Result))
	}
	for k := event.Stored; k <= event.Cleared; k++ {
		m.events[k] = c(fmt.Sprintf("kvatlas_ingest_events_total{kind=%q}", k))
	}
	return m
}

// applied counts what a batch did to the index.
func (m *meters) applied(out core.Outcome) {
	for i, c := range out.Counts() {
		m.blocks[i].Add(c.N)
	}
}

// recovered counts a recovery that has ended; outcome is a constant word.
func (m *meters) recovered(cause Cause, outcome string, took time.Duration) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_ingest_recoveries_total{cause=%q,outcome=%q}", cause, outcome)).Inc()
	m.recoverySeconds(outcome).Update(took.Seconds())
}

func (m *meters) recoverySeconds(outcome string) *metrics.PrometheusHistogram {
	return m.set.GetOrCreatePrometheusHistogramExt(fmt.Sprintf("kvatlas_ingest_recovery_seconds{outcome=%q}", outcome),
		[]float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 60})
}

// answered counts a request of a recovery; outcome is a constant word.
func (m *meters) answered(outcome string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_ingest_recovery_requests_total{outcome=%q}", outcome)).Inc()
}

// malformed counts a message that is skipped; reason is a constant word.
func (m *meters) malformed(reason string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_ingest_malformed_total{reason=%q}", reason)).Inc()
}

// reloads counts a reader that fell behind the trim; result is a constant word.
func (m *meters) reloads(result string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_ingest_reloads_total{result=%q}", result)).Inc()
}

// reset counts a reader that had to begin again; reason is a constant word.
func (m *meters) reset(reason string) {
	m.set.GetOrCreateCounter(fmt.Sprintf("kvatlas_ingest_reader_resets_total{reason=%q}", reason)).Inc()
}

// onceASecond lets one caller a second through.
type onceASecond struct{ last atomic.Pointer[time.Time] }

func (o *onceASecond) ok(now time.Time) bool {
	last := o.last.Load()
	if last != nil && now.Sub(*last) < time.Second {
		return false
	}
	at := now // only who gets through allocates
	return o.last.CompareAndSwap(last, &at)
}
