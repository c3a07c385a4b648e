package console

import (
	"github.com/VictoriaMetrics/metrics"

	"github.com/kvatlas/kvatlas/internal/program/obs"
)

// meters count what is refused and left out.
type meters struct {
	readers, answers *metrics.Counter // refused, for want of a place
	skipped          *metrics.Counter
}

func newMeters(m *obs.Metrics, h *hub) *meters {
	if m == nil {
		m = obs.NewSet()
	}
	const family, help = "kvatlas_console_refused_total", "Requests of the console's pages that were refused, by reason: readers (of events) or answers, of which there were as many as may be."
	m.Gauge("kvatlas_console_readers", "Pages that follow the console's events.", func() float64 { return float64(h.places.inUse()) })
	return &meters{
		readers: m.Counter(family, help, "reason", "readers"), answers: m.Counter(family, help, "reason", "answers"),
		skipped: m.Counter("kvatlas_console_skipped_frames_total", "Frames that a page did not get because it was not done with the one before."),
	}
}
