package main

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kvatlas/kvatlas/event"
	"github.com/kvatlas/kvatlas/internal/nats/stream"
	"github.com/kvatlas/kvatlas/internal/testing/enginetest"
	"github.com/kvatlas/kvatlas/internal/testing/waittest"
	"github.com/kvatlas/kvatlas/publish"
	"github.com/kvatlas/kvatlas/registry"
)

// One space more than there is room for is refused by its name, whatever brings it, and
// nothing else is: neither the others nor the next start, which has still less room and a
// snapshot of before.
func TestASurplusSpaceIsRefusedByName(t *testing.T) {
	dir, snaps := t.TempDir(), t.TempDir()
	args := func(most int) []string {
		return []string{"--data-dir", dir, "--snapshot-dir", snaps, "--snapshot-threshold=1", "--registry-beat=50ms", fmt.Sprint("--max-spaces=", most)}
	}
	p := start(t, args(3)...)
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	b := join(t, dir)
	space := func(i int) event.Space { return event.Space{Model: fmt.Sprint("model-", i), BlockSize: 16} }
	open := func(i int, transport publish.Transport) {
		t.Helper()
		pub, err := publish.Open(ctx, publish.Config{Conn: b.Conn(), Space: space(i), Worker: uint64(i), Transport: transport,
			Heartbeat: 100 * time.Millisecond, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = pub.Close(ctx) })
		if err := pub.Stored(ctx, 0, event.Device, publish.Root(), []uint64{1}, []uint64{1}); err != nil {
			t.Fatal(err)
		}
		if err := pub.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 3 {
		open(i, publish.JetStream)
		p.answers("POST", "/v1/find_matches", fmt.Sprintf(`{"model":"model-%d","hashes":[1]}`, i), 200, fmt.Sprintf(`"worker_id":"%d"`, i))
	}
	open(3, publish.JetStream)
	p.answers("GET", "/readyz?verbose", "", 200, stream.Name("default", space(3)))
	open(4, publish.CoreNATS)
	m := enginetest.NewMock(t, 9, 1, 200)
	events, replay := m.Endpoint(0)
	p.answers("POST", "/register", fmt.Sprintf(`{"instance_id":7,"endpoint":%q,"replay_endpoint":%q,"block_size":%d,"model_name":"model-5"}`,
		events, replay, enginetest.BlockSize), 201, "")
	p.answers("GET", "/v1/workers", "", 200, `"status":"failed","last_error":"direct: worker 7, rank 0: opening the index space of model \"model-5\"`)
	waittest.Until(t, func() error {
		if log := strings.Join(p.lines(), "\n"); !strings.Contains(log, `model \"model-4\": the space has no index`) {
			return fmt.Errorf("the log does not name the space without a stream: %s", log)
		}
		return nil
	})
	p.waitLog("snapshot taken", "name")
	other := start(t, append(args(2), "--replica=other")...)
	other.ready()
	read := 0
	for i := range 4 {
		_, data, err := other.ask("GET", "/readyz?verbose", "")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(data, stream.Name("default", space(i))) {
			other.answers("POST", "/v1/find_matches", fmt.Sprintf(`{"model":"model-%d","hashes":[1]}`, i), 200, fmt.Sprintf(`"worker_id":"%d"`, i))
			read++
		}
	}
	if read != 2 {
		t.Errorf("%d spaces are not refused, with room for 2", read)
	}
}

// What an engine says that nobody can read is logged once a second, however much of it
// there is, and the last error ends when all is well again.
func TestBatchesOfAnEngineThatNobodyCanRead(t *testing.T) {
	p := start(t, "--data-dir", t.TempDir(), "--registry-beat=50ms")
	p.ready()
	m := enginetest.NewMock(t, 9, 1, 200)
	events, replay := m.Endpoint(0)
	p.answers("POST", "/register", fmt.Sprintf(`{"instance_id":7,"endpoint":%q,"replay_endpoint":%q,"block_size":%d,"model_name":"direct"}`,
		events, replay, enginetest.BlockSize), 201, "")
	m.Publish(20)
	p.direct(m, 0)
	begun := time.Now()
	waittest.Until(t, func() error {
		for range 20 {
			m.Junk(0)
		}
		lost, err := strconv.Atoi(p.metric(`kvatlas_direct_lost_batches_total{reason="undecodable"}`))
		if err != nil || lost < 200 {
			return fmt.Errorf("%d batches were read, %w", lost, err)
		}
		return nil
	})
	p.answers("GET", "/v1/workers", "", 200, "message is malformed")
	logged := strings.Count(strings.Join(p.lines(), "\n"), "batches of an engine are lost")
	if most := 2 + int(time.Since(begun)/time.Second); logged == 0 || logged > most {
		t.Errorf("%d lines in %v", logged, time.Since(begun))
	}
	m.Restart()
	m.Publish(50)
	p.direct(m, 0)
	waittest.Until(t, func() error {
		if _, data, err := p.ask("GET", "/v1/workers", ""); err != nil || strings.Contains(data, "last_error") {
			return fmt.Errorf("the error of before is shown: %v %s", err, data)
		}
		return nil
	})
}

// A publisher died with a message lost before its last one: who starts then waits for that
// no longer than --gap-wait, and shows the rank as stale.
func TestAHeldMessageOfADeadPublisher(t *testing.T) {
	dir := t.TempDir()
	host := start(t, "--data-dir", dir, "--no-snapshots")
	host.ready()
	ctx, cancel := context.WithTimeout(t.Context(), waittest.Patience)
	defer cancel()
	b := join(t, dir)
	js, err := jetstream.New(b.Conn())
	if err != nil {
		t.Fatal(err)
	}
	space := event.Space{Model: "m", BlockSize: 16}
	if _, err := stream.Ensure(ctx, js, "default", space, stream.Config{MaxBytes: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{1, 3} {
		data := event.AppendBatch(nil, &event.Batch{Space: space, Worker: 1, Incarnation: 9,
			Events: []event.Event{{Kind: event.Stored, ID: id, Engine: []uint64{id}, Local: []uint64{id}}}})
		if _, err := js.Publish(ctx, stream.Subject("default", space, 1), data); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	p := start(t, "--data-dir", dir, "--replica=other", "--no-snapshots", "--gap-wait=2s")
	p.ready()
	if took := time.Since(begun); took < time.Second {
		t.Errorf("ready after %v", took)
	}
	p.answers("POST", "/v1/find_matches", `{"model":"m","hashes":[3]}`, 200, `"worker_id":"1"`)
	p.answers("GET", "/readyz?verbose", "", 200, "1 ranks are stale")
}

// A stream is deleted and made again while it is read, and while nobody does who has a
// snapshot of before: each time one position is void, and the answers are the oracle's.
func TestAStreamThatIsMadeAgain(t *testing.T) {
	s := newServed(t)
	snaps := t.TempDir()
	p := s.taker(snaps)
	remake := func() {
		t.Helper()
		js, err := jetstream.New(join(t, s.dir).Conn())
		if err != nil {
			t.Fatal(err)
		}
		if err := js.DeleteStream(t.Context(), stream.Name("default", s.space)); err != nil {
			t.Fatal(err)
		}
		s.publish(100)
	}
	check := func() {
		t.Helper()
		s.compare(p)
		p.ready()
		s.publish(30)
		s.compare(p)
		if n := p.metric("kvatlas_ingest_void_positions_total"); n != "1" {
			t.Errorf("%s positions were void", n)
		}
	}
	remake()
	check()
	_ = p.cmd.Process.Kill()
	p.wait()
	remake()
	p = start(t, "--data-dir", s.dir, "--snapshot-dir", snaps)
	check()
}

// An engine runs anew and has told of one of its ranks: what the others held in its last
// run is gone, with the new run's first heartbeat or registration.
func TestARestartedEngineHoldsNothingOfBefore(t *testing.T) {
	dir := t.TempDir()
	p := start(t, "--data-dir", dir, "--registry-beat=100ms", "--gap-wait=1s")
	p.ready()
	ctx, cancel := context.WithTimeout(t.Context(), 2*waittest.Patience)
	defer cancel()
	nc := join(t, dir).Conn()
	for worker, registers := range []bool{false, true} {
		cfg := publish.Config{Conn: nc, Space: event.Space{Model: "m", BlockSize: 16}, Worker: uint64(worker), Heartbeat: 50 * time.Millisecond,
			Log: slog.New(slog.DiscardHandler)}
		if registers {
			cfg.Heartbeat = time.Hour // nothing but the registration tells
			cfg.Registration = &publish.Registration{Worker: registry.Worker{Ranks: []uint32{0, 1}}}
		}
		blocks := func(n int) {
			t.Helper()
			p.answers("GET", "/v1/workers", "", 200, fmt.Sprintf(`"blocks":%d,`, n))
		}
		old, err := publish.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		for rank := range uint32(2) {
			if err := old.Stored(ctx, rank, event.Device, publish.Root(), []uint64{1, 2, 3}, []uint64{1, 2, 3}); err != nil {
				t.Fatal(err)
			}
		}
		if err := old.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		blocks(6)
		if err := old.Close(ctx); err != nil {
			t.Fatal(err)
		}
		again, err := publish.Open(ctx, cfg)
		if err != nil {
			t.Fatal(err)
		}
		few := []uint64{7, 8}[:1+worker] // not as many as another one has
		if err := again.Stored(ctx, 0, event.Device, publish.Root(), few, few); err != nil {
			t.Fatal(err)
		}
		blocks(len(few))
		if err := again.Close(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// A server takes messages of 32 MiB, and one of them has more than a reader asks for at a
// time: it is read as the others are.
func TestAMessageLargerThanAReaderAsksFor(t *testing.T) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(),
		MaxPayload: 32 << 20, MaxPending: 128 << 20, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	p := start(t, "--nats", srv.ClientURL(), "--no-snapshots")
	p.ready()
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	space := event.Space{Model: "m", BlockSize: 16}
	if _, err := stream.Ensure(t.Context(), js, "default", space, stream.Config{MaxBytes: 128 << 20}); err != nil {
		t.Fatal(err)
	}
	large := make([]uint64, 700_000) // in 16 bytes each
	for i := range large {
		large[i] = uint64(i) + 10
	}
	for id, names := range [][]uint64{{1}, large, {2}} {
		data := event.AppendBatch(nil, &event.Batch{Space: space, Worker: 1, Incarnation: 9,
			Events: []event.Event{{Kind: event.Stored, ID: uint64(id) + 1, Engine: names, Local: names}}})
		if _, err := js.Publish(t.Context(), stream.Subject("default", space, 1), data); err != nil {
			t.Fatalf("%d bytes: %v", len(data), err)
		}
	}
	p.answers("GET", "/v1/workers", "", 200, fmt.Sprintf(`"blocks":%d,`, len(large)+2))
	p.ready()
}
