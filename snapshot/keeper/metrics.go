package keeper

import (
	"errors"
	"time"

	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/snapshot/store"
)

// meters are the metrics of a Keeper.
type meters struct {
	set              *metrics.Set
	waiting, trimmed *metrics.Counter
	adopted          *metrics.Counter
	seconds          *metrics.PrometheusHistogram
}

func newMeters(set *metrics.Set) *meters {
	return &meters{
		set:     set,
		waiting: set.GetOrCreateCounter("kvatlas_snapshot_waits_total"),
		trimmed: set.GetOrCreateCounter("kvatlas_snapshot_trimmed_messages_total"),
		adopted: set.GetOrCreateCounter("kvatlas_snapshot_adopted_total"),
		seconds: set.GetOrCreatePrometheusHistogramExt("kvatlas_snapshot_write_seconds",
			[]float64{0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300}),
	}
}

func (m *meters) took(why string, took time.Duration, e *store.Entry) {
	m.set.GetOrCreateCounter(`kvatlas_snapshots_total{because="` + why + `"}`).Inc()
	m.set.GetOrCreateCounter("kvatlas_snapshot_written_bytes_total").Add(int(e.Bytes))
	m.seconds.Update(took.Seconds())
}

func (m *meters) failed(reason string) {
	m.set.GetOrCreateCounter(`kvatlas_snapshot_failures_total{reason="` + reason + `"}`).Inc()
}

func (m *meters) restores(result string) {
	m.set.GetOrCreateCounter(`kvatlas_snapshot_restores_total{result="` + result + `"}`).Inc()
}

func (m *meters) refused(reason string) {
	m.set.GetOrCreateCounter(`kvatlas_snapshot_refused_total{reason="` + reason + `"}`).Inc()
}

func (m *meters) fault(fault string) {
	m.set.GetOrCreateCounter(`kvatlas_snapshot_manifest_faults_total{fault="` + fault + `"}`).Inc()
}

// faultOf is the label of a manifest's fault.
func faultOf(err error) string {
	switch {
	case errors.Is(err, store.ErrNoManifest):
		return "missing"
	case errors.Is(err, store.ErrOldManifest):
		return "old"
	}
	return "damaged"
}

// Help returns the help text of every metric that a Keeper exposes, by name.
func Help() map[string]string {
	return map[string]string{
		"kvatlas_snapshots_total":                 "Snapshots taken by this replica, by because: why it was due.",
		"kvatlas_snapshot_failures_total":         "Snapshots that were not taken, by reason.",
		"kvatlas_snapshot_waits_total":            "Times that a snapshot was due and another replica was taking one.",
		"kvatlas_snapshot_trimmed_messages_total": "Messages taken off streams because the oldest kept snapshot has them.",
		"kvatlas_snapshot_write_seconds":          "Time to write a snapshot, in seconds, without its verification.",
		"kvatlas_snapshot_written_bytes_total":    "Bytes of the snapshots taken.",
		"kvatlas_snapshot_restores_total":         "Snapshots read, at a start or behind the trim, by result: loaded, refused, or failed to be looked for.",
		"kvatlas_snapshot_refused_total":          "Snapshots of these that were refused, by reason.",
		"kvatlas_snapshot_manifest_faults_total":  "Times that snapshots were looked for without their manifest, by fault: what is wrong with it.",
		"kvatlas_snapshot_adopted_total":          "Snapshots that came into a manifest again that had lost them.",
	}
}
