package admin

import (
	"encoding/json"
	"io"
	"net/http"
)

// Check is one condition of readiness.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"` // why it is not met
}

// Readiness returns what /readyz answers for a program that has one condition,
// which is met if why is empty.
func Readiness(condition, why string, verbose bool) (body []byte, ready bool) {
	var a struct {
		Status string  `json:"status"`
		Checks []Check `json:"checks,omitempty"`
	}
	if a.Status = "ready"; why != "" {
		a.Status = "not ready"
	}
	if verbose {
		a.Checks = []Check{{condition, why == "", why}}
	}
	body, err := json.Marshal(a)
	if err != nil { // texts always have a form
		return []byte("{}\n"), false
	}
	return append(body, '\n'), why == ""
}

// answerProblem says what is wrong, in the form of the query port's problems.
func answerProblem(w http.ResponseWriter, status int, field, reason string, err error) {
	type problem struct {
		Field   string `json:"field"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	}
	answerJSON(w, status, map[string]problem{"error": {field, reason, err.Error()}})
}

func answerJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // texts always have a form
		status, body = http.StatusInternalServerError, []byte(`{"error":{"field":"request","reason":"internal","message":"no form"}}`)
	}
	answer(w, status, "application/json", string(body)+"\n")
}

func answer(w http.ResponseWriter, status int, kind, body string) {
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // the client may be gone
}
