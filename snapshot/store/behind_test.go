package store

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

func openAlone(t *testing.T) (*Bucket, *nats.Conn) {
	t.Helper()
	br, err := broker.Open(deadline(t), broker.Config{URL: broker.Embedded, DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = br.Close() })
	s, err := OpenBucket(deadline(t), br.Conn(), "default", testStream, BucketConfig{Spool: t.TempDir(), Part: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	return s, br.Conn()
}

// In a cluster a server that is behind answers for what another one has acknowledged. A snapshot is read
// back all the same, and the manifest that counts is the leader's.
func TestAServerThatIsBehind(t *testing.T) {
	s, nc := openAlone(t)
	natstest.Behind(t, nc, "OBJ_"+bucketName(testStream), "")
	natstest.Behind(t, nc, "KV_"+KVName("default"), "")
	ctx := deadline(t)
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

// Nobody waits for what a server that is behind still has, and which is purged.
func TestAServerThatHasWhatIsPurged(t *testing.T) {
	s, nc := openAlone(t)
	natstest.Behind(t, nc, "OBJ_"+bucketName(testStream), s.objects.MetaSubject(partName(Name(1, 1), 0)))
	if names, err := s.Names(deadline(t)); err != nil || len(names) != 0 {
		t.Errorf("it lists %q, %v", names, err)
	}
}

// Who has read a snapshot leaves no consumer at the server, of which there would be one for each part.
func TestReadersLeaveNoConsumers(t *testing.T) {
	s, _ := openAlone(t)
	ctx := deadline(t)
	if err := put(ctx, s, Name(1, 1), content(1, 250_000)); err != nil {
		t.Fatal(err)
	}
	if _, err := get(ctx, s, Name(1, 1)); err != nil {
		t.Fatal(err)
	}
	st, err := s.js.Stream(ctx, "OBJ_"+bucketName(testStream))
	if err != nil {
		t.Fatal(err)
	}
	if n := st.CachedInfo().State.Consumers; n != 0 {
		t.Errorf("%d consumers are left", n)
	}
}

// Reading ends with its context, also while there is nothing that the client could go on with.
func TestReadingEndsWithItsContext(t *testing.T) {
	t.Parallel() // the client takes ten seconds to end
	s, _ := openAlone(t)
	s.cfg.Part = 16 << 20
	if err := put(deadline(t), s, Name(1, 1), content(1, 12<<20)); err != nil { // more than is asked for at a time
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone := sync.OnceFunc(func() {
		if err := s.js.DeleteStream(ctx, "OBJ_"+bucketName(testStream)); err != nil {
			t.Error(err)
		}
		time.AfterFunc(2*time.Second, cancel) // it has begun to try by then
	})
	waittest.Ends(t, "a part is read", func() {
		if _, err := s.getPart(ctx, partName(Name(1, 1), 0), writes(func(p []byte) (int, error) { gone(); return len(p), nil })); !errors.Is(err, context.Canceled) {
			t.Error("it ends with", err)
		}
	})
}

type writes func(p []byte) (int, error)

func (f writes) Write(p []byte) (int, error) { return f(p) }
