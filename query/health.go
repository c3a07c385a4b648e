package query

import (
	"encoding/json"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/internal/program/startup"
)

// Check is one condition of readiness.
type Check struct {
	Name string
	// Reason returns why the condition is not met, or "" if it is. It is
	// called for every /readyz, on any goroutine, and must not block.
	Reason func() string
	// Note marks a condition that is shown with ?verbose but does not keep the answer from
	// being ready.
	Note bool
}

// health answers /livez and /readyz.
type health struct {
	checks   []Check
	progress func() startup.Report // nil: not shown
	draining atomic.Bool
}

// appendReady appends the JSON form of the readiness and reports it. With
// verbose every check is listed.
func (h *health) appendReady(dst []byte, verbose bool) ([]byte, bool) {
	checks := append([]Check{{Name: "serving", Reason: h.drainReason}}, h.checks...)
	reasons := make([]string, len(checks))
	ready := true
	for i, c := range checks {
		reasons[i] = c.Reason()
		ready = ready && (c.Note || reasons[i] == "")
	}
	if dst = append(dst, `{"status":"ready"`...); !ready {
		dst = append(dst[:len(dst)-len(`"ready"`)], `"not ready"`...)
	}
	if verbose {
		dst = append(dst, `,"checks":[`...)
		for i, c := range checks {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(dst, `{"name":`...)
			dst = appendString(dst, c.Name)
			if reasons[i] == "" {
				dst = append(dst, `,"ok":true}`...)
				continue
			}
			dst = append(dst, `,"ok":false,"reason":`...)
			dst = appendString(dst, reasons[i])
			dst = append(dst, '}')
		}
		dst = append(dst, ']')
		if h.progress != nil {
			if text, err := json.Marshal(h.progress()); err == nil { // numbers always have a form
				dst = append(append(dst, `,"progress":`...), text...)
			}
		}
	}
	return append(dst, "}\n"...), ready
}

// Ready returns what /readyz answers.
func (s *Server) Ready(verbose bool) (body []byte, ready bool) {
	return s.health.appendReady(nil, verbose)
}

func (h *health) drainReason() string {
	if h.draining.Load() {
		return "shutting down"
	}
	return ""
}
