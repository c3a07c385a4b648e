package store

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
)

// blind lists what a server has that has nothing yet.
type blind struct{ jetstream.ObjectStore }

func (blind) List(context.Context, ...jetstream.ListObjectsOpt) ([]*jetstream.ObjectInfo, error) {
	return nil, jetstream.ErrNoObjectsFound
}

// In a cluster a server that is behind answers for what another one has acknowledged. A snapshot is read
// back all the same, and the manifest that counts is the leader's.
func TestAServerThatIsBehind(t *testing.T) {
	br, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = br.Close() })
	ctx := deadline(t)
	s, err := OpenBucket(ctx, br.Conn(), "default", testStream, BucketConfig{Spool: t.TempDir(), Part: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	natstest.Behind(t, br.Conn(), "OBJ_"+bucketName(testStream))
	natstest.Behind(t, br.Conn(), "KV_"+KVName("default"))
	fence, err := Claim(ctx, s, "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	name, data := Name(1, fence), content(1, 250_000)
	if err := put(ctx, s, name, data); err != nil {
		t.Fatal(err)
	}
	if got, err := get(ctx, s, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes are read back, %v", len(got), err)
	}
	if _, err := Publish(ctx, s, Entry{Name: name, Fence: fence}, 3); err != nil {
		t.Fatal(err)
	}
	s.os = blind{s.os}
	if err := Sweep(ctx, s, fence); err != nil {
		t.Error(err)
	}
	if names, err := s.Names(ctx); err != nil || !slices.Equal(names, []string{name}) {
		t.Errorf("it lists %q, %v", names, err)
	}
	if m, _, err := s.Manifest(ctx); err != nil || len(m.Snapshots) != 1 || m.Snapshots[0].Name != name {
		t.Errorf("the manifest has %+v, %v", m.Snapshots, err)
	}
	if got, err := get(ctx, s, name); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the newest snapshot was swept away: %d bytes, %v", len(got), err)
	}
}
