package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// What a replica of whole spaces knows of one that is then divided is not answered any
// more, as if it were all that there is; when the space is whole again it is.
func TestWhatIsOfBeforeADivisionIsNotAnswered(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--discover-every=50ms", "--no-snapshots")
	p.ready()
	b := join(t, dir)
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	published := func(partitions int, local uint64) {
		t.Helper()
		cfg := publish.Config{Conn: b.Conn(), Space: event.Space{Model: "m", BlockSize: 4}, Worker: 1}
		cfg.Stream.Partitions = partitions
		pub, err := publish.Open(t.Context(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Stored(t.Context(), 0, event.Device, publish.Root(), []uint64{local}, []uint64{local}); err != nil {
			t.Fatal(err)
		}
		if err := pub.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := pub.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	answers := func(status int, part string) {
		t.Helper()
		waittest.Until(t, func() error {
			is, data, err := p.ask("POST", "/v1/find_matches", `{"model":"m","hashes":[7]}`)
			ready, _, err2 := p.ask("GET", "/readyz", "")
			if err != nil || err2 != nil || is != status || ready != status || !strings.Contains(data, part) {
				return fmt.Errorf("status %d, ready %d: %s %w %w", is, ready, data, err, err2)
			}
			return nil
		})
	}
	deleteAll := func() {
		t.Helper()
		infos, err := stream.List(t.Context(), js, "default")
		if err != nil {
			t.Fatal(err)
		}
		for _, info := range infos {
			if err := js.DeleteStream(t.Context(), info.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
	published(1, 7)
	answers(200, `"worker_id":"1"`)
	deleteAll()
	published(2, 8)
	answers(503, "divided anew")
	deleteAll()
	published(1, 7)
	answers(200, `"worker_id":"1"`)
}
