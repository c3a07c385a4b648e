package main

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/registry"
)

// TestTheDocumentedPermissionsSuffice runs each command with the permissions of
// docs/security.md, of which the server refuses nothing, and refuses what they
// have no need of.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	nats := natstest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"data":[{"id":"org/model"}],"usage":{"prompt_tokens_details":{"cached_tokens":64}}}`)) // the client may be gone
	}))
	defer engine.Close()
	older, newest, _ := seed(ctx, t, nats.Connect("indexer"), event.Space{Model: "org/model", BlockSize: 16})
	if _, err := registry.Register(ctx, registry.Worker{ID: 7, Model: "org/model", BlockSize: 16, Ranks: []uint32{0}, Transport: registry.JetStream,
		HashScheme: registry.Scheme(16), Endpoints: registry.Endpoints{HTTP: engine.URL}}, registry.AnnounceConfig{Conn: nats.Connect("publisher-7"), Log: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if code, stdout, _ := kvctl(t, "doctor", "--nats="+nats.URL("kvctl"), "--wait=1m", "--listen=100ms"); code != exitRefused || !strings.Contains(stdout, "nothing arrived") {
		t.Errorf("doctor: exit code %d\n%s", code, stdout) // the engine has no events, which is what it is to hear
	}
	for _, command := range []string{
		"worker list", "worker drain 7", "worker resume 7", "worker drain x --force", "worker remove x", "worker remove 7 --force",
		"snapshot list", "snapshot inspect " + newest, "snapshot verify " + newest, "snapshot restore " + newest + " " + t.TempDir(),
		"snapshot delete " + older, "reset",
	} {
		code, stdout, stderr := kvctl(t, append(strings.Fields(command), "--nats="+nats.URL("kvctl"), "--wait=1m")...)
		if code != 0 {
			t.Errorf("%s: exit code %d\n%s%s", command, code, stdout, stderr)
		}
	}
	nats.Sufficed()

	nc := nats.Connect("kvctl")
	nats.Denied(nc, "kvatlas.default.x.7", "kvatlas.default.x.7.live", "kvatlas.default.x.7.recover", "kvatlas-route.default.x",
		"$JS.API.STREAM.DELETE.kvatlas_default_x", "other")
	nats.Deaf(nc, "kvatlas.>", "kvatlas-route.>", "$KV.>", ">")
}
