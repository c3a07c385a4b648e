package sidecar

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/kvatlas/kvatlas/internal/modelfiles"
	"github.com/kvatlas/kvatlas/internal/nats/broker"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// The settings of the server are added to what its file says; one that says nothing of use is an error.
func TestServerSettings(t *testing.T) {
	c := &Config{ChatKwargs: `{"thinking":false}`}
	for _, f := range []struct{ says, want string }{
		{``, `{"default_chat_template_kwargs":{"thinking":false}}`},
		{`{"time_zone":"UTC","default_chat_template_kwargs":{}}`, `{"default_chat_template_kwargs":{"thinking":false},"time_zone":"UTC"}`},
		{`null`, ``}, {`[]`, ``}, {`{`, ``},
	} {
		dir := fstest.MapFS{"tokenizer.json": {Data: []byte("{}")}}
		if f.says != "" {
			dir[modelfiles.Server] = &fstest.MapFile{Data: []byte(f.says)}
		}
		set, err := c.files(dir)
		if got := string(set[modelfiles.Server]); got != f.want || (err == nil) != (f.want != "") || err != nil && !strings.Contains(err.Error(), modelfiles.Server) {
			t.Errorf("%s: %s %v", f.says, got, err)
		}
	}
}

// Why the tokenizer's files are not put is told once, not at each try.
func TestFilesThatAreNotThereAreToldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := &Sidecar{cfg: Config{Tokenizer: t.TempDir()}, log: slog.New(slog.NewTextHandler(&log, nil))}
		ctx, cancel := context.WithTimeout(t.Context(), 5*filesEvery+time.Second)
		defer cancel()
		s.keepFiles(ctx, func() uint64 { return 0 })
		if n := strings.Count(log.String(), "no tokenizer.json"); n != 1 {
			t.Errorf("told %d times:\n%s", n, &log)
		}
	})
}

// A server that comes back with nothing gets the files again, though they have not changed: routers
// that start would look for them in vain.
func TestFilesArePutAgainForAnEmptyServer(t *testing.T) {
	data, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tokenizer.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func() *broker.Broker {
		b, err := broker.Open(t.Context(), broker.Config{URL: broker.Embedded, DataDir: data, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	owner := serve()
	s := &Sidecar{cfg: Config{Tokenizer: dir, Namespace: "default"}, broker: serve(), log: slog.New(slog.DiscardHandler)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.keepFiles(ctx, func() uint64 { return s.broker.Conn().Stats().Reconnects })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	waittest.For(t, "the files are put", func() bool { return s.files.named() != nil })
	if err := owner.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(data, "jetstream")); err != nil {
		t.Fatal(err)
	}
	serve()
	waittest.For(t, "the files are put again", func() bool {
		b, err := modelfiles.OpenBucket(t.Context(), s.broker.Conn(), "default", 0, false)
		if err != nil {
			return false
		}
		set, err := b.Get(t.Context(), s.files.named())
		return err == nil && string(set["tokenizer.json"]) == "{}"
	})
}
