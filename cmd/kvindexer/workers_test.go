package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kvatlas/kvatlas/core"
	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// worker returns what /v1/workers says of a worker, as "state drained blocks".
func (p *process) worker(id uint64) string {
	_, data, err := p.ask("GET", "/v1/workers", "")
	if err != nil {
		return err.Error()
	}
	var m struct {
		Spaces []struct {
			Workers []struct {
				ID           string `json:"worker_id"`
				State        string
				Drained      bool
				Blocks       uint64
				Registration *struct {
					LeaseAge *float64 `json:"lease_age_seconds"`
					Total    uint64   `json:"total_blocks"`
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(data), &m); err != nil {
		return err.Error()
	}
	for _, sp := range m.Spaces {
		for _, w := range sp.Workers {
			if w.ID == fmt.Sprint(id) {
				text := fmt.Sprint(w.State, " ", w.Drained, " ", w.Blocks > 0)
				if w.Registration != nil && w.Registration.LeaseAge != nil {
					text += fmt.Sprint(" of ", w.Registration.Total)
				}
				return text
			}
		}
	}
	return "absent"
}

func (p *process) workerIs(id uint64, want string) {
	p.t.Helper()
	waittest.Until(p.t, func() error {
		if got := p.worker(id); got != want {
			return fmt.Errorf("worker %d is %q, want %q", id, got, want)
		}
		return nil
	})
}

// copyHolder gives the holder in one index what it has in the other.
func copyHolder(to, from core.Index, h core.Holder) {
	r := core.Restorer{Index: to, Holder: h}
	from.Dump(h, func(ev *event.Event, copies []uint32) bool {
		r.Add(ev, copies)
		return true
	})
	r.Finish()
}

// A worker that leaves takes its blocks along, on every replica, and on one
// that starts later and reads its events again.
func TestWorkersThatLeaveTakeTheirBlocksAlong(t *testing.T) {
	dir := t.TempDir()
	static := filepath.Join(t.TempDir(), "workers.yaml")
	if err := os.WriteFile(static, []byte("- {worker_id: 77, model: static, block_size: 16, transport: none}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--data-dir", dir, "--registry-beat=50ms", "--registry-workers", static}
	p := start(t, args...)
	p.ready()
	b := join(t, dir)
	f := newFleet(t, b)
	announce := func(w int) *registry.Announcement {
		a, err := registry.Register(t.Context(), registry.Worker{ID: uint64(w) + 1<<63, Model: f.space.Model, BlockSize: f.space.BlockSize,
			Group: f.space.Group, Ranks: []uint32{0, 1}, Transport: registry.JetStream, TotalBlocks: 500, Incarnation: f.pubs[w].Incarnation()},
			registry.AnnounceConfig{Conn: b.Conn(), Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first := announce(0)
	announce(1)
	f.publish(300)
	f.compare(p)
	p.workerIs(1<<63, "live false true of 500")
	p.workerIs(1<<63+2, "unregistered false true") // registration is optional
	p.workerIs(77, "live false false")

	bucket, err := registry.OpenBucket(t.Context(), b.Conn(), "default", registry.BucketConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := bucket.Drain(t.Context(), 1<<63+1, "test"); err != nil {
		t.Fatal(err)
	}
	p.workerIs(1<<63+1, "live true true of 500")
	f.compare(p)

	// It leaves: its blocks are gone here, and for a replica that starts now.
	if err := first.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	held := core.NewOracle() // what its engine goes on holding
	for rank := range core.Holder(fleetRanks) {
		copyHolder(held, f.oracle, rank)
		f.oracle.Clear(rank, 0, true)
	}
	p.workerIs(1<<63, "gone false false")
	f.compare(p)
	second := start(t, args...)
	second.ready()
	f.compare(second)

	// It is back: its publisher says what it holds.
	announce(0)
	for rank := range core.Holder(fleetRanks) {
		copyHolder(f.oracle, held, rank)
	}
	p.workerIs(1<<63, "live false true of 500")
	f.compare(p)
	f.publish(300)
	f.compare(p)
	f.compare(second)
	third := start(t, args...) // reads of a worker, the same run of it, that left and is back
	third.ready()
	f.compare(third)
	p.answers("GET", "/metrics", "", 200, `kvatlas_registry_left_total{reason="unregistered"} 1`)
	p.answers("GET", "/metrics", "", 200, `kvatlas_ingest_recoveries_asked_total{cause="departed"}`)

	p.answers("POST", "/register", `{"instance_id":9,"endpoint":"tcp://10.0.0.1:5557","model_name":"m","block_size":16}`, 403, "--registry-allow")
	p.answers("POST", "/register", `{"instance_id":9,"endpoint":"tcp://127.0.0.1:5557","model_name":"m","block_size":16}`, 201, "ok")
	second.answers("GET", "/workers?model_name=m", "", 200, `"instance_id":9`)
	second.answers("POST", "/unregister", `{"instance_id":9,"model_name":"m"}`, 200, "ok")
	p.answers("GET", "/workers?model_name=m", "", 200, "[]")
	for _, x := range []*process{third, second, p} {
		x.signal(syscall.SIGTERM)
		if code := x.wait(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	}
}

// A replica is ready only when registered workers without a stream have said
// what they hold; these say nothing by themselves.
func TestReadyWaitsForFirstDumps(t *testing.T) {
	dir := t.TempDir()
	first := start(t, "--data-dir", dir)
	first.ready()
	b := join(t, dir)
	space := event.Space{Model: "quiet", BlockSize: 16}
	pub, err := publish.Open(t.Context(), publish.Config{Conn: b.Conn(), Space: space, Worker: 5, Transport: publish.CoreNATS, Heartbeat: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close(t.Context()) //nolint:errcheck // the test is over
	if err := pub.Stored(t.Context(), 0, event.Device, publish.Root(), []uint64{1, 2, 3}, []uint64{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := pub.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, err := registry.Register(t.Context(), registry.Worker{ID: 5, Model: space.Model, BlockSize: 16, Transport: registry.Core,
		Incarnation: pub.Incarnation()}, registry.AnnounceConfig{Conn: b.Conn(), Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close(t.Context()) //nolint:errcheck // the test is over
	second := start(t, "--data-dir", dir)
	second.ready()
	if status, body, err := second.ask("POST", "/v1/find_matches", `{"model":"quiet","hashes":[1,2,3]}`); status != 200 || !strings.Contains(body, `"longest":3`) {
		t.Errorf("ready, and %d %s, %v", status, body, err)
	}
}
