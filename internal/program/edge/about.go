package edge

import (
	"bytes"
	"net/http"
	"sync/atomic"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/program/startup"
)

// TypeJSON is the content type of answers.
const TypeJSON = "application/json"

// Check is one condition of readiness.
type Check struct {
	Name string
	// Reason returns why the condition is not met, or "" if it is. It is called for
	// every /readyz that shows it or depends on it, on any goroutine, and must not block.
	Reason func() string
	// Note marks a condition that is shown with ?verbose but does not keep the answer from
	// being ready.
	Note bool
}

// Health says whether a process is ready. Checks and Progress do not change once it is
// asked.
type Health struct {
	Checks   []Check
	Progress func() startup.Report // nil: not shown
	draining atomic.Bool
}

// Drain makes it say from now on that the process is not ready.
func (h *Health) Drain() { h.draining.Store(true) }

// Draining reports whether Drain was called.
func (h *Health) Draining() bool { return h.draining.Load() }

// Ready returns what /readyz answers; with verbose every check is listed.
func (h *Health) Ready(verbose bool) (body []byte, ready bool) {
	type check struct {
		Name   string `json:"name"`
		OK     bool   `json:"ok"`
		Reason string `json:"reason,omitempty"`
	}
	var a struct {
		Status   string          `json:"status"`
		Checks   []check         `json:"checks,omitempty"`
		Progress *startup.Report `json:"progress,omitempty"`
	}
	serving := Check{Name: "serving", Reason: func() string {
		if h.Draining() {
			return "shutting down"
		}
		return ""
	}}
	ready = true
	for _, c := range append([]Check{serving}, h.Checks...) {
		if c.Note && !verbose {
			continue // nobody sees it, and it may cost a look at every rank
		}
		why := c.Reason()
		ready = ready && (c.Note || why == "")
		if verbose {
			a.Checks = append(a.Checks, check{c.Name, why == "", why})
		}
	}
	if a.Status = "ready"; !ready {
		a.Status = "not ready"
	}
	if verbose && h.Progress != nil {
		now := h.Progress()
		a.Progress = &now
	}
	return JSON(a), ready
}

// About is what a port answers of its process.
type About struct {
	Health  *Health
	Metrics *obs.Metrics
	OpenAPI func() string // the document of the port
}

// Answer returns the answer to GET of one of the paths /livez, /readyz, /version,
// /metrics and /openapi.yaml.
func (a *About) Answer(path string, verbose bool) (status int, kind string, body []byte) {
	switch path {
	case "/readyz":
		body, ready := a.Health.Ready(verbose)
		if !ready {
			return http.StatusServiceUnavailable, TypeJSON, body
		}
		return http.StatusOK, TypeJSON, body
	case "/version":
		return http.StatusOK, TypeJSON, JSON(obs.ReadVersion())
	case "/metrics":
		var b bytes.Buffer
		a.Metrics.WritePrometheus(&b)
		return http.StatusOK, "text/plain; version=0.0.4; charset=utf-8", b.Bytes()
	case "/openapi.yaml":
		return http.StatusOK, "application/yaml", []byte(a.OpenAPI())
	}
	return http.StatusOK, TypeJSON, []byte(`{"status":"ok"}` + "\n")
}

// ServeHTTP answers GET and HEAD of the paths of Answer.
func (a *About) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, kind, body := a.Answer(r.URL.Path, r.URL.Query().Has("verbose"))
	Write(w, status, kind, body)
}

// Write sends an answer.
func Write(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may be gone
}
