package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/bench/mockapi"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// TestTheDocumentedPermissionsSuffice runs two routers with the permissions of
// docs/security.md: they find the worker, read its events from the stream and
// without one, tell each other what they place, and start anew from a snapshot.
// The server refuses nothing that they ask for, and refuses what they have no
// need of.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	for transport, by := range map[registry.Transport]publish.Transport{registry.JetStream: publish.JetStream, registry.Core: publish.CoreNATS} {
		t.Run(string(transport), func(t *testing.T) { testPermissions(t, transport, by) })
	}
}

func testPermissions(t *testing.T, transport registry.Transport, by publish.Transport) {
	nats := natstest.Start(t)
	log := slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	pub := nats.Connect("publisher-7")
	w := registry.Worker{ID: 7, Model: "m", BlockSize: 4, Ranks: []uint32{0}, Transport: transport, HashScheme: registry.Scheme(4), TotalBlocks: 1000}
	p, err := publish.Open(ctx, publish.Config{Conn: pub, Space: w.Space(), Worker: w.ID, Transport: by, Heartbeat: 50 * time.Millisecond, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	w.Endpoints.HTTP = engine(t, mockapi.Config{Sink: func(ev *event.Event) {
		if err := p.Publish(context.Background(), *ev); err != nil {
			t.Error(err)
		}
	}})
	announced, err := registry.Register(ctx, w, registry.AnnounceConfig{Conn: pub, Positions: p.Positions, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	router := func(replica string) (url string, stop func()) {
		return start(t, "--nats="+nats.URL("router"), "--replica="+replica, "--snapshot-interval=1s", "--admin-listen=")
	}
	a, stopA := router("a")
	b, _ := router("b")

	const prompt = "a prompt of some length that is said twice"
	waittest.Until(t, func() error { // the router meets the worker in its own time
		if status, text, _ := ask("POST", a+"/v1/completions", `{"model":"m","max_tokens":4,"prompt":"`+prompt+`"}`); status != 200 {
			return fmt.Errorf("%d %s", status, text)
		}
		return nil
	})
	tokens := strings.ReplaceAll(strings.Trim(fmt.Sprint(mockapi.Tokens(prompt)), "[]"), " ", ",")
	cached := func(url string) {
		t.Helper()
		waittest.Until(t, func() error {
			status, text, _ := ask("POST", url+"/v1/select", `{"model_name":"m","token_ids":[`+tokens+`]}`)
			if status != 200 || !strings.Contains(text, `"longest_matched":8,`) {
				return fmt.Errorf("%d %s", status, text)
			}
			return nil
		})
	}
	cached(a)
	cached(b)
	if status, text, _ := ask("POST", a+"/v1/select_and_reserve", `{"selection_id":"x","model_name":"m","token_ids":[1,2,3,4]}`); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	waittest.Until(t, func() error { // the other counts it
		_, text, _ := ask("GET", b+"/v1/loads", "")
		var loads []struct {
			Requests int `json:"active_requests"`
		}
		if err := json.Unmarshal([]byte(text), &loads); err != nil || len(loads) != 1 || loads[0].Requests != 1 {
			return fmt.Errorf("%s %w", text, err)
		}
		return nil
	})
	stopA() // takes a snapshot, which the next start is from
	a, _ = router("a")
	cached(a)
	if err := p.Close(ctx); err != nil {
		t.Error(err)
	}
	if err := announced.Close(ctx); err != nil {
		t.Error(err)
	}
	for _, url := range []string{a, b} {
		waittest.Until(t, func() error {
			if _, text, _ := ask("GET", url+"/v1/loads", ""); strings.TrimSpace(text) != "[]" {
				return fmt.Errorf("the worker is there: %s", text)
			}
			return nil
		})
	}
	nats.Sufficed()

	nc := nats.Connect("router")
	nats.Denied(nc, "kvatlas.default.x.7", "kvatlas.default.x.7.live", "kvatlas-route.other.x", "$KV.kvatlas_other_registry.drain.7",
		"$JS.API.STREAM.DELETE.kvatlas_default_x", "other")
	nats.Deaf(nc, "kvatlas.default.*.*", "kvatlas-route.>", "$KV.>", ">")
}
