package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kvatlas/kvatlas/internal/testing/natstest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// served is a NATS server in a process of its own, which is stopped, backed up
// and restored, and the fleet that publishes through it.
type served struct {
	*fleet
	dir  string
	host *process
}

func newServed(t *testing.T) *served {
	t.Helper()
	s := &served{dir: t.TempDir()}
	s.host = start(t, "--data-dir", s.dir, "--no-snapshots")
	s.host.ready()
	s.fleet = newFleet(t, join(t, s.dir))
	return s
}

// stopped calls f while the server is down.
func (s *served) stopped(f func()) {
	s.t.Helper()
	s.host.signal(syscall.SIGTERM)
	if code := s.host.wait(); code != 0 {
		s.t.Fatalf("exit code %d", code)
	}
	f()
	s.host = start(s.t, "--data-dir", s.dir, "--no-snapshots")
}

// taker starts a kvindexer that takes snapshots all the time, and returns once
// the stream is trimmed behind them.
func (s *served) taker(snaps string) *process {
	s.t.Helper()
	p := start(s.t, "--data-dir", s.dir, "--snapshot-dir", snaps, "--snapshot-threshold=5", "--snapshot-lease=300ms", "--snapshot-keep=2")
	p.ready()
	waittest.Until(s.t, func() error {
		s.publish(30)
		s.compare(p)
		if n := p.metric("kvatlas_snapshot_trimmed_messages_total"); n == "0" {
			return fmt.Errorf("nothing was trimmed")
		}
		return nil
	})
	return p
}

// metric returns a metric's value.
func (p *process) metric(name string) string {
	p.t.Helper()
	_, data, err := p.ask("GET", "/metrics", "")
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(data) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	p.t.Fatalf("no metric %s", name)
	return ""
}

// The NATS server is restored from a backup that is older than every snapshot. A
// replica that runs goes on reading, and one that starts becomes ready; both have
// the oracle's answers, and neither runs in circles.
func TestNATSRestoredFromABackup(t *testing.T) {
	s, snaps := newServed(t), t.TempDir()
	running := s.taker(snaps)
	var restore func()
	s.stopped(func() { restore = natstest.BackUp(t, s.dir) })
	old := snapshotFiles(t, snaps)
	waittest.Until(t, func() error {
		s.publish(60)
		s.compare(running)
		if now := snapshotFiles(t, snaps); len(now) < 2 || now[0] <= old[len(old)-1] {
			return fmt.Errorf("snapshots %q, after %q", now, old)
		}
		return nil
	})
	s.stopped(restore)
	s.publish(10)
	s.compare(running)
	starting := start(t, "--data-dir", s.dir, "--snapshot-dir", snaps)
	starting.ready()
	running.ready()
	s.publish(100)
	for name, p := range map[string]*process{"running": running, "starting": starting} {
		s.compare(p)
		circles := 0
		for _, line := range p.lines() {
			if strings.Contains(line, "reading begins again") || strings.Contains(line, "a snapshot was taken up") {
				circles++
			}
		}
		if voided := p.metric("kvatlas_ingest_void_positions_total"); circles > 30 || name == "running" && voided != "1" {
			t.Errorf("%s: the position was void %s times, and reading began again %d times", name, voided, circles)
		}
	}
	if starting.restored() < 0 {
		t.Error("the start used no snapshot")
	}
}

// An older snapshot under the newest one's name is passed over; without any
// manifest the newest whole one is found.
func TestSnapshotsThatWereSwapped(t *testing.T) {
	s, snaps := newServed(t), t.TempDir()
	p := s.taker(snaps)
	p.signal(syscall.SIGTERM) // it takes a last one
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	files := snapshotFiles(t, snaps)
	newest, older := files[len(files)-1], files[len(files)-2]
	whole, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Glob(filepath.Join(filepath.Dir(newest), "manifest-*"))
	if err != nil || len(manifests) == 0 {
		t.Fatal(manifests, err)
	}
	write := func(path string, data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		spoil func()
		says  string
		name  string
	}{
		{func() {
			data, err := os.ReadFile(older)
			if err != nil {
				t.Fatal(err)
			}
			write(newest, data)
		}, "a snapshot is not used", older},
		{func() {
			write(newest, whole)
			for _, m := range manifests {
				if err := os.Remove(m); err != nil {
					t.Fatal(err)
				}
			}
		}, "snapshots are looked for without their manifest; the next one that is taken lists them again", newest},
	} {
		tc.spoil()
		p := start(t, "--data-dir", s.dir, "--snapshot-dir", snaps)
		p.ready()
		s.compare(p)
		if name := p.waitLog("snapshot restored", "name"); name != filepath.Base(tc.name) {
			t.Errorf("it began with %s, want %s", name, tc.name)
		}
		p.waitLog(tc.says, "error")
		_ = p.cmd.Process.Kill()
		p.wait()
	}
}
