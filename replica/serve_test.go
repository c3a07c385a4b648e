package replica

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
)

// Who serves a Replica that is closed is told so by each answer, and nothing is left that
// nobody would end.
func TestServedAfterClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // ends when no goroutine is left
		r, err := New(Config{Fed: true, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		h, err := r.Handler()
		if err != nil {
			t.Fatal(err)
		}
		got := httptest.NewRecorder()
		h.ServeHTTP(got, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/workers", nil))
		if got.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	})
}
