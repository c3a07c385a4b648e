package natstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Behind has what the client reads of a stream directly, from whichever server, answered by one that has nothing yet,
// or still has what was on a subject.
func Behind(t testing.TB, nc *nats.Conn, stream, was string) {
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
		answer := nats.NewMsg(m.Reply)
		if was == "" {
			answer.Header.Set("Status", "404")
		} else {
			answer.Header.Set(jetstream.StreamHeader, stream)
			answer.Header.Set(jetstream.SubjectHeader, was)
			answer.Header.Set(jetstream.SequenceHeader, "1")
			answer.Header.Set(jetstream.TimeStampHeaer, time.Now().Format(time.RFC3339Nano))
		}
		_ = m.RespondMsg(answer)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
}
