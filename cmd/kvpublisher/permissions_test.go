package main

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/ingest"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/shard"
)

// TestTheDocumentedPermissionsSuffice runs the program with the permissions of
// docs/security.md, over the stream and without one, through a restart of its
// own: what the engine holds reaches an index, and the server refuses nothing.
func TestTheDocumentedPermissionsSuffice(t *testing.T) {
	for _, transport := range []string{"jetstream", "core"} {
		t.Run(transport, func(t *testing.T) {
			nats := natstest.Start(t)
			f := &fleet{t: t, dir: t.TempDir(), set: shard.New(shard.Config{})}
			ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
			defer cancel()
			var err error
			if f.in, err = ingest.Open(ctx, ingest.Config{Conn: nats.Connect("indexer"), Replica: "test", Discover: 20 * time.Millisecond,
				Index: ingest.Into(f.set), Log: slog.New(slog.DiscardHandler)}); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { f.in.Close(); f.set.Close() })
			m := enginetest.NewMock(t, 1, 2, 0)
			all := append(args(m), "--nats="+nats.URL("publisher-7"), "--transport="+transport)
			p := f.start(all...)
			m.Publish(100)
			p.ready()
			equal(f, m, 0)
			p.stop()
			m.Publish(100)
			p = f.start(all...)
			p.ready()
			equal(f, m, 0)
			p.stop()
			nats.Sufficed()
		})
	}
}
