package obs

import (
	"net/http"
	"net/http/pprof"
)

// HandlePprof adds the profiles of the Go runtime below /debug/pprof/. They show
// the program's inside and cost it time: only for a listener that operators
// alone can reach. The command line is not among them: it may hold secrets.
func HandlePprof(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
