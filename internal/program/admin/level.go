package admin

import (
	"encoding/json"
	"log/slog"
	"net/http"

	"github.com/kvatlas/kvatlas/internal/program/edge"
)

type levelBody struct {
	Level string `json:"level"`
}

func (s *Server) logLevel(w http.ResponseWriter, _ *http.Request) {
	edge.Write(w, http.StatusOK, edge.TypeJSON, edge.JSON(levelBody{s.deps.Level.Level().String()}))
}

func (s *Server) setLogLevel(w http.ResponseWriter, r *http.Request) {
	var b levelBody
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<10))
	d.DisallowUnknownFields()
	if err := d.Decode(&b); err != nil {
		refuse(w, edge.Bad("body", "malformed", `give {"level":"debug"}: `+err.Error()))
		return
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(b.Level)); err != nil {
		refuse(w, edge.Bad("level", "unknown", "give debug, info, warn or error: "+err.Error()))
		return
	}
	s.deps.Log.Info("the log level is changed", "from", s.deps.Level.Level(), "to", level)
	s.deps.Level.Set(level)
	s.logLevel(w, r)
}
