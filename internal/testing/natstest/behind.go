package natstest

import (
	"context"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Behind has what the client reads of a stream directly, from whichever server, answered by one that has nothing yet.
func Behind(t testing.TB, nc *nats.Conn, stream string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := s.CachedInfo().Config
	cfg.AllowDirect = false // of which who has looked at it before does not know
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	sub, err := nc.Subscribe("$JS.API.DIRECT.GET."+stream+".>", func(m *nats.Msg) {
		nothing := nats.NewMsg(m.Reply)
		nothing.Header.Set("Status", "404")
		_ = m.RespondMsg(nothing)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
}
