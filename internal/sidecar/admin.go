package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/kvatlas/kvatlas/event/engine"
	"github.com/kvatlas/kvatlas/internal/enginefeed"
	"github.com/kvatlas/kvatlas/internal/obs"
)

// serveAdmin answers /metrics, /readyz, /livez, /version and /debug/pprof until
// stopAdmin is called.
func (s *Sidecar) serveAdmin(ctx context.Context) error {
	s.stopAdmin = func() error { return nil }
	if s.cfg.Listen == "" {
		return nil
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.cfg.Listen)
	if err != nil {
		return fmt.Errorf("opening the HTTP address (see --http-listen): %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "alive") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.waiting(); why != "" {
			http.Error(w, why, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		s.metrics.WritePrometheus(w)
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(obs.ReadVersion()) // the client may be gone
	})
	obs.HandlePprof(mux)
	server := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 2 * time.Minute, IdleTimeout: time.Minute,
		MaxHeaderBytes: 8 << 10,
	}
	ended := make(chan struct{})
	go func() { // ends with Close
		defer close(ended)
		_ = server.Serve(ln)
	}()
	s.log.Info("listening", "address", ln.Addr().String(), "version", obs.ReadVersion().String())
	s.stopAdmin = func() error {
		err := server.Close()
		<-ended
		return err
	}
	if err := s.service.Listening(ln.Addr().String()); err != nil {
		return errors.Join(err, s.stopAdmin())
	}
	return nil
}

// feedMetrics exposes what the feeds count.
func (s *Sidecar) feedMetrics() {
	for i, f := range s.feeds {
		rank := fmt.Sprint(s.ranks[i])
		gauge := func(name string, value func(enginefeed.Stats) uint64, pairs ...string) {
			name = obs.Name("kvatlas_publisher_feed_"+name, append(pairs, "dp_rank", rank)...)
			s.metrics.NewGauge(name, func() float64 { return float64(value(f.Stats())) })
		}
		gauge("batches_total", func(st enginefeed.Stats) uint64 { return st.Live }, "way", "live")
		gauge("batches_total", func(st enginefeed.Stats) uint64 { return st.Replayed }, "way", "replayed")
		gauge("missed_batches_total", func(st enginefeed.Stats) uint64 { return st.Missed })
		gauge("connects_total", func(st enginefeed.Stats) uint64 { return st.Connects })
		gauge("disconnects_total", func(st enginefeed.Stats) uint64 { return st.Disconnects })
		gauge("replays_total", func(st enginefeed.Stats) uint64 { return st.Replays })
		gauge("queued_messages", func(enginefeed.Stats) uint64 { n, _ := f.Queued(); return uint64(n) })
		for r := range enginefeed.Reason(enginefeed.NumReasons) {
			gauge("lost_batches_total", func(st enginefeed.Stats) uint64 { return st.Lost[r] }, "reason", r.String())
		}
		for c := range enginefeed.Cause(enginefeed.NumCauses) {
			gauge("restarts_total", func(st enginefeed.Stats) uint64 { return st.Restarts[c] }, "cause", c.String())
		}
		for r := range engine.Reason(engine.NumReasons) {
			gauge("left_out_total", func(st enginefeed.Stats) uint64 { return st.Left[r] }, "reason", r.String())
		}
	}
}
