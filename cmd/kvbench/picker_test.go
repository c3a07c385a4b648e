package main

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/obs"
	"github.com/kvatlas/kvatlas/internal/router/picker"
)

// TestPicker measures a picker that refuses everything, and one that is not there: what is
// counted is what came of requests.
func TestPicker(t *testing.T) {
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s, err := picker.New(picker.Config{
		Handler: http.NotFoundHandler(), Metrics: obs.NewMetrics(), Log: slog.New(slog.DiscardHandler), Ready: func() bool { return true },
		MaxBody: 1 << 20, MaxHeader: 1 << 16, ReadTimeout: time.Minute, MaxInflight: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ln) }() // ends with Shutdown
	for _, c := range []struct {
		target, field string
	}{{ln.Addr().String(), "refused"}, {"127.0.0.1:1", "failed"}} {
		var out, errs bytes.Buffer
		if code := run([]string{"picker", "--target", c.target, "--body", "1000", "--concurrency", "2", "--warm", "1ms", "--measure", "20ms", "--rate", "500"}, &out, &errs); code != 0 {
			t.Fatal(code, errs.String())
		}
		for lines := json.NewDecoder(&out); lines.More(); {
			var res map[string]any
			if err := lines.Decode(&res); err != nil {
				t.Fatal(err)
			}
			if n, _ := res[c.field].(float64); n < 1 || res["requests_per_second"] != 0.0 || res["error"] == "" {
				t.Errorf("%s: %v", c.field, res)
			}
		}
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}
