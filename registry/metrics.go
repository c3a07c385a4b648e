package registry

import (
	"github.com/VictoriaMetrics/metrics"
)

// meters are the counters of a Registry.
type meters struct {
	set                                *metrics.Set
	conflicts, mismatches              *metrics.Counter
	beats, failedBeats, sessions       *metrics.Counter
	overflows, cleaned, failedCleaning *metrics.Counter
	restored, endedAgain               *metrics.Counter
}

func newMeters(set *metrics.Set) *meters {
	c := set.GetOrCreateCounter
	return &meters{
		set:            set,
		conflicts:      c("kvatlas_registry_conflicts_total"),
		mismatches:     c("kvatlas_registry_scheme_mismatches_total"),
		beats:          c(`kvatlas_registry_beats_total{result="stored"}`),
		failedBeats:    c(`kvatlas_registry_beats_total{result="failed"}`),
		sessions:       c("kvatlas_registry_watch_resets_total"),
		restored:       c("kvatlas_registry_restored_total"),
		endedAgain:     c("kvatlas_registry_ended_again_total"),
		overflows:      c("kvatlas_registry_resyncs_total"),
		cleaned:        c(`kvatlas_registry_cleaned_total{result="removed"}`),
		failedCleaning: c(`kvatlas_registry_cleaned_total{result="failed"}`),
	}
}

func (m *meters) corrupt(reason string) {
	m.set.GetOrCreateCounter(`kvatlas_registry_corrupt_total{reason="` + reason + `"}`).Inc()
}

func (m *meters) event(k Kind) {
	m.set.GetOrCreateCounter(`kvatlas_registry_events_total{kind="` + k.String() + `"}`).Inc()
}

func (m *meters) left(why Reason) {
	m.set.GetOrCreateCounter(`kvatlas_registry_left_total{reason="` + why.String() + `"}`).Inc()
}

// gauges exposes how many workers are in which state.
func (r *Registry) gauges() {
	gauge := func(name string, f func() float64) {
		r.m.set.UnregisterMetric(name) // of an earlier Registry on the same Set
		r.m.set.NewGauge(name, f)
	}
	for _, state := range []string{"live", "suspect", "lost", "drained"} {
		gauge(`kvatlas_registry_workers{state="`+state+`"}`, func() float64 { return float64(r.count(state)) })
	}
	if r.cfg.Conn == nil {
		return
	}
	gauge("kvatlas_registry_corrupt_values", func() float64 {
		r.mu.Lock()
		defer r.mu.Unlock()
		return float64(len(r.mu.ledger.corrupt))
	})
	gauge("kvatlas_registry_connected", func() float64 {
		if r.Connected() {
			return 1
		}
		return 0
	})
}

func (r *Registry) count(status string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.ledger.count()[status]
}

// Help returns the help text of every metric that a Registry exposes, by name,
// for whoever writes them out.
func Help() map[string]string {
	return map[string]string{
		"kvatlas_registry_workers":                 "Workers that are registered, or whose lease was lost, by state.",
		"kvatlas_registry_corrupt_values":          "Values of the registry's bucket that are ignored at present.",
		"kvatlas_registry_connected":               "1 while this replica hears its own beats through the bucket, so that leases are judged.",
		"kvatlas_registry_corrupt_total":           "Values of the registry's bucket that were ignored, by reason.",
		"kvatlas_registry_events_total":            "Changes of workers, by kind.",
		"kvatlas_registry_left_total":              "Workers that left, by reason.",
		"kvatlas_registry_conflicts_total":         "Workers that two processes announced at the same time.",
		"kvatlas_registry_scheme_mismatches_total": "Workers found to make their hashes in a way that never matches here.",
		"kvatlas_registry_beats_total":             "Beats of this replica, by result.",
		"kvatlas_registry_watch_resets_total":      "Times that the watch on the bucket began anew.",
		"kvatlas_registry_resyncs_total":           "Times that a subscriber was too slow and has to look at a snapshot.",
		"kvatlas_registry_restored_total":          "Registrations over HTTP that the server had lost, stored again.",
		"kvatlas_registry_ended_again_total":       "Registrations that had ended, that a server restored from a backup had brought back, ended again.",
		"kvatlas_registry_cleaned_total":           "Old keys of the bucket cleaned up, by result.",
	}
}
