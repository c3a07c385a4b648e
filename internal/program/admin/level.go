package admin

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
)

type levelBody struct {
	Level string `json:"level"`
}

func (s *Server) logLevel(w http.ResponseWriter, _ *http.Request) {
	answerJSON(w, http.StatusOK, levelBody{s.deps.Level.Level().String()})
}

func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request) {
	var b levelBody
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		answerProblem(w, http.StatusBadRequest, "body", "malformed", fmt.Errorf(`give {"level":"debug"}: %w`, err))
		return
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(b.Level)); err != nil {
		answerProblem(w, http.StatusBadRequest, "level", "unknown", fmt.Errorf("give debug, info, warn or error: %w", err))
		return
	}
	s.deps.Log.Info("the log level is changed", "from", s.deps.Level.Level(), "to", level)
	s.deps.Level.Set(level)
	s.logLevel(w, r)
}
