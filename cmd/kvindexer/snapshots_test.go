package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/internal/program/startup"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
)

// restored returns how many messages the process had to read after its
// snapshot, -1 if it began without one.
func (p *process) restored() int {
	for _, line := range p.lines() {
		var l struct {
			Msg    string `json:"msg"`
			Behind int    `json:"behind"`
		}
		if json.Unmarshal([]byte(line), &l) == nil && l.Msg == "snapshot restored" {
			return l.Behind
		}
	}
	return -1
}

// Killed again and again, in the middle of whatever it does, an indexer that
// takes snapshots all the time has the oracle's answers after each start.
func TestKilledBetweenSnapshots(t *testing.T) {
	dir := t.TempDir()
	host := start(t, "--data-dir", dir, "--no-snapshots")
	host.ready()
	f := newFleet(t, join(t, dir))
	args := []string{"--data-dir", dir, "--snapshot-interval=100ms", "--snapshot-threshold=20", "--snapshot-lease=300ms", "--snapshot-keep=2"}
	began := 0
	for i := range 6 {
		p := start(t, args...)
		for range 1 + i%3 {
			f.publish(40)
			if i%2 == 0 {
				<-time.After(time.Duration(f.rand.IntN(30)) * time.Millisecond) // so that it is killed at another step
			}
		}
		if i%2 == 1 {
			p.ready()
			f.compare(p)
			p.waitLog("snapshot taken", "position")
		}
		if p.restored() >= 0 {
			began++
		}
		_ = p.cmd.Process.Kill()
		p.wait()
	}
	last := start(t, args...)
	last.ready()
	f.compare(last)
	if last.restored() < 0 || began == 0 {
		t.Errorf("no start used a snapshot: %d before", began)
	}
	last.answers("GET", "/metrics", "", 200, `kvatlas_snapshot_restores_total{result="loaded"} 1`)
	_, data, err := last.ask("GET", "/readyz?verbose", "")
	var ready struct{ Progress startup.Report }
	if err = errors.Join(err, json.Unmarshal([]byte(data), &ready)); err != nil {
		t.Fatal(err)
	}
	if r := ready.Progress; r.Phase != startup.CaughtUp || r.Bytes == 0 || r.Bytes != r.BytesTotal || r.Blocks == 0 {
		t.Errorf("the start says of itself %s", data)
	}
}

// Two that fight for the lease, and are stopped in the middle of it in turn,
// do each other and a third no harm.
func TestStoppedWritersDoNoHarm(t *testing.T) {
	dir := t.TempDir()
	host := start(t, "--data-dir", dir, "--no-snapshots")
	host.ready()
	f := newFleet(t, join(t, dir))
	args := []string{"--data-dir", dir, "--snapshot-interval=100ms", "--snapshot-threshold=5", "--snapshot-lease=300ms", "--snapshot-keep=2"}
	both := []*process{start(t, args...), start(t, args...)}
	for _, p := range both {
		p.ready()
	}
	for i := range 6 {
		stopped := both[i%2]
		stopped.hold()
		f.publish(60)
		f.compare(both[1-i%2])
		<-time.After(400 * time.Millisecond) // longer than the lease
		f.publish(20)
		stopped.resume()
	}
	for _, p := range both {
		f.compare(p)
	}
	third := start(t, append(args, "--shards=3")...)
	third.ready()
	f.compare(third)
	if third.restored() < 0 {
		t.Error("the third began without a snapshot")
	}
}

// Ended in order it takes a last snapshot, from which the next start goes on;
// with a damaged one it takes the one before.
func TestALastSnapshotAndADamagedOne(t *testing.T) {
	dir, snaps := t.TempDir(), t.TempDir()
	args := []string{"--data-dir", dir, "--snapshot-dir", snaps, "--snapshot-threshold=3"}
	host := start(t, "--data-dir", dir, "--no-snapshots")
	host.ready()
	f := newFleet(t, join(t, dir))
	p := start(t, args...)
	p.ready()
	for range 3 {
		f.publish(120)
		f.compare(p)
	}
	waittest.Until(t, func() error {
		if n := len(snapshotFiles(t, snaps)); n < 2 {
			return fmt.Errorf("%d snapshots", n)
		}
		return nil
	})
	f.publish(30)
	p.signal(syscall.SIGTERM)
	if code := p.wait(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	p = start(t, args...)
	p.ready()
	f.compare(p)
	if n := p.restored(); n < 0 || n > 20 { // heartbeats may have come since
		t.Errorf("%d messages after the last snapshot", n)
	}
	_ = p.cmd.Process.Kill()
	p.wait()

	files := snapshotFiles(t, snaps)
	newest := files[len(files)-1]
	data, err := os.ReadFile(newest)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/3] ^= 4
	if err := os.WriteFile(newest, data, 0o600); err != nil {
		t.Fatal(err)
	}
	p = start(t, args...)
	p.ready()
	f.compare(p)
	if why := p.waitLog("a snapshot is not used", "error"); !strings.Contains(why, "damaged") {
		t.Errorf("the log says %q", why)
	}
	if p.restored() < 0 {
		t.Error("the one before was not used")
	}
}

func snapshotFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*", "*.kvsnap"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// --reset-states begins anew, but not while others live.
func TestResetStates(t *testing.T) {
	dir := t.TempDir()
	host := start(t, "--data-dir", dir)
	host.ready()
	f := newFleet(t, join(t, dir))
	f.publish(50)
	f.compare(host)
	refused := command(t.Context(), "--data-dir", dir, "--http-listen=127.0.0.1:0", "--reset-states")
	if out, err := refused.CombinedOutput(); err == nil || !strings.Contains(string(out), "other replicas live") {
		t.Errorf("%v: %s", err, out)
	}
	f.compare(host)
}

// A newcomer without a snapshot takes what a peer knows, with the token that it
// asks for, and with the peer gone reads the stream.
func TestANewcomerStartsFromAPeer(t *testing.T) {
	dir, files := t.TempDir(), t.TempDir()
	tokens, token := filepath.Join(files, "tokens.yaml"), filepath.Join(files, "token")
	for path, text := range map[string]string{tokens: "- {name: ops, token: sk-0123456789abcdef0123456789, role: operator}\n", token: "sk-0123456789abcdef0123456789\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := start(t, "--data-dir", dir, "--no-snapshots")
	host.ready()
	f := newFleet(t, join(t, dir))
	peer := start(t, "--data-dir", dir, "--no-snapshots", "--tokens-file", tokens)
	peer.ready()
	f.publish(200)
	f.compare(host)
	args := []string{"--data-dir", dir, "--no-snapshots", "--restore-from", peer.url, "--restore-from-token-file", token}
	p := start(t, args...)
	p.ready()
	f.compare(p)
	p.waitLog("a peer's dump was loaded", "position")
	f.publish(50)
	f.compare(p)
	_ = peer.cmd.Process.Kill()
	peer.wait()
	alone := start(t, args...)
	alone.ready()
	f.compare(alone)
	alone.waitLog("nothing is taken from the peer: the stream is read, and what it no longer has is asked for from the publishers", "peer")
}
