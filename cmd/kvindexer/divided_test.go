package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// What is known of a space is not answered any more once it is divided anew, whatever its publishers
// are then and whether or not any of them is left to be asked: what is in the streams is, and
// nothing of before.
func TestWhatIsOfBeforeADivisionIsNotAnswered(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--discover-every=50ms", "--no-snapshots", "--gap-wait=1s")
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
	answers := func(local, former uint64) {
		t.Helper()
		waittest.Until(t, func() error {
			is, data, err := p.ask("POST", "/v1/find_matches", fmt.Sprintf(`{"model":"m","hashes":[%d]}`, local))
			_, before, err2 := p.ask("POST", "/v1/find_matches", fmt.Sprintf(`{"model":"m","hashes":[%d]}`, former))
			ready, _, err3 := p.ask("GET", "/readyz", "")
			if err := errors.Join(err, err2, err3); err != nil || is != 200 || ready != 200 ||
				!strings.Contains(data, `"worker_id":"1"`) || strings.Contains(before, `"worker_id":"1"`) {
				return fmt.Errorf("status %d, ready %d: %s; of before: %s %w", is, ready, data, before, err)
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
	answers(7, 6)
	for i, partitions := range []int{2, 1} {
		deleteAll()
		published(partitions, uint64(8+i))
		answers(uint64(8+i), uint64(7+i))
	}
}
