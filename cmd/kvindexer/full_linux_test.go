package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
)

// The disk of the NATS server is full: nothing is stored any more, neither events nor
// registrations. What workers hold is got from them.
func TestAFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=16m"); err != nil {
		t.Skipf("it needs a small file system of its own, and none can be mounted here: %v", err)
	}
	p := start(t, "--data-dir", dir, "--registry-beat=200ms", "--gap-wait=1s", "--no-snapshots", "--nats-max-store=1GiB")
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		waittest.Until(t, func() error { return syscall.Unmount(dir, 0) })
	})
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	pub, err := publish.Open(ctx, publish.Config{Conn: join(t, dir).Conn(), Space: event.Space{Model: "m", BlockSize: 16}, Worker: 1,
		Heartbeat: 100 * time.Millisecond, StreamWait: 200 * time.Millisecond, RetryMax: 100 * time.Millisecond, AckWait: time.Second,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	store := func(id uint64) {
		t.Helper()
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{id}, []uint64{id}); err != nil {
			t.Fatal(err)
		}
	}
	store(1)
	p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[1]}`, 200, `"workers":[{"worker_id":"1",`)
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	for chunk := make([]byte, 4096); err == nil; {
		_, err = f.Write(chunk)
	}
	if !strings.Contains(err.Error(), "no space") {
		t.Fatal(err)
	}
	// More than the server keeps in memory of what it cannot write.
	const events, each, blocks = 100, 8000, 100*8000 + 1
	for n := range uint64(events) {
		hashes := make([]uint64, each)
		for i := range hashes {
			hashes[i] = 2 + n*each + uint64(i)
		}
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), hashes, hashes); err != nil {
			t.Fatal(err)
		}
	}
	waittest.Until(t, func() error {
		_, data, err := p.ask("GET", "/v1/workers", "")
		if err == nil && !strings.Contains(data, fmt.Sprintf(`"blocks":%d,`, blocks)) {
			err = fmt.Errorf("not %d blocks: %.500s", blocks, data)
		}
		return err
	})
	p.answers("GET", "/readyz", "", 200, "ready")
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(ctx)
	end()
	_ = pub.Close(ended) // nothing takes the rest
}
