package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/shard"
	"github.com/kvatlas/kvatlas/snapshot"
	"github.com/kvatlas/kvatlas/snapshot/keeper"
	"github.com/kvatlas/kvatlas/snapshot/store"
)

// seed makes a stream with two snapshots and returns their names and its.
func seed(ctx context.Context, t *testing.T, nc *nats.Conn, sp event.Space) (older, newest, inStream string) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	info, err := stream.Ensure(ctx, js, "default", sp, stream.Config{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	s, err := store.OpenBucket(ctx, nc, "default", info.Name, store.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	fence, err := store.Claim(ctx, s, "a", nil)
	if err != nil {
		t.Fatal(err)
	}
	set := shard.New(shard.Config{})
	defer set.Close()
	index, err := set.Open(sp)
	if err != nil {
		t.Fatal(err)
	}
	for seq := range uint64(2) {
		w := snapshot.NewWriter(index, snapshot.Options{})
		if err := w.Begin(ctx); err != nil {
			t.Fatal(err)
		}
		var file bytes.Buffer
		if _, err := w.Write(ctx, &file, snapshot.Meta{
			Space: snapshot.Space(sp), Stream: info.Name, Created: info.Created, Seq: seq, Written: time.Now(), Writer: "a", Fence: fence,
		}); err != nil {
			t.Fatal(err)
		}
		said, err := snapshot.Check(bytes.NewReader(file.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		e := keeper.EntryOf(said)
		if err := s.Put(ctx, e.Name, func(out io.Writer) error { _, err := file.WriteTo(out); return err }); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Publish(ctx, s, e, 3); err != nil {
			t.Fatal(err)
		}
	}
	return store.Name(0, fence), store.Name(1, fence), info.Name
}

func TestSnapshots(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // the test is over
	older, newest, inStream := seed(ctx, t, b.Conn(), event.Space{Model: "org/model", BlockSize: 16})
	to := t.TempDir()
	file := filepath.Join(to, inStream, newest)
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"snapshot list", 0, newest, ""},
		{"snapshot list --json", 0, `"seq":1`, ""},
		{"snapshot inspect " + newest, 0, `"model":"org/model"`, ""},
		{"snapshot verify " + newest, 0, "is whole", ""},
		{"snapshot verify " + store.Name(9, 9), 3, "", "no such snapshot"},
		{"snapshot verify x", 2, "", "no such file, and"},
		{"snapshot verify " + to + "/x.kvsnap", 3, "", "there is no file " + to + "/x.kvsnap"},
		{"snapshot inspect " + to, 1, "", "is a directory"},
		{"snapshot restore x " + to, 2, "", "no name of a snapshot"},
		{"snapshot restore " + newest + " " + to, 0, "--snapshot-dir " + to, ""},
		{"snapshot verify " + file, 0, "is whole", ""},
		{"snapshot list --snapshot-dir " + to, 0, newest, ""},
		{"snapshot delete " + newest, 4, "", "is the newest"},
		{"snapshot delete " + older, 0, "is deleted", ""},
		{"snapshot verify " + older, 3, "", "no such snapshot"},
		{"snapshot", 2, "", "give one of"},
		{"snapshot melt", 2, "", "give one of"},
		{"reset", 0, "are purged", ""},
		{"reset everything", 2, "", "give one of"},
		{"snapshot verify " + newest, 3, "", "no such snapshot"},
	} {
		code, stdout, stderr := kvctl(t, append(strings.Fields(c.args), "--data-dir", dir)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit code %d, %q, %q; want %d, %q, %q", c.args, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := kvctl(t, "snapshot", "verify", file); code != 1 || !strings.Contains(stderr, "damaged") {
		t.Errorf("a damaged file: exit code %d, %q", code, stderr)
	}
}

// Snapshots of two streams of a model may have the same name: the block size, or
// the stream, says whose is meant.
func TestSnapshotsOfTwoBlockSizes(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	b, err := broker.Open(ctx, broker.Config{URL: broker.Embedded, DataDir: dir, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close() //nolint:errcheck // the test is over
	_, name, _ := seed(ctx, t, b.Conn(), event.Space{Model: "m", BlockSize: 16})
	_, same, of64 := seed(ctx, t, b.Conn(), event.Space{Model: "m", BlockSize: 64})
	_, _, inGroup := seed(ctx, t, b.Conn(), event.Space{Model: "m", BlockSize: 64, Group: "g"})
	if name != same {
		t.Fatalf("%s and %s", name, same)
	}
	for _, c := range []struct {
		args   string
		code   int
		stdout string
		stderr string
	}{
		{"snapshot inspect --model m " + name, 2, "", "--block-size or --stream"},
		{"snapshot inspect --block-size 16 " + name, 0, `"block_size":16`, ""},
		{"snapshot inspect --block-size 64 " + name, 2, "", "2 streams"},
		{"snapshot inspect --stream " + of64 + " " + name, 0, `"block_size":64,"group":""`, ""},
		{"snapshot inspect --stream " + inGroup + " " + name, 0, `"group":"g"`, ""},
		{"snapshot list --json --stream " + inGroup, 0, `"model":"m","block_size":64,"group":"g"`, ""},
		{"snapshot inspect --block-size 32 " + name, 3, "", "no such snapshot"},
		{"snapshot delete --force --stream " + of64 + " " + name, 0, "is deleted", ""},
		{"snapshot verify --stream " + of64 + " " + name, 3, "", "no such snapshot"},
		{"snapshot verify --stream " + inGroup + " " + name, 0, "is whole", ""},
	} {
		code, stdout, stderr := kvctl(t, append(strings.Fields(c.args), "--data-dir", dir)...)
		if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
			t.Errorf("%s: exit code %d, %q, %q; want %d, %q, %q", c.args, code, stdout, stderr, c.code, c.stdout, c.stderr)
		}
	}
}
