package probe

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/doctor"
	"github.com/kvatlas/kvatlas/registry"
)

const secret = "token-that-is-shown"

// described is what is made of an engine that answers with the handler.
func described(t *testing.T, h http.HandlerFunc) *doctor.Engine {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	g := &gathering{client: server.Client(), cfg: Config{Answer: time.Minute, Token: func(*registry.Worker) string { return secret }}}
	return g.newEngine(&registry.Worker{Model: "m", Endpoints: registry.Endpoints{HTTP: server.URL}}).describe(t.Context())
}

// TestTokensAreNotTold: an engine that says which token it refuses.
func TestTokensAreNotTold(t *testing.T) {
	d := described(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "not known: "+r.Header.Get("Authorization"), http.StatusUnauthorized)
	})
	if !strings.Contains(d.Error, "401 not known: Bearer [token]") || strings.Contains(d.Error, secret) {
		t.Errorf("%q", d.Error)
	}
}

// TestTooLargeIsNone: a block size that is no int is not taken for the largest one.
func TestTooLargeIsNone(t *testing.T) {
	d := described(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			_, _ = fmt.Fprintln(w, `vllm:cache_config_info{block_size="99999999999999999999999"} 1`)
			return
		}
		_, _ = fmt.Fprint(w, `{"data":[{"id":"m"}]}`)
	})
	if d.Error != "" || d.BlockSize != 0 {
		t.Errorf("%+v", d)
	}
}
