package kvatlas_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/kvatlas/kvatlas"
)

// A program may open consoles while it runs, at the same time and while it ends; what they
// follow has its end then.
func TestConsolesAtTheSameTime(t *testing.T) {
	var cfg kvatlas.Config
	cfg.Replica.NATS.URL = "none"
	a, err := kvatlas.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	var opened sync.WaitGroup
	for range 4 {
		opened.Go(func() { // ends when its console is open
			if _, err := a.Console(1); err != nil {
				t.Error(err)
			}
		})
	}
	if err := a.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Error(err)
	}
	opened.Wait()
	late, err := a.Console(1)
	if err != nil {
		t.Fatal(err)
	}
	got := httptest.NewRecorder()
	late.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/events?metric=held", nil))
	if got.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d %s", got.Code, got.Body)
	}
}
